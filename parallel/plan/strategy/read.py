"""Strategy files read back, ours and MindSpore's: protobuf or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy import wire
from mindspeed_ms.parallel.plan.strategy.layout import Layout, Shape, checked
from mindspeed_ms.parallel.plan.strategy.make import Strategy, StrategyFile
from mindspeed_ms.paths import read_regular

_MOST_BYTES = 256 << 20
_REMEDY = "give a file that MindSpore or `mindspeed-ms plan` wrote"


def read_strategy(path: str | Path) -> StrategyFile:
    """One stage's file. Raises ConfigError that names the file and what is wrong in it."""
    path = Path(path)
    try:
        data = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a strategy file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    return from_json(data, str(path)) if path.suffix == ".json" else from_protobuf(data, str(path))


def from_json(data: bytes, where: str) -> StrategyFile:
    """The JSON form -> what it says. Raises ConfigError."""
    try:
        content = json.loads(data)
        strategies = {
            name: (_count(item["stage"]), tuple(_sizes(dims) for dims in item["parallel_strategy"]))
            for name, item in content.get("parallel_strategy_item", {}).items()
        }
        layouts = {name: _layout_json(item) for name, item in content.get("parallel_layout_item", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"{where}: is no strategy file: {reason}; {_REMEDY}") from None
    return _file(strategies, layouts, where)


def from_protobuf(data: bytes, where: str) -> StrategyFile:
    """The protobuf form -> what it says; it does not hold the shapes of parameters. Raises ConfigError."""
    try:
        fields = wire.parse(memoryview(data))
        strategies = {}
        for item in wire.messages(fields.get(2)):
            inner = wire.parse(wire.blob(item.get(2)))
            dims = tuple(tuple(wire.numbers(part.get(1, ()))) for part in wire.messages(inner.get(2)))
            strategies[wire.text(item.get(1))] = (wire.number(inner.get(1)), dims)
        layouts = {wire.text(item.get(1)): _layout(item) for item in wire.messages(fields.get(3))}
    except ValueError as error:
        raise ConfigError(f"{where}: is no strategy file: {error}; {_REMEDY}") from None
    return _file(strategies, layouts, where)


def _file(strategies: dict[str, tuple[int, Strategy]], layouts: dict[str, Layout], where: str) -> StrategyFile:
    if not strategies and not layouts:
        raise ConfigError(f"{where}: holds no strategy and no layout; {_REMEDY}")
    stages = {stage for stage, _ in strategies.values()}
    if len(stages) > 1:
        raise ConfigError(
            f"{where}: holds the stages {', '.join(map(str, sorted(stages)))}, expected one; give the file of one "
            "stage, not what merge_pipeline_strategys joined"
        )
    if min(stages, default=0) < 0:
        raise ConfigError(f"{where}: the stage is {min(stages)}, expected 0 or more; {_REMEDY}")
    for name, (_, strategy) in strategies.items():
        if any(size < 1 for dims in strategy for size in dims):
            raise ConfigError(f"{where}: {name}: strategy {strategy}, expected numbers of at least 1")
    for name, layout in layouts.items():
        checked(layout, f"{where}: {name}")
    operators = {name: strategy for name, (_, strategy) in strategies.items()}
    return StrategyFile(next(iter(stages), 0), operators, layouts)


def _layout(item: wire.Fields) -> Layout:
    inner = wire.parse(wire.blob(item.get(2)))
    matrices = [tuple(wire.numbers(part.get(1, ()))) for part in wire.messages(inner.get(1))]
    maps = [tuple(wire.numbers(part.get(1, ()))) for part in wire.messages(inner.get(2))]
    if len(matrices) != 1 or len(maps) != 1:
        raise ValueError(f"{wire.text(item.get(1))} has {len(matrices)} dev_matrix and {len(maps)} tensor_map, not one")
    return Layout(matrices[0], maps[0], (), wire.number(inner.get(6)), wire.number(inner.get(7)))


def _layout_json(item: dict[str, Any]) -> Layout:
    return Layout(
        _sizes(item["dev_matrix"]),
        _sizes(item["tensor_map"]),
        _sizes(item["tensor_shape"]),
        _count(item["opt_weight_shard_step"]),
        _count(item["opt_weight_shard_size"]),
    )


def _sizes(value: Any) -> Shape:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]} is no list of numbers")
    return tuple(_count(item) for item in value)


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:80]!r} is no whole number")
    return value
