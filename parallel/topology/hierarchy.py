"""Levels of a group of devices: components of fast links inside a server, servers, pods, and what joins each level.

A group of 16 devices on two 910B servers has two levels: 8 devices over HCCS, then 2 servers over RoCE. What a
collective costs depends on these levels alone, so groups that look alike share one `GroupShape` and one cached cost.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspeed_ms.parallel.topology.cluster import Cluster, Link
from mindspeed_ms.parallel.topology.hamilton import widest_cycle


@dataclass(frozen=True)
class Level:
    """So many members at one level, and the link that holds each algorithm up.

    `ring` is the narrowest link along the best ring through the members, `mesh` the narrowest between any two. They
    are one and the same where all links are equal.
    """

    size: int
    ring: Link
    mesh: Link


@dataclass(frozen=True, eq=False)
class GroupShape:
    """Levels of one group, the innermost first; `uneven` where servers hold different numbers of members.

    There is one object for each shape, so that it can be a cheap key of a cache.
    """

    size: int
    levels: tuple[Level, ...]
    uneven: bool = False
    # Only where uneven: the links themselves, row by row, for a simulation; empty: too many members
    links: tuple[tuple[Link | None, ...], ...] = ()


# A simulation of every message of a larger uneven group would take longer than it is worth.
_SIMULATED_MEMBERS = 16
_SHAPES: dict[tuple, GroupShape] = {}


class _Memory:
    """What has been found out about one cluster."""

    def __init__(self, cluster: Cluster):
        self.cluster = weakref.ref(cluster)
        self.groups: dict[tuple[int, ...], GroupShape] = {}
        self.inside: dict[tuple[int, tuple[int, ...]], tuple[Level, ...]] = {}
        self.strided: dict[tuple, tuple[GroupShape, ...]] = {}
        self.blocks: dict[tuple[int, ...], list[Any]] = {}  # slots put together for degrees, by `groups`


_MEMORIES: dict[int, _Memory] = {}


def memory_of(cluster: Cluster) -> _Memory:
    """The cache of a cluster; a cluster's own hash would walk over all its servers."""
    memory = _MEMORIES.get(id(cluster))
    if memory is None or memory.cluster() is not cluster:
        memory = _MEMORIES[id(cluster)] = _Memory(cluster)
        weakref.finalize(cluster, _forget, id(cluster), memory)
    return memory


def _forget(key: int, memory: _Memory) -> None:
    if _MEMORIES.get(key) is memory:
        del _MEMORIES[key]


def shape_of(cluster: Cluster, slots: Sequence[int]) -> GroupShape:
    """The levels of the group of these slots; their order does not matter. Raises ConfigError for unknown slots."""
    key = tuple(slots)
    memory = memory_of(cluster)
    shape = memory.groups.get(key)
    if shape is None:
        shape = memory.groups[key] = _find_shape(cluster, sorted(key), memory)
    return shape


def worst(links: Iterable[Link]) -> Link:
    """One link as narrow as the narrowest and as late as the latest of several, shared if that narrowest is."""
    every = list(links)
    narrowest = min(every, key=lambda link: (link.bandwidth, not link.shared))
    latency = max(link.latency for link in every)
    return narrowest if narrowest.latency == latency else replace(narrowest, latency=latency)


def _interned(size: int, levels: tuple[Level, ...], uneven: bool = False, links: tuple = ()) -> GroupShape:
    return _SHAPES.setdefault((size, levels, uneven, links), GroupShape(size, levels, uneven, links))


def _find_shape(cluster: Cluster, slots: list[int], memory: _Memory) -> GroupShape:
    members: dict[int, list[int]] = {}
    for slot in slots:
        server, device = cluster.place(slot)
        members.setdefault(server, []).append(device)
    inside = [_inside(cluster, server, tuple(devices), memory) for server, devices in members.items()]
    outside = _outside(cluster, list(members))
    sizes = {tuple(level.size for level in levels) for levels in inside}
    if len(sizes) > 1 or outside is None:
        return _uneven(cluster, slots)
    levels = tuple(
        Level(same[0].size, worst(level.ring for level in same), worst(level.mesh for level in same))
        for same in zip(*inside, strict=True)
    )
    return _interned(len(slots), _merged(levels + outside))


def _merged(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Levels of one and the same link, as inside and between the servers of a super pod, are one level."""
    found: list[Level] = []
    for level in levels:
        if found and level.ring == level.mesh == found[-1].ring == found[-1].mesh:
            level = replace(level, size=level.size * found.pop().size)
        found.append(level)
    return tuple(found)


def _outside(cluster: Cluster, servers: list[int]) -> tuple[Level, ...] | None:
    """Levels above a server, None where pods hold different numbers of these servers."""
    if len(servers) == 1:
        return ()
    pod_of = {server: number for number, pod in enumerate(cluster.pods) for server in pod}
    pods: dict[object, int] = {}
    for server in servers:
        key = pod_of.get(server, ("alone", server))
        pods[key] = pods.get(key, 0) + 1
    counts = set(pods.values())
    if len(counts) > 1:
        return None
    each = counts.pop()
    levels = []
    if each > 1:
        link = cluster.links[cluster.within_pod]
        levels.append(Level(each, link, link))
    if len(pods) > 1:
        link = cluster.links[cluster.between]
        levels.append(Level(len(pods), link, link))
    return tuple(levels)


def _uneven(cluster: Cluster, slots: list[int]) -> GroupShape:
    places = [cluster.place(slot)[0] for slot in slots]
    crossing = [cluster.link(slots[0], slot) for slot, place in zip(slots, places, strict=True) if place != places[0]]
    link = worst(crossing)
    links: tuple = ()
    if len(slots) <= _SIMULATED_MEMBERS:
        links = tuple(tuple(None if a == b else cluster.link(a, b) for b in slots) for a in slots)
        link = worst(entry for row in links for entry in row if entry is not None)
    return _interned(len(slots), (Level(len(slots), link, link),), True, links)


def _inside(cluster: Cluster, server: int, devices: tuple[int, ...], memory: _Memory) -> tuple[Level, ...]:
    kinds = cluster.servers[server].kinds
    key = (id(kinds), devices)
    if key not in memory.inside:
        links = {(a, b): cluster.links[kinds[a][b]] for a in devices for b in devices if a != b}
        memory.inside[key] = _levels_inside(list(devices), links)
    return memory.inside[key]


def _levels_inside(devices: list[int], links: dict[tuple[int, int], Link]) -> tuple[Level, ...]:
    """Components over ever slower links; one level where they are not all of one size.

    Wires of their own count together: seven of 20 GB/s each carry more than one PCIe slot of 25 GB/s.
    """
    if len(devices) == 1:
        return ()
    parts = [[device] for device in devices]
    levels: list[Level] = []
    width = _widths(links)
    for bandwidth in sorted(set(width.values()), reverse=True):
        merged = _components(parts, {pair for pair, link in links.items() if width[link] >= bandwidth})
        if len(merged) == len(parts):
            continue
        sizes = {len(part) for part in merged}
        if len(sizes) > 1:
            levels, parts = [], [[device] for device in devices]
            break
        joins = _joining(parts, merged, links)
        size = len(merged[0]) // len(parts[0])
        levels.append(Level(size, _ring_link(parts, merged, links), worst(joins)))
        parts = merged
        if len(parts) == 1:
            return tuple(levels)
    return (Level(len(devices), _ring_link(parts, [devices], links), worst(links.values())),)


def _widths(links: dict[tuple[int, int], Link]) -> dict[Link, float]:
    """What a device can send over all its links of a kind at once."""
    counts: dict[tuple[int, Link], int] = {}
    for (device, _), link in links.items():
        counts[device, link] = counts.get((device, link), 0) + 1
    width: dict[Link, float] = {}
    for (_, link), count in counts.items():
        width[link] = max(width.get(link, 0.0), link.bandwidth * (1 if link.shared else count))
    return width


def _joining(parts: list[list[int]], merged: list[list[int]], links: dict[tuple[int, int], Link]) -> list[Link]:
    """The links between members of equal number of two parts that are joined at this level."""
    found = []
    for whole in merged:
        inside = [part for part in parts if part[0] in whole]
        for a in inside:
            found += [links[x, y] for b in inside if b is not a for x, y in zip(a, b, strict=False)]
    return found


def _components(parts: list[list[int]], pairs: set[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for part in parts:
        touching = [group for group in merged if any((a, b) in pairs for a in group for b in part)]
        merged = [group for group in merged if group not in touching] + [sum(touching, []) + part]
    return [sorted(group) for group in merged]


def _ring_link(parts: list[list[int]], merged: list[list[int]], links: dict[tuple[int, int], Link]) -> Link:
    found = []
    for whole in merged:
        inside = [part[0] for part in parts if part[0] in whole]
        order = widest_ring(inside, links)
        found += [links[a, b] for a, b in zip(order, order[1:] + order[:1], strict=True)]
    return worst(found)


def widest_ring(devices: list[int], links: dict[tuple[int, int], Link]) -> list[int]:
    """An order of the devices whose ring has the widest narrowest link; exact up to 16 devices."""
    widths = [[0.0 if a == b else links[a, b].bandwidth for b in devices] for a in devices]
    return [devices[at] for at in widest_cycle(widths)[0]]
