"""Whether a strategy file belongs to a graph: every name, the rank of every input, every shape and every division."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import total
from mindspeed_ms.parallel.plan.strategy.graph import Graph, Operator, Shape
from mindspeed_ms.parallel.plan.strategy.layout import Layout, checked
from mindspeed_ms.parallel.plan.strategy.make import Strategy, StrategyFile, parameter_keys
from mindspeed_ms.parallel.plan.strategy.stages import count_layers

_TOLERANCE = 0.01
_REMEDY = "write the files again from the graph of this network"


def check(files: Sequence[StrategyFile], graph: Graph, where: str = "strategy") -> None:
    """Compares the files of all stages with the graph of the network.

    Raises ConfigError naming the first operator or parameter that differs, and how.
    """
    keys = parameter_keys(graph)
    for file in files:
        here = f"{where}: stage {file.stage}"
        for name, strategy in file.operators.items():
            operator = graph.split_operators.get(keys.get(name, name))
            if operator is None:
                raise ConfigError(
                    f"{here}: operator {name} is not in {graph.where}: the file is for another network; {_REMEDY}"
                )
            _operator(operator, strategy, graph, f"{here}: operator {name}")
        for name, layout in file.layouts.items():
            # an optimizer's state has a word before the name of its parameter
            own = name if name in graph.parameters else name.partition(".")[2]
            if own not in graph.parameters:
                raise ConfigError(
                    f"{here}: parameter {name} is not in {graph.where}: the file is for another network; {_REMEDY}"
                )
            _parameter(layout, graph.parameters[own].shape, f"{here}: parameter {name}")
    _complete(files, graph, keys, where)


def check_network(graph: Graph, model: ModelShape) -> None:
    """Whether a graph can be that of a plan's model. Raises ConfigError that says in what they differ.

    Names are the exporter's, so layers and numbers are compared; tables of positions or a padded vocabulary may differ.
    """
    here = f"{graph.where} is the graph of another network than {model.name}"
    layers = count_layers(graph)
    if layers != model.layers:
        raise ConfigError(f"{here}: it has {layers} layers, expected {model.layers}; export {model.name}")
    numbers, expected = sum(math.prod(one.shape) for one in graph.parameters.values()), total(model)
    if abs(numbers - expected) > _TOLERANCE * expected:
        raise ConfigError(
            f"{here}: its parameters are {numbers} numbers, expected about {expected}; export {model.name}"
        )


def _operator(operator: Operator, strategy: Strategy, graph: Graph, where: str) -> None:
    shapes = [graph.shape(value) or () for value in graph.tensors(operator)]
    if len(strategy) != len(shapes):
        raise ConfigError(
            f"{where} has {len(strategy)} strategies, expected {len(shapes)}, one for each tensor that the operator "
            f"takes in {graph.where}; {_REMEDY}"
        )
    for index, (dims, shape) in enumerate(zip(strategy, shapes, strict=True)):
        if len(dims) != len(shape):
            raise ConfigError(
                f"{where} splits input {index} as {list(dims)}, expected {len(shape)} numbers: in {graph.where} it "
                f"has the shape {list(shape)}; {_REMEDY}"
            )
        if any(size % parts for size, parts in zip(shape, dims, strict=True)):
            raise ConfigError(
                f"{where} splits input {index} as {list(dims)}, expected divisors of its shape {list(shape)} in "
                f"{graph.where}; {_REMEDY}"
            )


def _parameter(layout: Layout, shape: Shape, where: str) -> None:
    if layout.shape and layout.shape != shape:
        raise ConfigError(f"{where} has the shape {list(layout.shape)}, expected {list(shape)}; {_REMEDY}")
    if len(layout.tensor_map) != len(shape):
        raise ConfigError(
            f"{where} has {len(layout.tensor_map)} dimensions, expected {len(shape)}: its shape is {list(shape)}; "
            f"{_REMEDY}"
        )
    checked(Layout(layout.dev_matrix, layout.tensor_map, shape, layout.opt_step, layout.opt_size), where)


def _complete(files: Sequence[StrategyFile], graph: Graph, keys: dict[str, str], where: str) -> None:
    known = {name for file in files for name in file.layouts}
    for name in graph.parameters:
        if name not in known:
            raise ConfigError(f"{where}: parameter {name} of {graph.where} has no layout in any stage; {_REMEDY}")
    found = {name for file in files for name in file.operators}
    for key, name in keys.items():
        if key not in found and name not in found:
            raise ConfigError(f"{where}: operator {name} of {graph.where} has no strategy in any stage; {_REMEDY}")
    devices = {layout.devices for file in files for layout in file.layouts.values()}
    if len(devices) > 1:
        numbers = ", ".join(map(str, sorted(devices)))
        raise ConfigError(f"{where}: the layouts are for {numbers} devices, expected one number for all; {_REMEDY}")
