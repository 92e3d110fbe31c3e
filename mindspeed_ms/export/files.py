"""Opening a bundle's files as an outsider's: regular files inside the bundle only, hashed as they are read."""

import errno
import hashlib
import os
import stat
from pathlib import Path

from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.schema import FileInfo

_CHUNK = 1 << 20


def open_file(folder: Path, name: str) -> int:
    """A read-only descriptor of folder/name. Raises BundleError for links, devices, and files that are not there."""
    path = folder / name
    try:
        # Without O_NONBLOCK a named pipe would hang here, before it is recognised.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file; the bundle is incomplete, copy or export it again") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f"{path}: is a symbolic link, expected a regular file inside the bundle") from None
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BundleError(f"{path}: is no regular file, expected one; copy or export the bundle again")
    return handle


def read_file(folder: Path, name: str, limit: int, expected: FileInfo | None = None) -> bytes:
    """The bytes of a small file. Raises BundleError when it is larger than `limit` or not what `expected` says."""
    with os.fdopen(open_file(folder, name), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise BundleError(f"{folder / name}: larger than {limit} bytes; this is no bundle of ours")
    if expected is not None:
        _compare(folder / name, len(data), hashlib.sha256(data).hexdigest(), expected)
    return data


def check_file(folder: Path, name: str, expected: FileInfo) -> None:
    """Compares size and checksum, without mapping the file. Raises BundleError naming it."""
    with os.fdopen(open_file(folder, name), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size:  # no need to read what cannot be right
            _compare(folder / name, size, expected.sha256, expected)
        digest = hashlib.sha256()
        buffer = bytearray(_CHUNK)
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    _compare(folder / name, size, digest.hexdigest(), expected)


def describe_file(path: Path) -> FileInfo:
    """Checksum and size of a file just written."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return FileInfo(sha256=digest.hexdigest(), size=path.stat().st_size)


def _compare(path: Path, size: int, sha256: str, expected: FileInfo) -> None:
    remedy = "copy or export the bundle again"
    if path.name.endswith(".mindir"):
        remedy += ", or run `mindspeed-ms export --refresh` on it"
    if size != expected.size:
        raise BundleError(f"{path}: {size} bytes, bundle.json says {expected.size}; {remedy}")
    if sha256 != expected.sha256:
        found, wanted = sha256[:12], expected.sha256[:12]
        raise BundleError(f"{path}: changed since the export (SHA-256 {found}..., not {wanted}...); {remedy}")
