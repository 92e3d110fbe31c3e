"""Files behind URLs are copied once, whole or not at all."""

import functools
import http.server
import os
import sys
import threading

import pytest
from data_corpora import LIMIT

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data import remote
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.remote import fetch, is_url, shown
from mindspeed_ms.data.sources import find_sources
from mindspeed_ms.errors import ConfigError, DataError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


@pytest.fixture
def reads(monkeypatch):
    """The paths that were read."""
    paths = []
    download = remote._download

    def counted(system, path, *rest):
        paths.append(path)
        return download(system, path, *rest)

    monkeypatch.setattr(remote, "_download", counted)
    return paths


def test_urls_are_told_from_paths():
    assert all(map(is_url, ["s3://b/x", "file:///x", "memory://x", "zip://a::s3://b/x", "simplecache::s3://b/x"]))
    assert not any(map(is_url, ["/x", "x.txt", "C:/x", "://x", "a b://x", "corpus/s3://x"]))


def test_a_url_is_shown_without_secrets():
    assert shown("https://me:secret@host/a.txt?X-Signature=1") == "https://host/a.txt"


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_file_is_read_by_its_url(tmp_path, memory, scheme):
    if scheme == "memory":
        memory.pipe("/corpus/a.txt", b"one\ntwo\n")
        url = "memory://corpus/a.txt"
    else:
        (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
        url = f"file://{tmp_path}/a.txt"
    (file,) = find_sources([url], ReadConfig(), tmp_path / "cache")
    assert (file.name, file.original, file.kind, file.size) == ("a.txt", url, "txt", 8)
    assert file.path.is_relative_to(tmp_path / "cache")
    (chunk,) = read_chunks(file, 0, ReadConfig(), LIMIT)
    assert chunk.records == [b"one", b"two"]


def test_the_users_cache_folder_is_the_default(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "mine"))
    memory.pipe("/a.txt", b"x")
    assert fetch("memory://a.txt")[0].is_relative_to(tmp_path / "mine" / "sources")


def test_a_copy_is_used_again_until_the_file_changes(tmp_path, reads):
    (tmp_path / "a.txt").write_bytes(b"one")
    url, cache = f"file://{tmp_path}/a.txt", tmp_path / "cache"
    local, _ = fetch(url, cache)
    assert fetch(url, cache)[0] == local and len(reads) == 1
    (tmp_path / "a.txt").write_bytes(b"two")
    os.utime(tmp_path / "a.txt", (1, 1))
    assert fetch(url, cache)[0].read_bytes() == b"two" and len(reads) == 2
    local.write_bytes(b"tw")  # a copy that somebody cut
    assert fetch(url, cache)[0].read_bytes() == b"two" and len(reads) == 3
    assert [path.name for path in local.parent.iterdir() if path.suffix == ".partial"] == []


def test_what_has_no_mark_of_its_version_is_copied_each_time(tmp_path, memory, reads, monkeypatch):
    memory.pipe("/a.txt", b"one")
    monkeypatch.setattr(remote, "_TAGS", ())
    monkeypatch.setattr(remote, "_TIMES", ())
    for _ in range(2):
        fetch("memory://a.txt", tmp_path)
    assert len(reads) == 2


def test_a_folder_is_mirrored_without_what_holds_no_documents(tmp_path, memory, reads):
    for name in ("b.jsonl", "a/c.txt", "a/pair.bin", "a/pair.idx", "notes.md", ".git/x.txt", "_tmp/y.txt"):
        memory.pipe(f"/corpus/{name}", b"{}")
    files = find_sources(["memory://corpus"], ReadConfig(), tmp_path)
    assert [file.name for file in files] == ["corpus/a/c.txt", "corpus/a/pair.bin", "corpus/b.jsonl"]
    assert [file.original for file in files][0] == "memory://corpus/a/c.txt"
    assert files.ignored == ["memory://corpus/notes.md"]
    memory.rm("/corpus/b.jsonl")
    assert len(find_sources(["memory://corpus"], ReadConfig(), tmp_path)) == 2
    assert len(reads) == 4


@pytest.mark.parametrize("url", ["memory://set/x", "memory://set/x.bin", "memory://set/x.idx"])
def test_a_megatron_pair_comes_with_both_files(tmp_path, memory, url):
    memory.pipe({"/set/x.bin": b"b", "/set/x.idx": b"i"})
    (file,) = find_sources([url], ReadConfig(), tmp_path)
    assert (file.kind, file.path.read_bytes()) == ("megatron", b"b")
    assert file.path.with_suffix(".idx").read_bytes() == b"i"


def test_a_web_server_is_read_and_its_errors_are_one_line(tmp_path, reads):
    pytest.importorskip("aiohttp")
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a.txt").write_bytes(b"one\n" * 100_000)
    handler = functools.partial(QuietHandler, directory=tmp_path / "www")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for _ in range(2):  # the server tells when the file was changed
            local, _ = fetch(f"{url}/a.txt?token=secret", tmp_path / "cache")
            assert local.name == "a.txt" and local.read_bytes() == b"one\n" * 100_000
        assert len(reads) == 1
        with pytest.raises(DataError, match=rf"^{url}/b\.txt: cannot be read") as caught:
            fetch(f"{url}/b.txt?token=secret", tmp_path / "cache")
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
        server.shutdown()
    with pytest.raises(DataError, match=rf"^{url}/a\.txt: cannot be read"):
        fetch(f"{url}/a.txt", tmp_path / "other")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_copy_that_comes_short_is_no_copy(tmp_path, memory, monkeypatch):
    memory.pipe("/a.txt", b"one")
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path: info(self, path) | {"size": 4})
    with pytest.raises(DataError, match=r"memory://a\.txt: .*came with 3 bytes of 4; try again"):
        fetch("memory://a.txt", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_connection_that_breaks_leaves_nothing_and_names_the_url(tmp_path, memory, monkeypatch):
    memory.pipe("/a.txt", b"one")

    def broken(remote_file, url):
        raise remote._unreadable(url, ConnectionResetError("reset by peer"))

    monkeypatch.setattr(remote, "_read", broken)
    with pytest.raises(DataError, match=r"^memory://a\.txt: cannot be read \(reset by peer\); check"):
        fetch("memory://a.txt", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("memory://none.txt", DataError, r"^memory://none\.txt: cannot be read \(no such file or folder\)"),
        ("nosuch://b/a.txt", DataError, r"^nosuch://b/a\.txt: cannot be read \(.*nosuch"),
        ("abfs://b/a.txt", ConfigError, r"^abfs://b/a\.txt: its scheme needs one more library: .*adlfs"),
    ],
)
def test_a_url_that_leads_nowhere_is_named(tmp_path, url, error, message):
    with pytest.raises(error, match=message) as caught:
        fetch(url, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_documents_is_named(tmp_path, memory):
    memory.pipe("/corpus/notes.md", b"x")
    with pytest.raises(DataError, match=r"^memory://corpus: no file to read in it \(1 ignored\)"):
        fetch("memory://corpus", tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, memory):
    memory.pipe("/a.txt", b"x")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fetch("memory://a.txt", tmp_path / "file")


def test_without_fsspec_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"needs fsspec; run pip install 'mindspeed-ms\[data\]'"):
        fetch("memory://a.txt", tmp_path)


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", "/dev/zero"):
        with pytest.raises(DataError, match="neither a file nor a folder"):
            fetch(f"file://{path}", tmp_path / "cache")
    (tmp_path / "a.txt").write_text("a")
    local, _ = fetch(f"file://{tmp_path}", tmp_path.parent / "cache2")
    assert [path.name for path in local.rglob("[!.]*")] == ["a.txt"]
