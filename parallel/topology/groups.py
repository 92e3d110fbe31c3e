"""Which ranks share a group, and where each rank should sit so that the busiest groups have the fastest links.

Ranks are numbered as MindSpore and Megatron do, tensor innermost and pipeline outermost:
rank = ((stage · data + d) · context + c) · tensor + t; an expert group is `expert` neighbours along (d, c).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.hierarchy import memory_of
from mindspeed_ms.parallel.topology.rings import FAR, components

DIMENSIONS = ("tensor", "context", "expert", "data", "pipeline")
Groups = dict[str, tuple[tuple[int, ...], ...]]


class HasDegrees(Protocol):
    """Anything that says how often each dimension splits a job: `Degrees`, or the settings of a plan."""

    @property
    def data(self) -> int: ...
    @property
    def tensor(self) -> int: ...
    @property
    def pipeline(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def expert(self) -> int: ...


@dataclass(frozen=True)
class Degrees:
    """How often each dimension splits a job."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


@dataclass(frozen=True)
class Arrangement:
    """Where each rank sits, order[rank] = slot, and the groups of ranks of each dimension."""

    order: tuple[int, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]


def size_of(degrees: HasDegrees) -> int:
    """How many ranks a job has. Raises ConfigError for degrees that make none."""
    for dimension in DIMENSIONS:
        if getattr(degrees, dimension) < 1:
            raise ConfigError(f"{dimension} is {getattr(degrees, dimension)}; expected a number of at least 1")
    spread = degrees.data * degrees.context
    if spread % degrees.expert:
        near = _divisor_below(spread, degrees.expert)
        raise ConfigError(
            f"expert is {degrees.expert}, expected a divisor of data · context = {spread}, such as {near}"
        )
    return degrees.data * degrees.tensor * degrees.pipeline * degrees.context


def _divisor_below(number: int, limit: int) -> int:
    """The largest divisor of a number below a limit; of huge numbers one that both have in common."""
    if number > 1 << 20:
        return math.gcd(number, limit)
    return max(value for value in range(1, min(number, limit - 1) + 1) if number % value == 0)


def rank_groups(degrees: HasDegrees) -> Groups:
    """The groups of each dimension, as ranks: every rank is in exactly one of each. Raises ConfigError."""
    size = size_of(degrees)
    tensor, context, data, expert = degrees.tensor, degrees.context, degrees.data, degrees.expert
    stage = data * context * tensor

    def strided(step: int, count: int) -> tuple[tuple[int, ...], ...]:
        """Groups of `count` ranks that lie `step` apart, in the order of their first ranks."""
        starts = (block + first for block in range(0, size, step * count) for first in range(step))
        return tuple(tuple(range(start, start + step * count, step)) for start in starts)

    return {
        "tensor": strided(1, tensor),
        "context": strided(tensor, context),
        "expert": strided(tensor, expert),
        "data": strided(tensor * context, data),
        "pipeline": strided(stage, degrees.pipeline),
    }


def arrange(cluster: Cluster, degrees: HasDegrees) -> Arrangement:
    """Sit the ranks so that tensor groups have the fastest links, then context and expert, data, and pipeline last.

    Blocks of ranks grow from the inside out: a tensor group is put together within one component of fast links
    wherever one is left, else within near ones, one server, one pod, the cluster; then groups of groups in the same
    way. Raises ConfigError when the job has more ranks than the cluster devices.
    """
    size = size_of(degrees)
    if size > cluster.size:
        raise ConfigError(
            f"the job has {size} ranks, the cluster {cluster.name} {cluster.size} devices: "
            f"{size - cluster.size} too few; add servers, or lower data, tensor, pipeline or context"
        )
    inner = _inner_data(degrees)
    factors = (degrees.context, inner, degrees.data // inner, degrees.pipeline)
    blocks = _blocks(cluster, size, tuple(factor for factor in factors if factor > 1), degrees.tensor)
    order = max(blocks, key=lambda block: len(block.path)).slots  # the first of those that reach least far
    return Arrangement(order, rank_groups(degrees))


def _blocks(cluster: Cluster, size: int, factors: tuple[int, ...], tensor: int) -> list[_Block]:
    """Blocks of tensor groups, merged by each factor in turn; what degrees have in common is put together once."""
    known = memory_of(cluster).blocks
    key = (size, tensor, *factors)
    found = known.get(key)
    if found is None:
        if factors:
            found = _merge(_blocks(cluster, size, factors[:-1], tensor), factors[-1])
        else:
            found = _nearest(_merge(_places(cluster), tensor), size // tensor)
        known[key] = found
    return found


def _inner_data(degrees: HasDegrees) -> int:
    """How many data ranks an expert group spans, where it spans whole context groups; else 1."""
    inner, rest = divmod(degrees.expert, degrees.context)
    return inner if inner > 1 and rest == 0 and degrees.data % inner == 0 else 1


_SERVER = 2 + FAR  # length of the longest path of what one server holds, but no component of fast links


@dataclass(frozen=True)
class _Block:
    path: tuple[int, ...]  # numbers of the pod, the server, and the ever nearer components that hold it whole
    slots: tuple[int, ...]


def _places(cluster: Cluster) -> list[_Block]:
    """Every slot as a block of its own, in an order that follows pods, servers and rings."""
    pod_of = {server: number for number, servers in enumerate(cluster.pods) for server in servers}
    blocks, start = [], 0
    shapes: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for number, server in enumerate(cluster.servers):
        if id(server) not in shapes:
            shapes[id(server)] = components(server, cluster.links)
        head = (pod_of.get(number, -1 - number if cluster.pods else -1), number)
        blocks += [_Block((*head, *path), (start + device,)) for path, device in shapes[id(server)]]
        start += len(server.devices)
    return sorted(blocks, key=lambda block: block.path) if cluster.pods else blocks


def _merge(blocks: list[_Block], factor: int) -> list[_Block]:
    """Blocks of `factor` blocks each: those with the longest path in common first, what is left over further out."""
    if factor == 1:
        return blocks
    merged: list[_Block] = []
    left = list(enumerate(blocks))
    firsts: list[int] = []
    for depth in range(max((len(block.path) for block in blocks), default=0), -1, -1):
        together: dict[tuple[int, ...], list[tuple[int, _Block]]] = {}
        waiting = []
        for at, block in left:
            if len(block.path) < depth:
                waiting.append((at, block))
            else:
                together.setdefault(block.path[:depth], []).append((at, block))
        for path, members in together.items():
            whole = len(members) - len(members) % factor
            for start in range(0, whole, factor):
                part = members[start : start + factor]
                merged.append(_Block(path, tuple(slot for _, block in part for slot in block.slots)))
                firsts.append(part[0][0])
            waiting += members[whole:]
        left = sorted(waiting, key=lambda pair: pair[0])
    ranked = sorted(zip(firsts, merged, strict=True), key=lambda pair: pair[0])
    return [block for _, block in ranked]


def _nearest(blocks: list[_Block], count: int) -> list[_Block]:
    """The tensor groups to take: all that lie inside rings if these are enough, else they and the nearest of the rest.

    More than `count` are left where there is a choice that costs nothing: groups of groups then choose.
    """
    inside = [block for block in blocks if len(block.path) > _SERVER]
    if len(inside) >= count or len(blocks) == count:
        return inside if len(inside) >= count else blocks
    rank = sorted(range(len(blocks)), key=lambda at: -len(blocks[at].path))
    return [blocks[at] for at in sorted(rank[:count])]
