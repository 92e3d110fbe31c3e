"""One run a folder at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindspeed_ms.errors import TrainError

NAME = "run.lock"


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which goes with the process whatever ends it. Raises TrainError when another has it.

    The file stays: to remove it would let two processes lock two files of one name.
    """
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TrainError(f"{path}: cannot be made ({error.strerror}); give a folder that can be written") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 200).decode("utf-8", "replace").strip() or "another process"
            raise TrainError(
                f"{folder}: another run writes into it ({owner}); wait for its end or choose another folder"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)
