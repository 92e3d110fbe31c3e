"""Build the native kernel library at first use and find it again: one library an architecture and compiler."""

import ctypes
import errno
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import BuildError, ConfigError
from mindspeed_ms.paths import cache_dir

ABI = 1
SOURCES = Path(__file__).parent / "src"
# Portable files first: where the linker sees one inline function twice it keeps the first, which runs anywhere.
UNITS: dict[str, list[str]] = {
    "block_ops.cc": [],
    "attention_ops.cc": [],
    "basic_ops.cc": [],
    "train_linear.cc": [],
    "train_loss.cc": [],
    "train_attention.cc": [],
    "train_basic.cc": [],
    "train_optimizer.cc": [],
    "aside.cc": [],
    "checkpoint.cc": [],
    "pool.cc": [],
    "interrupt.cc": [],
    "library.cc": [],
    "kernels_portable.cc": [],
}
X86_UNITS: dict[str, list[str]] = {
    "kernels_avx2.cc": ["-mavx2", "-mfma", "-mf16c", "-mbmi2"],
    "kernels_avx512.cc": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        *("-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    ],
}
# The old string ABI is MindSpore's. Without contraction a compiler cannot fuse in one loop what it leaves apart in
# another, which would make a result depend on the number of rows.
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-D_GLIBCXX_USE_CXX11_ABI=0"),
    *("-Wall", "-Wextra", "-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
]
ISAS = ("portable", "avx2", "avx512")
# Never unloaded: MindSpore closes the library with the last graph, while our helper threads still run in it.
LINK = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"]
PREBUILT = Path(__file__).parent / "lib" / f"mindspeed_ms_cpu_{platform.machine()}.so"


def units() -> dict[str, list[str]]:
    """The translation units of this machine's architecture with their own flags."""
    return {**UNITS, **(X86_UNITS if platform.machine() in ("x86_64", "AMD64") else {})}


def find_compiler() -> str:
    """The C++ compiler: $CXX, else g++, else clang++. Raises BuildError when there is none."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++"]:
        if name and (found := shutil.which(name)):
            return found
    raise BuildError(
        f"no C++ compiler found ({wanted or 'g++ or clang++'} on PATH): the native kernels are built at first use; "
        "install g++ (Debian/Ubuntu: apt install g++), or set MINDSPEED_MS_KERNELS=reference where no bundle is run"
    )


def _mindspore_version() -> str:
    try:
        return metadata.version("mindspore")
    except metadata.PackageNotFoundError:
        return "none"


def _source_key() -> str:
    digest = hashlib.sha256(f"{ABI}|{platform.machine()}|{_mindspore_version()}|{FLAGS}|{LINK}|{units()}".encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cc", ".h", ".inl"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compiler_key(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return hashlib.sha256(version.encode()).hexdigest()[:8]


def _built_earlier() -> Path | None:
    """A library of these very sources, whatever compiler made it: enough for a host that has none."""
    return next(iter(sorted((cache_dir() / "native").glob(f"{_source_key()}-*/mindspeed_ms_cpu.so"))), None)


def compile_units(compiler: str, folder: Path, extra: list[str]) -> list[Path]:
    """Compile every unit into `folder`; raises BuildError with the compiler's first error line."""

    def one(item: tuple[str, list[str]]) -> Path:
        name, flags = item
        target = folder / f"{name}.o"
        command = [compiler, *FLAGS, *flags, *extra, "-c", str(SOURCES / name), "-o", str(target)]
        run(command)
        return target

    with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        return list(pool.map(one, units().items()))


def run(command: list[str]) -> None:
    """Run a compiler command; raises BuildError with its first error line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"{command[0]}: cannot be run ({error.strerror}); set CXX to a working C++ compiler"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        reason = lines[0].strip() if lines else f"exit code {done.returncode}"
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise BuildError(
                f"native kernels: the disk is full ({reason[-200:]}); free some space or set MINDSPEED_MS_CACHE and "
                "TMPDIR to folders that have some"
            )
        raise BuildError(f"native kernels: {reason}; {command[0]} 9 or newer with C++17 is expected")


def build(force: bool = False) -> Path:
    """Build the library into the cache unless it is there, and return its path; safe against concurrent builds.

    Raises BuildError when there is no compiler, the cache cannot be written, or compilation fails.
    """
    try:
        compiler = find_compiler()
    except BuildError:
        if not force and (earlier := _built_earlier()):
            return earlier
        raise
    target = cache_dir() / "native" / f"{_source_key()}-{_compiler_key(compiler)}" / "mindspeed_ms_cpu.so"
    if target.exists() and not force:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target.parent / "lock", "w") as lock:
            _exclusive(lock)
            if target.exists() and not force:
                return target
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                objects = compile_units(compiler, Path(scratch), [])
                library = Path(scratch) / target.name
                run([compiler, *LINK, *map(str, objects), "-o", str(library), "-lpthread"])
                os.replace(library, target)
    except OSError as error:
        raise BuildError(
            f"{target.parent}: cannot write the native library there ({error.strerror}); "
            "free some space or set MINDSPEED_MS_CACHE to a writable folder"
        ) from error
    return target


def _exclusive(lock: Any) -> None:
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)


def library_path() -> Path:
    """The path of the kernel library: the one a platform wheel ships, else the one built at first use."""
    return PREBUILT if PREBUILT.exists() else build()


def check_environment() -> None:
    """The library itself takes no notice of a setting it cannot follow. Raises ConfigError that names the variable."""
    threads = os.environ.get("MINDSPEED_MS_THREADS")
    if threads and not (threads.isascii() and threads.isdigit() and 1 <= int(threads[:9]) <= 1024):
        raise ConfigError(
            f"MINDSPEED_MS_THREADS={threads[:80]!r}: expected a whole number from 1 to 1024; unset it for all cores"
        )
    isa = os.environ.get("MINDSPEED_MS_ISA")
    if isa and isa not in ISAS:
        raise ConfigError(f"MINDSPEED_MS_ISA={isa[:80]!r}: expected {', '.join(ISAS)}; unset it for the best there is")


_loaded: dict[Path, ctypes.CDLL] = {}


def library() -> ctypes.CDLL:
    """The library, loaded, its ABI number checked. Raises BuildError, and ConfigError for a setting in vain."""
    check_environment()
    path = library_path()
    if path not in _loaded:
        try:
            lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"{path}: cannot be loaded ({error}); run `mindspeed-ms ops build --force`") from error
        lib.MsmsIsa.restype = ctypes.c_char_p
        lib.MsmsSeconds.restype = ctypes.c_double
        if lib.MsmsAbi() != ABI:
            raise BuildError(
                f"{path}: kernel ABI {lib.MsmsAbi()}, expected {ABI}; run `mindspeed-ms ops build --force`"
            )
        _loaded[path] = lib
    return _loaded[path]


def op_times() -> dict[str, tuple[float, int]]:
    """Seconds and calls of each native operator since the library was loaded, by the name of its entry point."""
    lib = library()
    lib.MsmsTimes.restype, lib.MsmsTimes.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_int64]
    size = lib.MsmsTimes(None, 0) + 4096  # operators may run meanwhile
    buffer = ctypes.create_string_buffer(size)
    used = lib.MsmsTimes(buffer, size)
    lines = buffer.raw[: min(size, used)].decode().splitlines()
    return {name: (int(spent) * 1e-9, int(calls)) for name, calls, spent in (line.rsplit(" ", 2) for line in lines)}


def info() -> dict[str, Any]:
    """What the library is and runs on: path, size, ABI, instruction set in use, threads, machine, MindSpore, origin."""
    lib = library()
    path = library_path()
    return {
        "library": str(path),
        "bytes": path.stat().st_size,
        "abi": lib.MsmsAbi(),
        "isa": lib.MsmsIsa().decode(),
        "threads": lib.MsmsThreads(),
        "architecture": platform.machine(),
        "mindspore": _mindspore_version(),
        "prebuilt": path == PREBUILT,
    }
