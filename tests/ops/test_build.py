"""The native library is built once, under a lock, and every way that can fail is one clear line."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mindspeed_ms.errors import BuildError, ConfigError
from mindspeed_ms.ops.native import build


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache"


def compiler(tmp_path, monkeypatch, body: str):
    """Make a compiler of a few lines of shell the one that is used."""
    script = tmp_path / "c++"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit 0\n{body}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    return script


# Writes its arguments to a log and makes an empty output file.
WORKING = 'echo "$@" >> "$(dirname "$0")/calls"; while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done'


def test_without_a_compiler_the_message_says_what_to_install(cache, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found .* install g\+\+"):
        build.build()


def test_a_compiler_that_is_not_there_is_named(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler"):
        build.build()


def test_a_library_built_earlier_needs_no_compiler(cache, tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, WORKING)
    built = build.build()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build.build() == built
    with pytest.raises(BuildError, match="no C"):
        build.build(force=True)


def test_a_failing_compiler_is_quoted_and_leaves_nothing(cache, tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, "echo 'x.cc:1: error: no such instruction' >&2; exit 1")
    with pytest.raises(BuildError, match="x.cc:1: error: no such instruction"):
        build.build()
    assert not list(cache.rglob("*.so"))


@pytest.mark.parametrize("work", ["full", "file"])
def test_a_cache_that_cannot_be_written_is_named(cache, tmp_path, monkeypatch, work):
    compiler(tmp_path, monkeypatch, WORKING)
    if work == "file":
        cache.write_text("not a folder")
    else:
        full = OSError(28, "No space left on device")
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(BuildError, match="cannot write .*MINDSPEED_MS_CACHE"):
        build.build()


def test_builds_at_the_same_time_compile_once(cache, tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, f"sleep 0.1; {WORKING}")
    command = [sys.executable, "-c", "from mindspeed_ms.ops.native.build import build; print(build())"]
    with ThreadPoolExecutor(3) as pool:
        paths = list(
            pool.map(lambda _: subprocess.run(command, capture_output=True, text=True, check=True).stdout, range(3))
        )
    assert len(set(paths)) == 1
    links = [line for line in (tmp_path / "calls").read_text().splitlines() if "-shared" in line]
    assert len(links) == 1


def test_a_library_of_another_abi_is_refused(cache, tmp_path, monkeypatch):
    source = tmp_path / "other.cc"
    others = (
        "int MsmsAbi() { return 999; }",
        'const char *MsmsIsa() { return ""; }',
        "double MsmsSeconds() { return 0; }",
    )
    source.write_text("\n".join(f'extern "C" {other}' for other in others))
    library = tmp_path / "other.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(build, "library_path", lambda: library)
    with pytest.raises(BuildError, match="kernel ABI 999, expected"):
        build.library()


def test_a_compiler_that_meets_a_full_disk_is_not_blamed(cache, tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, "echo \"error: x.o: 'No space left on device'\" >&2; exit 1")
    with pytest.raises(BuildError, match="the disk is full .*free some space or set MINDSPEED_MS_CACHE"):
        build.build()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("THREADS", value) for value in ("0", "-1", "abc", "1e9", "1025", "9" * 30, "\u0663")]
    + [("ISA", value) for value in ("avx1024", "AVX2 ")],
)
def test_a_setting_that_the_library_cannot_follow_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv(f"MINDSPEED_MS_{variable}", value)
    with pytest.raises(ConfigError, match=f"MINDSPEED_MS_{variable}=.*expected"):
        build.library()


def test_a_cache_in_the_home_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_CACHE", "~no-such-user/cache")
    with pytest.raises(ConfigError, match="MINDSPEED_MS_CACHE=~no-such-user/cache: there is no home directory"):
        build.build()


def test_the_library_stays_when_its_last_user_closes_it():
    program = (
        "import _ctypes, ctypes, sys; library = ctypes.CDLL(sys.argv[1]); _ctypes.dlclose(library._handle); "
        "print(sys.argv[1] in open('/proc/self/maps').read())"
    )
    command = [sys.executable, "-c", program, str(build.library_path().resolve())]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
