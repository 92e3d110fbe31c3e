"""Which pipeline stage each operator and parameter of a graph belongs to.

The first number in a parameter's name is its layer. An operator runs where the latest of what it needs is; what needs
no parameter (masks, rotary tables) runs wherever it is used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.graph import PASSING, Graph, Operator

_NUMBER = re.compile(r"(?:^|[./])(\d{1,6})(?=[./])")
_SCOPE = re.compile(r"/(\d{1,6})-")  # MindSpore names a cell of a list by its number and class


@dataclass(frozen=True)
class Stages:
    """The stages of each operator, by its full name, and of each parameter: several where they share it."""

    operators: Mapping[str, frozenset[int]]
    parameters: Mapping[str, frozenset[int]]


def find_stages(graph: Graph, settings: Settings) -> Stages:
    """Raises ConfigError when the settings' layers are not those of the graph."""
    chunks = _place(graph, _chunks(graph, settings))
    stages: dict[str, set[int]] = {value: {chunk % settings.pipeline} for value, chunk in chunks.items()}
    marks = {value for o in graph.operators if o.kind == "UpdateState" for value in o.inputs}
    for operator in reversed(graph.operators):
        for value in _used(operator, marks):
            if value not in chunks and operator.output in stages:
                stages.setdefault(value, set()).update(stages[operator.output])
    return Stages(
        {o.name: frozenset(stages.get(o.output, {0})) for o in graph.operators},
        {name: frozenset(stages.get(name, {0})) for name in graph.parameters},
    )


def _used(operator: Operator, marks: set[str]) -> tuple[str, ...]:
    """The inputs that are computed with: what only orders side effects takes the loads of all stages."""
    if operator.kind == "UpdateState" or (operator.kind == "MakeTuple" and operator.output in marks):
        return ()
    return operator.inputs[:1] if operator.kind in PASSING else operator.inputs


def layer_of(parameter: str) -> int | None:
    """The layer that a parameter's name tells; None of an embedding, a last norm or a head."""
    found = _NUMBER.search(parameter)
    return int(found.group(1)) if found else None


def count_layers(graph: Graph) -> int:
    """How many layers the parameters' names tell. Raises ConfigError where they leave one out."""
    numbers = {layer for name in graph.parameters if (layer := layer_of(name)) is not None}
    missing = next(layer for layer in range(len(numbers) + 1) if layer not in numbers)
    if missing < len(numbers):
        raise ConfigError(
            f"{graph.where}: parameters of the layer {max(numbers)}, but none of the layer {missing}; expected layers "
            "that are numbered from 0 in the names of parameters; export the whole network"
        )
    return len(numbers)


def _place(graph: Graph, chunk_of_layer: list[int]) -> dict[str, int]:
    """The chunk of each value that needs a parameter; loads of parameters without a layer are left out.

    Between two chunks an operator without parameters may be in either: the layer in its scope decides.
    """
    latest = _latest(graph, chunk_of_layer)
    chunks: dict[str, int] = {}
    for operator in graph.operators:
        owned = [parameter.name for value in operator.inputs if (parameter := graph.parameter(value)) is not None]
        if operator.kind in PASSING and owned and layer_of(owned[0]) is None:
            continue
        needs = [chunks[value] for value in operator.inputs if value in chunks]
        needs += [chunk_of_layer[layer] for name in owned if (layer := layer_of(name)) is not None]
        if not needs and not owned:
            continue
        earliest = max(needs, default=0)
        scope = _SCOPE.search(operator.name)
        wished = chunk_of_layer[int(scope.group(1))] if scope and int(scope.group(1)) < len(chunk_of_layer) else 0
        allowed = not owned and earliest < wished <= latest.get(operator.output, earliest)
        chunks[operator.output] = wished if allowed else earliest
    return chunks


def _latest(graph: Graph, chunk_of_layer: list[int]) -> dict[str, int]:
    """The last chunk in which each value can be made: the first that needs it."""
    found: dict[str, int] = {}
    for operator in reversed(graph.operators):
        owned = [graph.parameter(value) for value in operator.inputs]
        layers = [layer for p in owned if p is not None and (layer := layer_of(p.name)) is not None]
        own = min((chunk_of_layer[layer] for layer in layers), default=found.get(operator.output, chunk_of_layer[-1]))
        for value in operator.inputs:
            found[value] = min(found.get(value, own), own)
    return found


def _chunks(graph: Graph, settings: Settings) -> list[int]:
    layers = count_layers(graph)
    chunks = settings.pipeline * settings.virtual
    if settings.layers:
        if len(settings.layers) != chunks or sum(settings.layers) != layers:
            raise ConfigError(
                f"layers: {list(settings.layers)}, expected {chunks} numbers with the sum {layers}, the layers of "
                f"{graph.where}"
            )
        return list(itertools.chain.from_iterable([chunk] * n for chunk, n in enumerate(settings.layers)))
    if layers % chunks:
        fitting = ", ".join(str(n) for n in range(1, layers + 1) if layers % n == 0)
        raise ConfigError(
            f"pipeline: {chunks} parts do not divide the {layers} layers of {graph.where}; take one of {fitting}, or "
            "give the layers of each part"
        )
    return [layer * chunks // layers for layer in range(layers)] or [0]
