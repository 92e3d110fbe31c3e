"""One ring over all eight devices of a 910A server against groups of four that then exchange, message by message.

A 910A server has two HCCS groups of four whose devices reach the others only over PCIe (configs/topology/910a.yaml).
Of an all_reduce both ways are played by `simulate`: a ring 0-1-2-3-4-5-6-7, two of whose messages cross in each round,
and a reduce_scatter in each group, an exchange of each device with its partner, an all_gather in each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology import schedules, simulate
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.hierarchy import widest_ring
from mindspeed_ms.parallel.topology.rings import find_rings
from mindspeed_ms.parallel.topology.simulate import Ways

SIZES = tuple(1 << power for power in range(8, 32))


@dataclass(frozen=True)
class Comparison:
    """Seconds of both ways for each size in bytes, and what follows.

    gain: seconds of the ring over seconds of the groups at the largest size. turns: the size in bytes from which on the
    faster way of the largest size is the faster one; None where it is at every size, and `reason` says so.
    """

    sizes: tuple[int, ...]
    ring: tuple[float, ...]
    groups: tuple[float, ...]
    inner: str
    gain: float
    turns: float | None
    reason: str


def halves(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two groups of the first server. Raises ConfigError where it has no two equal groups over slower links."""
    rings = find_rings(cluster.servers[0], cluster.links)
    groups = [tuple(sorted(ring.slots)) for ring in rings]
    if len(groups) != 2 or len(groups[0]) != len(groups[1]):
        sizes = " + ".join(str(len(group)) for group in groups)
        raise ConfigError(f"{cluster.name}: expected a server of two equal groups joined by slower links, not {sizes}")
    return groups[0], _partners(cluster, groups[0], groups[1])


def _partners(cluster: Cluster, first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The second group so that members of the same number are nearest to each other."""
    left = list(second)
    found = []
    for slot in first:
        nearest = max(left, key=lambda other, slot=slot: cluster.link(slot, other).bandwidth)  # type: ignore[misc]
        left.remove(nearest)
        found.append(nearest)
    return tuple(found)


def compare(
    cluster: Cluster, bridge: float | None = None, gamma: float = 0.0, sizes: Sequence[int] = SIZES, inner: str = ""
) -> Comparison:
    """Play both ways at each size.

    bridge: bytes a second in each direction that all messages between the two groups share, the one path between the
    halves of the machine; None: the bandwidth of their slowest link; infinity: only the ports of the devices count.
    inner: algorithm inside a group; empty: the faster of ring and mesh at each size.
    """
    first, second = halves(cluster)
    order = [*first, *second]
    half = len(first)
    crossing = [cluster.link(a, b) for a in first for b in second]
    width = min(link.bandwidth for link in crossing) if bridge is None else bridge

    def paths(source: int, target: int) -> Ways:
        return [(("bridge", source < half), width)] if (source < half) != (target < half) else []

    link = simulate.links_of(cluster, order)
    ring_order = _ring_order(cluster, first, second)
    places = {slot: place for place, slot in enumerate(order)}

    def ring_paths(source: int, target: int) -> Ways:
        return paths(places[ring_order[source]], places[ring_order[target]])

    whole = schedules.schedule_of("all_reduce", "ring", 2 * half)
    exchange = schedules.schedule_of("all_reduce", "ring", 2)
    ways = [
        schedules.hierarchical("all_reduce", (name, half), exchange)
        for name in ([inner] if inner else ["ring", "mesh"])
    ]
    ring = tuple(simulate.run(whole, n, simulate.links_of(cluster, ring_order), gamma, ring_paths) for n in sizes)
    groups = tuple(min(simulate.run(way, n, link, gamma, paths) for way in ways) for n in sizes)
    turns, reason = _turn(sizes, ring, groups)
    return Comparison(tuple(sizes), ring, groups, inner or "ring or mesh", ring[-1] / groups[-1], turns, reason)


def _ring_order(cluster: Cluster, first: Sequence[int], second: Sequence[int]) -> list[int]:
    """A ring through both groups that crosses twice, over the widest links there are between them."""
    every = [*first, *second]
    links = {(a, b): cluster.link(a, b) for a in every for b in every if a != b}
    path = widest_ring(every, links)
    crossings = sum((a in first) != (b in first) for a, b in zip(path, path[1:] + path[:1], strict=True))
    return path if crossings == 2 else every


def _turn(sizes: Sequence[int], ring: Sequence[float], groups: Sequence[float]) -> tuple[float | None, str]:
    better = [a > b for a, b in zip(ring, groups, strict=True)]
    if all(flag == better[-1] for flag in better):
        name = "groups of four are" if better[-1] else "one ring is"
        return (
            None,
            f"{name} faster at every size from {sizes[0]} to {sizes[-1]} bytes: there is no size where it turns",
        )
    last = max(index for index, flag in enumerate(better) if flag != better[-1])
    # Between two sizes both ways are straight lines of the size.
    before, after = ring[last] - groups[last], ring[last + 1] - groups[last + 1]
    turns = sizes[last] + (sizes[last + 1] - sizes[last]) * before / (before - after)
    return turns, f"from {turns:.0f} bytes on {'groups of four are' if better[-1] else 'one ring is'} faster"
