"""What a picture of a cluster shows: which servers and rings, and the rank, group and colour of each device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.groups import Arrangement
from mindspeed_ms.parallel.topology.rings import Ring, fast_kinds, find_rings

# Okabe and Ito's colours, which also those tell apart who see fewer, and three more between them.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1", "#7f8c8d", "#a6761d")
IDLE = "#e5e7eb"


@dataclass(frozen=True)
class Spot:
    """One device of a picture."""

    slot: int
    device: int  # physical id
    rank: int | None
    group: int | None  # None: the device has no rank

    @property
    def colour(self) -> str:
        """That of its group; colours come again after ten groups."""
        return IDLE if self.group is None else COLOURS[self.group % len(COLOURS)]


@dataclass(frozen=True)
class Edge:
    """One link within a server."""

    first: int  # slots, the lower one first
    second: int
    kind: str
    fast: bool
    along: bool  # the ring goes along it


@dataclass(frozen=True)
class Scene:
    """The first servers of a cluster, their devices by ring in its order."""

    cluster: Cluster
    servers: tuple[tuple[tuple[Spot, ...], ...], ...]  # server → ring → devices
    rings: tuple[tuple[Ring, ...], ...]
    what: str  # what the colours mean

    def edges(self, server: int) -> Iterator[Edge]:
        """Every link between two devices of a server."""
        machine = self.cluster.servers[server]
        fast = fast_kinds(machine, self.cluster.links)
        start = sum(len(other.devices) for other in self.cluster.servers[:server])
        along = {pair for ring in self.rings[server] for pair in _around(ring)}
        for first in range(len(machine.devices)):
            for second in range(first + 1, len(machine.devices)):
                kind = machine.kinds[first][second]
                pair = (start + first, start + second)
                yield Edge(*pair, kind, kind in fast, pair in along)


def _around(ring: Ring) -> list[tuple[int, int]]:
    pairs = list(zip(ring.slots, ring.slots[1:], strict=False))
    if ring.closed and len(ring.slots) > 2:
        pairs.append((ring.slots[-1], ring.slots[0]))
    return [(min(pair), max(pair)) for pair in pairs]


def scene_of(cluster: Cluster, arrangement: Arrangement | None, dimension: str, most: int) -> Scene:
    """The first servers with at most so many devices together, but at least one server.

    Without an arrangement a device's group is its ring. Raises ConfigError for an unknown dimension.
    """
    if arrangement is not None and dimension not in arrangement.groups:
        raise ConfigError(f"dimension is {dimension!r}; expected one of {', '.join(arrangement.groups)}")
    order = () if arrangement is None else arrangement.order
    rank_of = {slot: rank for rank, slot in enumerate(order)}
    groups = () if arrangement is None else arrangement.groups[dimension]
    group_of = {order[rank]: number for number, ranks in enumerate(groups) for rank in ranks}
    server_of = [number for number, server in enumerate(cluster.servers) for _ in server.devices]
    rings = find_rings(cluster)
    if arrangement is None:
        group_of = {slot: number for number, ring in enumerate(rings) for slot in ring.slots}
    by_server: dict[int, list[Ring]] = {}
    for ring in rings:
        by_server.setdefault(server_of[ring.slots[0]], []).append(ring)
    shown, total = 0, 0
    while shown < len(cluster.servers) and (shown == 0 or total + len(cluster.servers[shown].devices) <= most):
        total += len(cluster.servers[shown].devices)
        shown += 1

    def spot(slot: int) -> Spot:
        server, device = cluster.place(slot)
        return Spot(slot, cluster.servers[server].devices[device], rank_of.get(slot), group_of.get(slot))

    return Scene(
        cluster=cluster,
        servers=tuple(tuple(tuple(map(spot, ring.slots)) for ring in by_server[at]) for at in range(shown)),
        rings=tuple(tuple(by_server[at]) for at in range(shown)),
        what="ring" if arrangement is None else f"{dimension} group",
    )
