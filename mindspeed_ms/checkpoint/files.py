"""Every access to the disk that a store makes, in one class: tests put one in its place that fails as disks do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

_DIRECT = getattr(os, "O_DIRECT", 0)
_SYNC_EVERY = 32 << 20


class Files:
    """The file system. Each method raises OSError."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def open_new(self, path: Path, *, direct: bool = False) -> int:
        """Create a file to write; `direct`: past the page cache, EINVAL where the file system has no such thing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(path, flags | (_DIRECT if direct else 0), 0o644)

    def open_read(self, path: Path, *, direct: bool = False) -> int:
        """Open a plain file; a link, a pipe or a device is EINVAL."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # to open a pipe is to wait for its writer
        try:
            handle = os.open(path, flags | (_DIRECT if direct else 0))
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.EINVAL, "a symbolic link, not a plain file", str(path)) from None
            raise
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file", str(path))

    def open_lock(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def pwrite(self, handle: int, data: memoryview, offset: int) -> None:
        """Write all of it."""
        while data:
            written = os.pwrite(handle, data, offset)
            data, offset = data[written:], offset + written

    def pread(self, handle: int, out: memoryview, offset: int) -> int:
        """Fill `out` as far as the file goes; returns the bytes that were read."""
        done = 0
        while done < len(out):
            count = os.preadv(handle, [out[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def leave_direct(self, handle: int) -> None:
        """Go on through the page cache."""
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~_DIRECT)

    def release(self, handle: int, end: int, length: int) -> None:
        """After `length` bytes were written up to `end` through the page cache: now and then write back and let go."""
        if end // _SYNC_EVERY > (end - length) // _SYNC_EVERY:
            os.fdatasync(handle)
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, end, os.POSIX_FADV_DONTNEED)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def fsync_folder(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def file_size(self, path: Path) -> int:
        """Of a plain file, by its name."""
        found = os.stat(path, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return found.st_size

    def free_bytes(self, folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def read_all(self, path: Path, limit: int) -> bytes:
        """A small file's content; longer than `limit` is EFBIG."""
        handle = self.open_read(path)
        try:
            size = self.size(handle)
            if size > limit:
                raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
            data = bytearray(size)
            return bytes(data[: self.pread(handle, memoryview(data), 0)])
        finally:
            self.close(handle)

    def replace(self, path: Path, temporary: Path, data: bytes) -> None:
        """Write `path` whole or not at all, by way of `temporary`. The folder is not synced."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(temporary)
        handle = self.open_new(temporary)
        try:
            self.pwrite(handle, memoryview(data), 0)
            self.fsync(handle)
        finally:
            self.close(handle)
        self.rename(temporary, path)


FILES = Files()
