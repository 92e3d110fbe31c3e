"""Where this package writes on a user's behalf when no path is given, and under which name until it is complete.

And how a file is opened that somebody else names: it may be a pipe or a device.
"""

import contextlib
import errno
import glob
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

from mindspeed_ms.errors import ConfigError

_ABANDONED_SECONDS = 600  # a process of another machine, whose number means nothing here, would have written since


def cache_dir() -> Path:
    """The user's cache folder, not created: MINDSPEED_MS_CACHE, else mindspeed-ms under XDG_CACHE_HOME or ~/.cache.

    Raises ConfigError when that is in a home directory and there is none.
    """
    chosen = os.environ.get("MINDSPEED_MS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(base) if base else Path.home() / ".cache") / "mindspeed-ms"
    except RuntimeError:  # no such user, or a user without a home
        raise ConfigError(
            f"MINDSPEED_MS_CACHE={chosen or ''}: there is no home directory to put it in; set it to a folder's path"
        ) from None


def open_regular(path: str | Path) -> BinaryIO:
    """Open a plain file to read, unbuffered. Raises OSError, also for a pipe or device: they wait or go on for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # to open a pipe is to wait for its writer
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return open(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | Path, limit: int) -> bytes:
    """The content of a plain file. Raises OSError as `open_regular` does, and when it is longer than `limit` bytes."""
    with open_regular(path) as file:
        content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        while len(content) <= limit and (piece := file.read(1 << 16)):
            content += piece
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
    return content


def partial_path(out: Path) -> Path:
    """Where this thread of this process writes what will become `out`."""
    return out.parent / f".{out.name}.{os.getpid()}-{threading.get_native_id()}.partial"


def write_whole(path: str | Path, data: bytes, mode: int | None = None) -> Path:
    """Write a file that is there wholly or not at all; into a link, pipe or device as it is. Raises ConfigError."""
    path = Path(path)
    partial = partial_path(path)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout is not to be replaced by a file
            path.write_bytes(data)
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                partial.chmod(mode)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); give another place") from None
    return path


def remove_abandoned(out: Path) -> None:
    """Remove what killed processes left of `out`: nothing of a process that lives or wrote in the last ten minutes."""
    for path in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        number = path.name.split(".")[-2].partition("-")[0]
        with contextlib.suppress(OSError):  # another process may tidy at the same time
            newest = max(item.lstat().st_mtime for item in (path, *(path.iterdir() if path.is_dir() else ())))
            if number.isdigit() and not _lives(int(number)) and time.time() - newest > _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
