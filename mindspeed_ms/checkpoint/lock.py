"""One writer a store at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref
from pathlib import Path

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.errors import CheckpointError

NAME = ".lock"


class Lock:
    """Held until `close` or the end of the process, whatever ends it. Raises CheckpointError, OSError.

    The file stays: to remove it would let two processes lock two files of one name.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._files = files
        self._handle: int | None = None
        handle = files.open_lock(folder / NAME)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # on a full disk the lock holds all the same: one may prune
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process"
            files.close(handle)
            raise CheckpointError(
                f"{folder}: another writer has these checkpoints ({owner}); wait for its end or choose another folder"
            ) from None
        except BaseException:
            files.close(handle)
            raise
        self._handle = handle
        _HELD.add(self)

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go() -> None:
    """In a process that was forked: its copy of a handle would hold the lock after its parent has gone."""
    for lock in list(_HELD):
        lock.close()


os.register_at_fork(after_in_child=_let_go)
