"""Rings: the devices that fast links join, and the order round them whose narrowest link is as wide as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindspeed_ms.parallel.topology.cluster import Link, Server
from mindspeed_ms.parallel.topology.links import FAST


def fast_kinds(server: Server, links: Mapping[str, Link]) -> frozenset[str]:
    """The kinds of link that count as fast on this server.

    Wires between devices (HCCS and its kin) where it has any; else the fastest kind it has, which on a server
    without them still tells near from far.
    """
    present = {word for at, row in enumerate(server.kinds) for other, word in enumerate(row) if other != at}
    wires = present & set(FAST)
    if wires or not present:
        return frozenset(wires)
    best = max(links[word].bandwidth for word in present)
    quickest = min(links[word].latency for word in present if links[word].bandwidth == best)
    nearest = [word for word in present if (links[word].bandwidth, links[word].latency) == (best, quickest)]
    from mindspeed_ms.parallel.topology.links import HOST

    return frozenset([min(nearest, key=lambda word: HOST.index(word) if word in HOST else -1)])


def connected(members: Sequence[int], server: Server, kinds: frozenset[str]) -> list[tuple[int, ...]]:
    """The components that links of these kinds make of some devices (by index), each ascending."""
    left, found = set(members), []
    for first in members:
        if first not in left:
            continue
        left.discard(first)
        component, todo = [first], [first]
        while todo:
            row = server.kinds[todo.pop()]
            near = [other for other in left if row[other] in kinds]
            left.difference_update(near)
            component += near
            todo += near
        found.append(tuple(sorted(component)))
    return found


def components(server: Server, links: Mapping[str, Link]) -> list[tuple[tuple[int, ...], int]]:
    """Every device (by index) after the numbers of the components that hold it, from all of the server inwards.

    The outermost level after the server is the fast links'; then follow those that only the fastest of them make.
    """
    fast = fast_kinds(server, links)
    speeds = sorted({links[kind].bandwidth for kind in fast})
    levels = [frozenset(kind for kind in fast if links[kind].bandwidth >= speed) for speed in speeds]
    placed: list[tuple[tuple[int, ...], int]] = []

    def place(members: Sequence[int], path: tuple[int, ...], depth: int) -> None:
        if depth == len(levels):
            placed.extend((path, device) for device in members)
            return
        for number, component in enumerate(connected(members, server, levels[depth])):
            place(component, (*path, number), depth + 1)

    place(range(len(server.devices)), (), 0)
    return placed
