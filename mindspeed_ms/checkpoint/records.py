"""What a store hands to its caller: a commit that was made, one that was read, and what is wrong with one."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.errors import CheckpointError


class NotFinite(CheckpointError):
    """A tensor that must be finite holds NaN or an infinity; nothing was committed."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"step {step}: tensor {name!r} is not finite; nothing was saved")
        self.step, self.name = step, name


class OtherCheckpoint(CheckpointError):
    """A commit of another model or format version: whole, but not for this run or program."""


class Unreadable(CheckpointError):
    """What this process may not or cannot read just now; it may well be whole."""


NOT_DAMAGE = frozenset(
    (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT)
)


def no_read(path: Path, error: OSError) -> CheckpointError:
    """What to raise where a file cannot be read: damage, or what says nothing of the file."""
    if error.errno in NOT_DAMAGE:
        return Unreadable(f"{path}: cannot be read ({error.strerror}); see to that and try again")
    found = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
    return CheckpointError(f"{path}: {found}; the checkpoint is damaged")


@dataclass(frozen=True)
class Saved:
    """A commit: its manifest, what was written for it and what it holds (bytes), and what it took (seconds)."""

    step: int
    path: str
    bytes: int
    raw_bytes: int
    seconds: float = 0.0
    """Of the background thread."""
    blocked: float = 0.0
    """Inside `save`, where the caller waited."""
    base: bool = True


@dataclass(frozen=True)
class Checkpoint:
    """A commit that was read and verified. `tensors` are read when asked for by name."""

    step: int
    tensors: Mapping[str, np.ndarray]
    state: dict[str, Any]
    identity: dict[str, str] = field(default_factory=dict)
    metric: float | None = None
    layout: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """{"shape": of the global tensor, "offset": of this part}, of the tensors that are a part."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with the commit of a step; `message` is one line that names the file."""

    step: int
    message: str
