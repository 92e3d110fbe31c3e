"""How one tensor is spread over the devices of a stage, in MindSpore's terms, and which rank holds which part.

MindSpore, frontend/parallel/tensor_layout: `dev_matrix` is the shape of the devices, the last axis over neighbours;
`tensor_map` names for each dimension the axis that splits it, counted from the right, or -1. With an optimizer that is
spread too, the ranks with one slice keep `opt_size` parts of it between them, cut along the first dimension (-1: as
many parts as there are such ranks); neighbours among those are `opt_step` ranks apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindspeed_ms.errors import ConfigError

Shape = tuple[int, ...]
WHOLE = -1  # in tensor_map
ALL = -1  # in opt_size
_MOST_DEVICES = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The layout of one parameter; `shape` is the whole one, empty where a file does not say it (protobuf)."""

    dev_matrix: Shape
    tensor_map: Shape
    shape: Shape = ()
    opt_step: int = 0
    opt_size: int = 0

    @property
    def devices(self) -> int:
        """How many devices the layout spreads over: those of one stage."""
        return math.prod(self.dev_matrix)

    @property
    def splits(self) -> Shape:
        """Into how many parts each dimension goes, the optimizer's parts not counted."""
        return tuple(1 if axis == WHOLE else self.dev_matrix[-1 - axis] for axis in self.tensor_map)

    @property
    def replicas(self) -> int:
        """How many ranks have the same slice, the optimizer's parts not counted."""
        return self.devices // math.prod(self.splits)

    @property
    def opt_parts(self) -> int:
        """Into how many parts the optimizer cuts a slice; 1: it does not."""
        return self.replicas if self.opt_size == ALL else max(1, self.opt_size)

    @property
    def slice_shape(self) -> Shape:
        """The shape that one rank holds; empty where the whole shape is not known."""
        if not self.shape:
            return ()
        first, *rest = (size // parts for size, parts in zip(self.shape, self.splits, strict=True))
        return (first // self.opt_parts, *rest)

    def coordinates(self, rank: int) -> Shape:
        """Where a rank of the stage is in the matrix of devices."""
        found = []
        for size in reversed(self.dev_matrix):
            rank, at = divmod(rank, size)
            found.append(at)
        return tuple(reversed(found))

    def part(self, rank: int) -> Shape:
        """Which part of each dimension a rank holds, the optimizer's parts not counted."""
        at = self.coordinates(rank)
        return tuple(0 if axis == WHOLE else at[-1 - axis] for axis in self.tensor_map)

    def slice_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """What a rank of the stage holds of the whole array: a view."""
        index = tuple(
            slice(at * (size // parts), (at + 1) * (size // parts))
            for size, parts, at in zip(whole.shape, self.splits, self.part(rank), strict=True)
        )
        found = whole[index]
        if self.opt_parts > 1:
            size = found.shape[0] // self.opt_parts
            at = rank // self.opt_step % self.opt_parts
            found = found[at * size : (at + 1) * size]
        return found

    def split_groups(self) -> tuple[Shape, ...]:
        """The groups of ranks of the stage that hold one copy of the tensor between them; empty: none is split."""
        used = {len(self.dev_matrix) - 1 - axis for axis in self.tensor_map if axis != WHOLE}
        if all(self.dev_matrix[axis] == 1 for axis in used):
            return ()
        groups: dict[Shape, list[int]] = {}
        for rank in range(self.devices):
            at = self.coordinates(rank)
            groups.setdefault(tuple(-1 if i in used else value for i, value in enumerate(at)), []).append(rank)
        return tuple(tuple(group) for group in groups.values())


def checked(layout: Layout, where: str) -> Layout:
    """The layout, if it is one. Raises ConfigError that names what is wrong; `where` names file and parameter."""
    if not layout.dev_matrix or min(layout.dev_matrix) < 1:
        raise ConfigError(f"{where}: dev_matrix is {list(layout.dev_matrix)}, expected sizes of at least 1")
    if layout.devices > _MOST_DEVICES:
        raise ConfigError(
            f"{where}: dev_matrix is {_short(layout.dev_matrix)}, expected at most {_MOST_DEVICES} devices"
        )
    for axis in layout.tensor_map:
        if not WHOLE <= axis < len(layout.dev_matrix):
            raise ConfigError(
                f"{where}: tensor_map holds {axis}, expected -1 or an axis of dev_matrix {list(layout.dev_matrix)}, "
                f"counted from the right: at most {len(layout.dev_matrix) - 1}"
            )
    used = [axis for axis in layout.tensor_map if axis != WHOLE]
    if len(set(used)) < len(used):
        raise ConfigError(f"{where}: tensor_map is {list(layout.tensor_map)}, expected each axis at most once")
    if layout.opt_size < ALL or layout.opt_step < 0 or (layout.opt_parts > 1) > (layout.opt_step > 0):
        raise ConfigError(
            f"{where}: opt_weight_shard_size {layout.opt_size} and opt_weight_shard_step {layout.opt_step}, expected "
            "-1 or more, and with more than one part a step of at least 1"
        )
    if layout.shape:
        _divides(layout, where)
    return layout


def _short(numbers: Shape) -> str:
    text = str(list(numbers[:8]))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _divides(layout: Layout, where: str) -> None:
    if len(layout.shape) != len(layout.tensor_map):
        raise ConfigError(
            f"{where}: tensor_map has {len(layout.tensor_map)} entries, expected one for each of the "
            f"{len(layout.shape)} dimensions of {list(layout.shape)}"
        )
    for size, parts in zip(layout.shape, layout.splits, strict=True):
        if size % parts:
            raise ConfigError(f"{where}: a dimension of {size} goes into {parts} parts, expected a divisor of {size}")
    if layout.opt_parts > 1 and layout.shape[0] // layout.splits[0] % layout.opt_parts:
        raise ConfigError(
            f"{where}: opt_weight_shard_size makes {layout.opt_parts} parts, expected a divisor of the "
            f"{layout.shape[0] // layout.splits[0]} rows of a slice"
        )


def squeezed(dev_matrix: Sequence[int], tensor_map: Sequence[int]) -> tuple[Shape, Shape]:
    """Both without the axes of size 1, as MindSpore saves them; the map is numbered again."""
    kept = [axis for axis in range(len(dev_matrix)) if dev_matrix[-1 - axis] > 1]
    renumbered = {axis: number for number, axis in enumerate(kept)}
    matrix = tuple(dev_matrix[-1 - axis] for axis in reversed(kept)) or (1,)
    return matrix, tuple(renumbered.get(axis, WHOLE) for axis in tensor_map)
