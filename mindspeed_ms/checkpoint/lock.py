"""One writer a store at a time."""

from __future__ import annotations

import fcntl
import os
import socket
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

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()
