"""What a rule for splitting an operator sees, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mindspeed_ms.parallel.plan.strategy.graph import Graph, Operator, Shape, Value
from mindspeed_ms.parallel.plan.strategy.spread import Axes, Mesh, Spread, whole


@dataclass(frozen=True)
class View:
    """What a rule sees: the operator, and of each tensor input its shape and spread (None: a weight or a constant)."""

    graph: Graph
    operator: Operator
    mesh: Mesh
    shapes: tuple[Shape, ...]
    spreads: tuple[Spread | None, ...]
    weights: tuple[bool, ...]
    may_split: bool  # a weight by the tensor axis

    @property
    def result(self) -> Shape:
        """The shape of the first output."""
        return self.operator.shapes[0]

    def spread(self, index: int) -> Spread:
        """The spread of an input, of a weight or a constant that of a whole tensor."""
        return self.spreads[index] or whole(len(self.shapes[index]))

    def constant(self, index: int) -> Value:
        """The constant at a place among all inputs, not the tensors alone."""
        return self.graph.constant(self.operator, index)

    def axis(self, index: int, rank: int, default: int = -1) -> tuple[int, ...]:
        """Dimensions named by the constant at `index`, counted from the left; all of them where it is ()."""
        value = self.constant(index)
        if value is None:
            value = default
        axes = value if isinstance(value, tuple) else (value,)
        return tuple(int(axis) % rank for axis in axes if isinstance(axis, int)) if axes else tuple(range(rank))


@dataclass(frozen=True)
class Split:
    """How an operator is split: what it takes of each tensor input, how its outputs lie, and what it sums over.

    `gathers`: an input that lies otherwise is moved, rather than the weight before it kept whole.
    """

    inputs: tuple[Spread, ...]
    outputs: tuple[Spread, ...]
    sums: Axes = ()
    gathers: bool = False
    known: bool = True
    columns: bool = False  # a weight's output features are split here


Rule = Callable[[View], Split]
