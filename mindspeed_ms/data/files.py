"""Files that are complete or not there, and their SHA-256."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from mindspeed_ms.data.manifest import FileEntry
from mindspeed_ms.errors import DataError
from mindspeed_ms.paths import open_regular

_PIECE = 4 << 20


class _Digest(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


Digest = TypeVar("Digest", bound=_Digest)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turns the errors of a full or failing disk into one line that says that nothing is lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"{where}: no space left on the disk; make room and run the same command again") from error
        raise DataError(f"{error.filename or where}: cannot be written ({error.strerror or error})") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write, fsync, rename, fsync the folder. Raises DataError."""
    temporary = path.with_name(f".{path.name}.partial")
    with disk_errors(path):
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Have a file's content on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file  # the same call: it makes the names in a folder last


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return feed(hashlib.sha256(), path).hexdigest()


def feed(digest: Digest, path: Path) -> Digest:
    """Update a digest with the content of a plain file, piece by piece; returns it. Raises OSError."""
    with open_regular(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest


def describe(folder: Path, path: Path) -> FileEntry:
    """The manifest's entry of a file in `folder`."""
    return FileEntry(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=sha256(path))


def locate(folder: Path, entry: FileEntry) -> Path:
    """The file of an entry: inside the folder, not by way of a link, of the right size. Raises DataError."""
    path = folder.joinpath(*entry.path.split("/"))
    if path.resolve() != folder.resolve().joinpath(*entry.path.split("/")):
        raise DataError(f"{path}: leads out of its set by a link; expected a plain file")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); the manifest names it") from None
    if not path.is_file() or size != entry.bytes:
        raise DataError(f"{path}: {size} bytes, the manifest says {entry.bytes}; it is damaged: prepare the set again")
    return path


def verify(folder: Path, entries: Iterable[FileEntry]) -> None:
    """Compare the size and SHA-256 of files with the manifest's. Raises DataError that names the first wrong one."""

    def check(entry: FileEntry) -> None:
        path = locate(folder, entry)
        try:
            found = sha256(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        if found != entry.sha256:
            raise DataError(f"{path}: its SHA-256 is not the manifest's; it is damaged: prepare the set again")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(check, entries):
            pass
