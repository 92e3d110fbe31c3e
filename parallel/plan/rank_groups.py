"""Which shapes the groups of a parallel dimension have on a cluster: levels of links, not lists of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.collectives import best_of_shape
from mindspeed_ms.parallel.topology.hierarchy import GroupShape, memory_of, shape_of

Order = tuple[int, ...] | None


@lru_cache(maxsize=1 << 12)
def _strides(tensor: int, context: int, data: int, pipeline: int, expert: int) -> dict[str, tuple[int, int]]:
    """Ranks between two neighbours of a group, and how many there are, by the numbering of `settings`."""
    replicas = data * context
    return {
        "tensor": (1, tensor),
        "context": (tensor, context),
        "expert": (tensor, expert),
        "data": (tensor, replicas),  # all that hold the same dense weights
        "expert_data": (tensor * expert, replicas // expert),  # all that hold the same experts
        "pipeline": (tensor * replicas, pipeline),
    }


def group_shapes(cluster: Cluster, settings: Settings, dimension: str, order: Order = None) -> tuple[GroupShape, ...]:
    """Every shape that groups of this dimension have; empty where the dimension is 1.

    dimension: tensor, context, expert, data (ranks with the same dense weights: data x context), expert_data (with the
    same experts), pipeline (pairs of neighbouring stages).
    """
    strides = _strides(settings.tensor, settings.context, settings.data, settings.pipeline, settings.expert)
    stride, count = strides[dimension]
    if count == 1:
        return ()
    memory = memory_of(cluster)
    pairs = dimension == "pipeline"
    key = (stride, count, pairs, settings.devices, order)
    shapes = memory.strided.get(key)
    if shapes is None:
        groups = _pairs(stride, count) if pairs else _strided(stride, count, settings.devices)
        shapes = memory.strided[key] = _distinct(cluster, groups, order)
    return shapes


def _strided(stride: int, count: int, devices: int) -> Iterator[tuple[int, ...]]:
    block = stride * count
    for first in range(0, devices, block):
        for base in range(first, first + stride):
            yield tuple(range(base, base + block, stride))


def _pairs(stride: int, count: int) -> Iterator[tuple[int, ...]]:
    for stage in range(count):
        following = (stage + 1) % count
        for place in range(stride):
            yield stage * stride + place, following * stride + place


def _distinct(cluster: Cluster, groups: Iterator[tuple[int, ...]], order: Order) -> tuple[GroupShape, ...]:
    period = 0 if order else period_of(cluster)
    seen: set[int] = set()
    shapes: dict[GroupShape, None] = {}
    for group in groups:
        if period:
            # The same group, so many whole servers further on
            if group[0] % period in seen and len(group) > 2:
                continue
            seen.add(group[0] % period)
        slots = tuple(order[rank] for rank in group) if order else group
        shapes[shape_of(cluster, slots)] = None
    return tuple(shapes)


def period_of(cluster: Cluster) -> int:
    """After how many slots a cluster looks the same again; 0: it does not."""
    first = cluster.servers[0]
    if any(server.kinds is not first.kinds and server.kinds != first.kinds for server in cluster.servers):
        return 0
    if not cluster.pods:
        return len(first.devices)
    sizes = {len(pod) for pod in cluster.pods}
    regular = tuple(range(len(cluster.servers))) == tuple(server for pod in cluster.pods for server in pod)
    return len(first.devices) * sizes.pop() if len(sizes) == 1 and regular else 0


def slowest(operation: str, shapes: tuple[GroupShape, ...], nbytes: float) -> float:
    """Seconds of an operation in the slowest of some groups; 0 for none."""
    if not shapes or nbytes <= 0:
        return 0.0
    return max(best_of_shape(operation, shape, nbytes).seconds for shape in shapes)


def clashes(cluster: Cluster, settings: Settings, dimension: str, order: Order = None) -> bool:
    """Whether groups of a dimension and those that hold the same weights are held up by the same links.

    Tensor groups have no pair of ranks in common with them, so that wires of their own do not come into their way.
    """
    own = _outermost(group_shapes(cluster, settings, dimension, order))
    if not own:
        return False
    data = _outermost(group_shapes(cluster, settings, "data", order))
    data |= _outermost(group_shapes(cluster, settings, "expert_data", order))
    return any(shared or dimension != "tensor" for _, shared in own & data)


@lru_cache(maxsize=1 << 12)
def _outermost(shapes: tuple[GroupShape, ...]) -> frozenset[tuple[str, bool]]:
    """Kinds of link of the outermost level, and whether all such links of a device share one port."""
    return frozenset((shape.levels[-1].ring.kind, shape.levels[-1].ring.shared) for shape in shapes)
