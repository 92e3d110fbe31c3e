"""Rings: the devices that fast links join, and the order round them whose narrowest link is as wide as can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mindspeed_ms.parallel.topology.cluster import SELF, Cluster, Link, Server
from mindspeed_ms.parallel.topology.hamilton import narrowest, widest_cycle, widest_path
from mindspeed_ms.parallel.topology.links import FAST, HOST, KINDS, link_table

FAR = len(HOST) - 1  # levels outside rings in the paths of `components`; with all kinds, all devices are joined
ALONE = Link(SELF, float("inf"), 0.0, False, "a device with itself")


@dataclass(frozen=True)
class Ring:
    """Devices that fast links join, in the order in which messages go round."""

    slots: tuple[int, ...]  # of the cluster; of a single server, the numbers of its devices from 0
    narrowest: Link  # of the links between neighbours; `ALONE` for a single device
    mesh: bool  # each two have a fast link of their own, so all can send to all at once
    closed: bool  # the last is joined to the first by a fast link too
    exact: bool = True  # whether it is certain that no other order has a wider narrowest link


def find_rings(place: Server | Cluster, links: Mapping[str, Link] | None = None) -> tuple[Ring, ...]:
    """The rings of a server or of each server of a cluster, in the order of their first devices.

    A device that no fast link reaches is a ring of one. Links between servers make no rings: their switches join all
    with all. `links` gives the speeds where `place` is a server; else those of the cluster count.
    """
    if isinstance(place, Server):
        return _of_server(place, _key(link_table() if links is None else links))
    key = _key(place.links)
    rings: list[Ring] = []
    shapes: dict[int, tuple[Ring, ...]] = {}  # equal servers mostly are one object: to compare them takes long
    start = 0
    for server in place.servers:
        if id(server) not in shapes:
            shapes[id(server)] = _of_server(server, key)
        for ring in shapes[id(server)]:
            rings.append(ring if start == 0 else replace(ring, slots=tuple(start + slot for slot in ring.slots)))
        start += len(server.devices)
    return tuple(rings)


def fast_kinds(server: Server, links: Mapping[str, Link]) -> frozenset[str]:
    """The kinds of link that count as fast on this server.

    Wires between devices (HCCS and its kin) where it has any; else the fastest and nearest kind it has, which on a
    server without them still tells near from far.
    """
    present = _ranked(server, links)
    return frozenset(kind for kind in present if kind in FAST) or frozenset(present[:1])


def _ranked(server: Server, links: Mapping[str, Link]) -> list[str]:
    """The kinds of link that a server has, the fastest and nearest first."""
    present = {word for at, row in enumerate(server.kinds) for other, word in enumerate(row) if other != at}

    def rank(kind: str) -> tuple[float, float, int]:
        return -links[kind].bandwidth, links[kind].latency, KINDS.index(kind) if kind in KINDS else len(KINDS)

    return sorted(present, key=rank)


def connected(members: Iterable[int], server: Server, kinds: frozenset[str]) -> list[tuple[int, ...]]:
    """The components that links of these kinds make of some devices (by index), each ascending."""
    order = list(members)
    left, found = set(order), []
    for first in order:
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
    """Every device (by index) after the numbers of the components that hold it, in the order of rings.

    The `FAR` outermost levels are those of fast links and, from all of them to none, the nearer of the others: they
    tell which rings are near. The next is that of all fast links, then those of only the faster of them. Devices of
    one ring follow one another as they do round it, as far as its components allow.
    """
    fast = fast_kinds(server, links)
    others = [kind for kind in _ranked(server, links) if kind not in fast]
    levels = [fast.union(others[:count]) for count in range(FAR, 0, -1)]
    speeds = sorted({links[kind].bandwidth for kind in fast})
    levels += [frozenset(kind for kind in fast if links[kind].bandwidth >= speed) for speed in speeds]
    placed: list[tuple[tuple[int, ...], int]] = []

    def place(members: Sequence[int], path: tuple[int, ...], depth: int) -> None:
        if depth == len(levels):
            placed.extend((path, device) for device in members)
            return
        at = {device: number for number, device in enumerate(members)}
        for number, component in enumerate(connected(members, server, levels[depth])):
            place(sorted(component, key=at.__getitem__), (*path, number), depth + 1)

    place([device for ring in find_rings(server, links) for device in ring.slots], (), 0)
    return placed


def _key(links: Mapping[str, Link]) -> tuple[tuple[str, Link], ...]:
    return tuple(sorted(links.items()))


@lru_cache(maxsize=256)
def _of_server(server: Server, key: tuple[tuple[str, Link], ...]) -> tuple[Ring, ...]:
    links = dict(key)
    fast = fast_kinds(server, links)
    return tuple(_ring(part, server, fast, links) for part in connected(range(len(server.devices)), server, fast))


def _ring(members: tuple[int, ...], server: Server, fast: frozenset[str], links: Mapping[str, Link]) -> Ring:
    if len(members) == 1:
        return Ring(members, ALONE, mesh=True, closed=True)
    kinds = [[server.kinds[first][second] for second in members] for first in members]
    widths = [[0.0 if kind == SELF else links[kind].bandwidth for kind in row] for row in kinds]
    order, exact = widest_cycle(widths)
    closed = all(kind in fast for kind in _between(kinds, order, True))
    if not closed:
        # A way through by fast links alone is better than round by a slow one.
        path, sure = widest_path(widths)
        if narrowest(widths, path, False) > narrowest(widths, order, True):
            order, exact = path, sure
    words = _between(kinds, order, closed)
    mesh = all(kind == SELF or (kind in fast and not links[kind].shared) for row in kinds for kind in row)
    return Ring(
        slots=tuple(members[at] for at in order),
        narrowest=min((links[word] for word in words), key=lambda link: (link.bandwidth, -link.latency)),
        mesh=mesh,
        closed=closed,
        exact=exact,
    )


def _between(kinds: list[list[str]], order: Sequence[int], closed: bool) -> list[str]:
    """The kinds of link between neighbours."""
    pairs = list(zip(order, order[1:], strict=False))
    if closed and len(order) > 2:
        pairs.append((order[-1], order[0]))
    return [kinds[first][second] for first, second in pairs]
