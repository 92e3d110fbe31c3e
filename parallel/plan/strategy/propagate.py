"""The split of every operator and weight of a graph, found by walking it from its inputs.

Where a weight's split cannot be carried on (heads that a reshape would tear apart, a sum with a whole tensor), that
weight is kept whole and the walk goes back to it; what still does not fit is listed as a redistribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy.graph import PASSING, Graph, Operator, Shape
from mindspeed_ms.parallel.plan.strategy.operators import Split, View, split
from mindspeed_ms.parallel.plan.strategy.spread import CONTEXT, DATA, TENSOR, Mesh, Spread, whole


@dataclass(frozen=True)
class Redistribution:
    """An input that lies otherwise than its operator takes it; MindSpore moves it.

    `local`: each device has all it needs and takes its part; else the devices of the stage exchange parts.
    """

    operator: str
    value: str
    have: Spread
    want: Spread
    local: bool


@dataclass(frozen=True)
class Splits:
    """The splits of a graph over one mesh."""

    mesh: Mesh
    operators: Mapping[str, Split]  # by full name
    weights: Mapping[str, Spread]
    redistributions: tuple[Redistribution, ...]
    kept_whole: tuple[str, ...]  # operators whose weight could have been split, but not carried on
    unknown: tuple[str, ...]  # kinds of operators without a rule, taken whole


class _KeepWholeError(Exception):
    def __init__(self, operators: frozenset[str]) -> None:
        super().__init__()
        self.operators = operators


def propagate(graph: Graph, mesh: Mesh) -> Splits:
    """Raises ConfigError for custom operators, and for a batch or sequence that the mesh does not divide."""
    _splittable(graph, mesh)
    walk = _Walk(graph, mesh)
    walk.run()
    moves = tuple(move for operator in graph.operators for move in walk.moves.get(operator.name, ()))
    weights = {name: spread for name, (spread, _) in walk.weights.items()}
    return Splits(mesh, walk.splits, weights, moves, tuple(sorted(walk.kept)), tuple(sorted(walk.unknown)))


def _splittable(graph: Graph, mesh: Mesh) -> None:
    for operator in graph.operators:
        if operator.kind == "Custom":
            raise ConfigError(
                f"{graph.where}: {operator.name} is a Custom operator, whose split MindSpore takes from the operator "
                "itself and from no file; export the network with MINDSPEED_MS_KERNELS=reference"
            )
    for name, shape in graph.inputs.items():
        for size, axis, what in zip(shape, (DATA, CONTEXT), ("batch", "sequence length"), strict=False):
            parts = mesh.size((axis,))
            if size % parts:
                raise ConfigError(
                    f"{graph.where}: input {name} has the {what} {size}, which does not go into {parts} equal parts; "
                    f"export the network with a multiple of {parts}"
                )


@dataclass
class _Walk:
    graph: Graph
    mesh: Mesh
    kept: set[str] = field(default_factory=set)
    splits: dict[str, Split] = field(default_factory=dict)
    weights: dict[str, tuple[Spread, str]] = field(default_factory=dict)  # and the operator that said so
    moves: dict[str, list[Redistribution]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    # Of each value: how it lies, and which splits of weights made it so.
    spreads: dict[str, tuple[Spread, ...]] = field(default_factory=dict)
    origins: dict[str, frozenset[str]] = field(default_factory=dict)

    def run(self) -> None:
        for name, shape in self.graph.inputs.items():
            axes = (self.mesh.used(DATA), self.mesh.used(CONTEXT))
            self.spreads[name] = ((*axes[: len(shape)], *whole(max(0, len(shape) - 2))),)
        operators = self.graph.operators
        places = {operator.name: index for index, operator in enumerate(operators)}
        at = 0
        while at < len(operators):
            try:
                self._step(operators[at])
                at += 1
            except _KeepWholeError as conflict:
                self.kept |= conflict.operators
                first = min(places[name] for name in conflict.operators)
                self._forget(operators[first : at + 1])
                at = first
            except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
                operator = operators[at]
                raise ConfigError(
                    f"{self.graph.where}: {operator.name} has other inputs or shapes than a {operator.kind} can have: "
                    "the file is damaged; export the network again"
                ) from None

    def _step(self, operator: Operator) -> None:
        if operator.kind in PASSING:
            self._pass(operator, operator.inputs[0])
        elif operator.kind == "TupleGetItem":
            self._item(operator)
        elif operator.name in self.graph.split_operators:
            self._split(operator)

    def _forget(self, operators: Sequence[Operator]) -> None:
        names = {operator.name for operator in operators}
        for operator in operators:
            self.splits.pop(operator.name, None)
            self.moves.pop(operator.name, None)
            self.spreads.pop(operator.output, None)
        self.weights = {name: said for name, said in self.weights.items() if said[1] not in names}

    def _pass(self, operator: Operator, value: str) -> None:
        if value in self.spreads:
            self.spreads[operator.output] = self.spreads[value]
            self.origins[operator.output] = self.origins.get(value, frozenset())

    def _item(self, operator: Operator) -> None:
        index = self.graph.constant(operator, 1)
        found = self.spreads.get(operator.inputs[0], ())
        if isinstance(index, int) and index < len(found):
            self.spreads[operator.output] = (found[index],)
            self.origins[operator.output] = self.origins.get(operator.inputs[0], frozenset())

    def _split(self, operator: Operator) -> None:
        values = self.graph.tensors(operator)
        shapes = tuple(self.graph.shape(value) or () for value in values)
        given = tuple(self.spreads[value][0] if value in self.spreads else None for value in values)
        weights = tuple(self.graph.parameter(value) is not None for value in values)
        view = View(self.graph, operator, self.mesh, shapes, given, weights, operator.name not in self.kept)
        found = split(view)
        if not found.known:
            self.unknown.add(operator.kind)
        origins: set[str] = {operator.name} if found.columns and TENSOR not in found.sums else set()
        for value, have, want in zip(values, given, found.inputs, strict=True):
            if (parameter := self.graph.parameter(value)) is not None:
                self._weight(operator, parameter.name, want)
            elif have is not None:
                self._take(operator, value, have, want, found.gathers)
                origins |= self.origins.get(value, frozenset())
        self._agree(operator, values, given, shapes, found)
        self.splits[operator.name] = found
        self.spreads[operator.output] = found.outputs
        tensor = any(TENSOR in axes for spread in found.outputs for axes in spread)
        self.origins[operator.output] = frozenset(origins) if tensor and not found.gathers else frozenset()

    def _weight(self, operator: Operator, name: str, want: Spread) -> None:
        said, by = self.weights.setdefault(name, (want, operator.name))
        if said != want:  # one of both splits it
            raise _KeepWholeError(frozenset({operator.name, by} - self.kept))

    def _take(self, operator: Operator, value: str, have: Spread, want: Spread, gathers: bool) -> None:
        if have == want:
            return
        lost = any(TENSOR in a and TENSOR not in b for a, b in zip(have, want, strict=True))
        made = self.origins.get(value, frozenset())
        if lost and made and not gathers:
            raise _KeepWholeError(made)
        local = all(b[: len(a)] == a for a, b in zip(have, want, strict=True))
        self.moves.setdefault(operator.name, []).append(Redistribution(operator.name, value, have, want, local))

    def _agree(
        self,
        operator: Operator,
        values: tuple[str, ...],
        given: tuple[Spread | None, ...],
        shapes: tuple[Shape, ...],
        found: Split,
    ) -> None:
        """A whole activation beside one that a weight's split has cut: that weight is better kept whole."""
        if found.gathers or math.prod(self.mesh.strategy(found.outputs[0])) == 1:
            return
        for have, want in zip(given, found.inputs, strict=True):
            if have is None or not any(TENSOR in b and TENSOR not in a for a, b in zip(have, want, strict=True)):
                continue
            made = frozenset().union(*(self.origins.get(value, frozenset()) for value in values))
            if made:
                raise _KeepWholeError(made)


def spread_text(spread: Spread) -> str:
    """For people: `[data, -, tensor]`."""
    return "[" + ", ".join("*".join(axes) if axes else "-" for axes in spread) + "]"
