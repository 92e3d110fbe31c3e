"""Strategy files written as MindSpore writes them: protobuf (node_strategy.proto), or JSON where the name ends so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy import wire
from mindspeed_ms.parallel.plan.strategy.layout import Layout, Shape
from mindspeed_ms.parallel.plan.strategy.make import Strategy, StrategyFile
from mindspeed_ms.paths import write_whole

_CURRENT_STAGE = 1  # MindSpore counts the compilations that saved the file, from 1


def write_strategy(file: StrategyFile, path: str | Path) -> Path:
    """Writes one stage's file whole or not at all: JSON where the name ends in `.json`, else protobuf."""
    path = Path(path)
    return write_whole(path, to_json(file).encode() if path.suffix == ".json" else to_protobuf(file))


def write_strategies(files: tuple[StrategyFile, ...], folder: str | Path) -> list[Path]:
    """`stage_N.ckpt` and `stage_N.json` of every stage in the folder, which is made."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}); give another folder") from None
    return [write_strategy(file, folder / f"stage_{file.stage}{end}") for file in files for end in (".ckpt", ".json")]


def to_json(file: StrategyFile) -> str:
    """The JSON form, as StrategyCheckpointInfo::to_json has it."""
    content: dict[str, Any] = {
        "current_stage": _CURRENT_STAGE,
        "parallel_strategy_item": {
            name: {"stage": file.stage, "parallel_strategy": [list(dims) for dims in strategy]}
            for name, strategy in file.operators.items()
        },
        "parallel_layout_item": {name: _layout_json(layout) for name, layout in file.layouts.items()},
    }
    return json.dumps(content, indent=1) + "\n"


def to_protobuf(file: StrategyFile) -> bytes:
    """The protobuf form: a ParallelStrategyMap."""
    parts = [wire.put_number(1, _CURRENT_STAGE)]
    for name, strategy in file.operators.items():
        parts.append(wire.put_bytes(2, wire.put_bytes(1, name.encode()) + wire.put_bytes(2, _strategy(file, strategy))))
    for name, layout in file.layouts.items():
        parts.append(wire.put_bytes(3, wire.put_bytes(1, name.encode()) + wire.put_bytes(2, _layout(layout))))
    return b"".join(parts)


def _layout_json(layout: Layout) -> dict[str, Any]:
    return {
        "dev_matrix": list(layout.dev_matrix),
        "tensor_map": list(layout.tensor_map),
        "tensor_shape": list(layout.shape),
        "field": 0,
        "opt_weight_shard_step": layout.opt_step,
        "opt_weight_shard_size": layout.opt_size,
    }


def _strategy(file: StrategyFile, strategy: Strategy) -> bytes:
    return wire.put_number(1, file.stage) + b"".join(wire.put_bytes(2, _dims(dims)) for dims in strategy)


def _layout(layout: Layout) -> bytes:
    """ParallelLayouts; param_split_shape and indices_offset are there and empty, since readers take their first."""
    return (
        wire.put_bytes(1, _dims(layout.dev_matrix))
        + wire.put_bytes(2, _dims(layout.tensor_map))
        + wire.put_bytes(3, b"")
        + wire.put_bytes(4, b"")
        + wire.put_number(5, 0)
        + wire.put_number(6, layout.opt_step)
        + wire.put_number(7, layout.opt_size)
    )


def _dims(dims: Shape) -> bytes:
    return b"".join(wire.put_number(1, size) for size in dims)
