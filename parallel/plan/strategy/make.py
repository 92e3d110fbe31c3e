"""The strategy files of a graph under a plan's settings: one for each pipeline stage.

MindSpore looks an operator up as `KIND_PARAMETER`, by its first parameter (NodeParameterName in
frontend/parallel/step_parallel_utils.cc), and leaves the others to itself; it never asks for other names. Each file
also lists every operator of its stage by its full name with scope: that is what a person or a program reads that sets
`shard` itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.graph import Graph, Operator, Shape
from mindspeed_ms.parallel.plan.strategy.layout import Layout
from mindspeed_ms.parallel.plan.strategy.propagate import Splits, propagate
from mindspeed_ms.parallel.plan.strategy.spread import Mesh, whole
from mindspeed_ms.parallel.plan.strategy.stages import Stages, find_stages

Strategy = tuple[Shape, ...]  # one entry a tensor input; () is a scalar

# A weight below this many bytes is not spread with the optimizer: MindSpore's parallel_optimizer_threshold, 64 KB.
OPTIMIZER_THRESHOLD = 64 << 10


@dataclass(frozen=True)
class StrategyFile:
    """What one strategy file says: the stage, the strategies of operators and the layouts of parameters, by name."""

    stage: int
    operators: Mapping[str, Strategy]
    layouts: Mapping[str, Layout]


def make_strategies(
    graph: Graph, settings: Settings, states: Sequence[str] = ()
) -> tuple[tuple[StrategyFile, ...], Splits]:
    """One file a stage, and the splits they come from with the redistributions that remain.

    The batch of the graph is that of one forward pass of all replicas: data · micro_batch sequences. `states` are what
    an optimizer puts before a parameter's name for its state (MindSpore's Adam: "adam_m.", "adam_v."); each state lies
    as its parameter does.
    Raises ConfigError when the graph cannot be split so.
    """
    if settings.expert > 1:
        raise ConfigError(
            f"expert: {settings.expert}, expected 1: the experts of {graph.where} are not told apart in a graph; leave "
            "the expert dimension out of the plan, or write no strategy file"
        )
    mesh = Mesh(settings.data, settings.context, settings.tensor)
    splits = propagate(graph, mesh)
    stages = find_stages(graph, settings)
    strategies = {name: tuple(mesh.strategy(s) for s in split.inputs) for name, split in splits.operators.items()}
    keys = parameter_keys(graph)
    layouts = parameter_layouts(graph, splits, stages, settings.zero > 0)
    files = []
    for stage in range(settings.pipeline):
        here = {name for name in graph.split_operators if stage in stages.operators[name]}
        operators = {key: strategies[name] for key, name in keys.items() if name in here}
        operators |= {name: strategies[name] for name in graph.split_operators if name in here}
        kept = {name: layout for name, layout in layouts.items() if stage in stages.parameters[name]}
        kept |= {prefix + name: layout for prefix in states for name, layout in kept.items()}
        files.append(StrategyFile(stage, operators, kept))
    return tuple(files), splits


def parameter_keys(graph: Graph) -> dict[str, str]:
    """MindSpore's key of each operator that reads a parameter -> its full name; the last of several with one key."""
    return {key: operator.name for operator in graph.split_operators.values() if (key := key_of(graph, operator))}


def key_of(graph: Graph, operator: Operator) -> str:
    """The key by which MindSpore looks the operator up; empty where it reads no parameter."""
    for value in operator.inputs:
        if (parameter := graph.parameter(value)) is not None:
            return f"{operator.kind}_{parameter.name}"
    return ""


def parameter_layouts(graph: Graph, splits: Splits, stages: Stages, optimizer: bool) -> dict[str, Layout]:
    """The layout of every parameter; `optimizer`: spread over its replicas too, as MindSpore would.

    That leaves out a parameter below the threshold, counted whole, and one that pipeline stages share.
    """
    found = {}
    for name, parameter in graph.parameters.items():
        spread = splits.weights.get(name, whole(len(parameter.shape)))
        large = math.prod(parameter.shape) * parameter.item_bytes >= OPTIMIZER_THRESHOLD
        shared = optimizer and large and len(stages.parameters[name]) == 1
        found[name] = splits.mesh.weight_layout(spread, parameter.shape, shared)
    return found
