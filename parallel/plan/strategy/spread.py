"""How tensors are split while a graph is walked: for each dimension, the axes of the device mesh that split it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mindspeed_ms.parallel.plan.strategy.layout import ALL, WHOLE, Layout, Shape, squeezed

DATA, CONTEXT, TENSOR = "data", "context", "tensor"
Axes = tuple[str, ...]
Spread = tuple[Axes, ...]  # one entry a dimension; () is a dimension that is whole


@dataclass(frozen=True)
class Mesh:
    """The devices of one stage: data outermost, tensor innermost."""

    data: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        """How many devices one stage has."""
        return self.data * self.context * self.tensor

    def size(self, axes: Axes) -> int:
        """Into how many parts these axes split a dimension."""
        return math.prod({DATA: self.data, CONTEXT: self.context, TENSOR: self.tensor}[axis] for axis in axes)

    def strategy(self, spread: Spread) -> Shape:
        """What MindSpore calls the strategy of a tensor: the number of parts of each dimension."""
        return tuple(self.size(axes) for axes in spread)

    def used(self, *axes: str) -> Axes:
        """Those of the axes that have more than one device."""
        return tuple(axis for axis in axes if self.size((axis,)) > 1)

    def weight_layout(self, spread: Spread, shape: Shape, optimizer: bool) -> Layout:
        """The layout of a weight, which only the tensor axis may split.

        `optimizer`: all ranks with the same slice share it too, if they divide its rows; MindSpore writes -1 for all.
        """
        tensor_map = tuple(0 if TENSOR in axes else WHOLE for axes in spread)
        layout = Layout(*squeezed((self.data * self.context, self.tensor), tensor_map), shape)
        rows = shape[0] // layout.splits[0] if shape else 1
        if not optimizer or layout.replicas == 1 or rows % layout.replicas:
            return layout
        step = self.tensor if layout.replicas < layout.devices else 1
        return Layout(layout.dev_matrix, layout.tensor_map, shape, step, ALL)


def whole(rank: int) -> Spread:
    """A tensor that no axis splits."""
    return ((),) * rank


def broadcast(spreads: Sequence[tuple[Spread, Shape]], shape: Shape) -> Spread:
    """How the result of an elementwise operator is split: as its inputs are, the first of them first.

    A dimension is taken from the first input that splits it; an axis splits one dimension only.
    """
    found: list[Axes] = [()] * len(shape)
    taken: set[str] = set()
    for spread, sizes in spreads:
        offset = len(shape) - len(sizes)
        for index, (axes, size) in enumerate(zip(spread, sizes, strict=True)):
            if axes and size == shape[offset + index] and not found[offset + index] and not taken & set(axes):
                found[offset + index] = axes
                taken |= set(axes)
    return tuple(found)


def narrowed(spread: Spread, shape: Shape, own: Shape) -> Spread:
    """The part of a result's spread that an input of shape `own` has: dimensions of 1 and missing ones have none."""
    offset = len(shape) - len(own)
    return tuple(spread[offset + i] if size == shape[offset + i] and size > 1 else () for i, size in enumerate(own))


def reshaped(spread: Spread, old: Shape, new: Shape, mesh: Mesh) -> tuple[Spread, frozenset[str]]:
    """The spread after a reshape, and the axes that cannot be kept: their parts would not lie together.

    Dimensions are matched in groups of equal product. Within a group the split must be of the outermost part.
    """
    found: list[Axes] = [()] * len(new)
    lost: set[str] = set()
    for olds, news in _groups(old, new):
        axes: list[str] = []
        full = True
        for index in olds:
            if spread[index] and not full:
                lost |= set(spread[index])
            elif spread[index]:
                axes += spread[index]
            full = full and mesh.size(spread[index]) == old[index]
        _deal(axes, news, new, mesh, found, lost)
    return tuple(found), frozenset(lost)


def _deal(axes: list[str], news: range, new: Shape, mesh: Mesh, found: list[Axes], lost: set[str]) -> None:
    """Gives the axes, outermost first, to the dimensions of a group."""
    places = [index for index in news if new[index] > 1]
    for position, axis in enumerate(axes):
        while places and mesh.size(found[places[0]]) == new[places[0]]:
            places.pop(0)
        if not places or new[places[0]] % mesh.size((*found[places[0]], axis)):
            lost |= set(axes[position:])
            return
        found[places[0]] = (*found[places[0]], axis)


def _groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Runs of dimensions of both shapes with the same product, as short as can be."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_old, first_new, left, right = i, j, 1, 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        groups.append((range(first_old, i), range(first_new, j)))
    return groups
