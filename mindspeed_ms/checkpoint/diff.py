"""What differs between two commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.reader import Tensors
from mindspeed_ms.checkpoint.records import Checkpoint


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that only one commit has, that is of another dtype or shape, or of which values changed.

    what: added, removed, reshaped or changed. changed: the values that are not the same bits, of `total`.
    largest: the greatest absolute difference, NaN where a difference is; None for what was not compared.
    """

    name: str
    what: str
    changed: int
    total: int
    largest: float | None = None


@dataclass(frozen=True)
class StateDifference:
    """A value of the state by its keys, joined by dots; None where a commit has none."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Difference:
    tensors: list[TensorDifference]
    state: list[StateDifference]


def diff(before: Checkpoint, after: Checkpoint) -> Difference:
    """From one commit to another. Raises CheckpointError for damage."""
    names = sorted(set(before.tensors) | set(after.tensors))
    tensors = [found for name in names if (found := _tensor(name, before.tensors, after.tensors)) is not None]
    old, new = dict(_leaves(before.state)), dict(_leaves(after.state))
    keys = sorted(key for key in old.keys() | new.keys() if (key in old, old.get(key)) != (key in new, new.get(key)))
    return Difference(tensors, [StateDifference(key, old.get(key), new.get(key)) for key in keys])


def _tensor(name: str, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> TensorDifference | None:
    if name not in before or name not in after:
        there = after if name in after else before
        size = there[name].size
        return TensorDifference(name, "added" if there is after else "removed", size, size)
    bits = ""
    if isinstance(before, Tensors) and isinstance(after, Tensors):
        old, new = before.entries[name], after.entries[name]
        if (old.chunks, old.shape, old.dtype) == (new.chunks, new.shape, new.dtype):
            return None  # one file's bytes serve both
        bits = "bfloat16" if "bfloat16" in (old.dtype, new.dtype) else ""
    first, second = before[name], after[name]
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return TensorDifference(name, "reshaped", second.size, second.size)
    raw = f"u{first.itemsize}"
    changed = np.flatnonzero(first.reshape(-1).view(raw) != second.reshape(-1).view(raw))
    if not changed.size:
        return None
    pair = [_wide(array.reshape(-1)[changed], bits) for array in (first, second)]
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(pair[1] - pair[0]).max())
    return TensorDifference(name, "changed", int(changed.size), first.size, largest)


def _wide(values: np.ndarray, bits: str) -> np.ndarray:
    if bits == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.longdouble)  # which holds an int64


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    else:
        yield key, value
