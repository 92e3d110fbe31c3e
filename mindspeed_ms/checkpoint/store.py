"""What keeps the checkpoints of a run, whatever their form on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Saved:
    """One checkpoint that was committed."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint that was read and verified. `tensors` are read when asked for by name."""

    step: int
    tensors: Mapping[str, np.ndarray]
    state: dict[str, Any]


class Store(Protocol):
    """Keeps a few checkpoints by step. A checkpoint is complete and verified, or it does not exist."""

    def save(self, step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> Saved:
        """Commit a checkpoint: on the disk when this returns. `state` is what JSON holds.

        Raises CheckpointError; the checkpoints before are then whole.
        """

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending; whether they are damaged is not looked at."""

    def load(self, step: int | None = None) -> Checkpoint | None:
        """The checkpoint of a step; or the newest that verifies, and None where there is no checkpoint at all.

        Raises CheckpointError when that of the step, or each of them, is damaged.
        """
