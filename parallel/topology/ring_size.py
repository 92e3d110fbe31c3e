"""How many devices of a server should make one ring: the size at which the cost model's all_reduce is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindspeed_ms.parallel.topology.cluster import Cluster, Link
from mindspeed_ms.parallel.topology.collectives import ALGORITHMS, can, time_of
from mindspeed_ms.parallel.topology.hierarchy import widest_ring, worst
from mindspeed_ms.parallel.topology.rings import components, find_rings

_BUCKET = 64 << 20  # bytes that MindSpore fuses into one all_reduce (comm_fusion, mode auto)


def ring_times(cluster: Cluster, server: int = 0, nbytes: float = _BUCKET) -> dict[int, float]:
    """Seconds of an all_reduce over all devices of a server, for each size of ring it can be cut into.

    Each ring reduces and scatters, members of equal number exchange between the rings, each ring gathers: HCCL's
    hierarchical form. The size of the whole server is one ring over all, at its narrowest link.
    """
    machine = cluster.servers[server]
    order = [device for _, device in components(machine, cluster.links)]
    links = {
        (first, second): cluster.links[machine.kinds[first][second]]
        for first in order
        for second in order
        if first != second
    }
    times = {}
    for size in range(2, len(order) + 1):
        if len(order) % size == 0:
            rings = [order[start : start + size] for start in range(0, len(order), size)]
            times[size] = _time(rings, links, nbytes)
    return times


def ring_size(cluster: Cluster, server: int = 0, times: Mapping[int, float] | None = None) -> int:
    """The size of ring at which the all_reduce is fastest; 1 for a single device.

    Where speeds differ by less than a hundredth (PIX and PHB have one figure), it is that of the rings of the nearest
    devices, and without those the largest. times: what `ring_times` says of the server, where that is known.
    """
    times = ring_times(cluster, server) if times is None else times
    if not times:
        return 1
    alike = [size for size, seconds in times.items() if seconds <= 1.01 * min(times.values())]
    [found, *others] = {len(ring.slots) for ring in find_rings(cluster.servers[server], cluster.links)}
    return found if not others and found in alike else max(alike)


def _time(rings: Sequence[Sequence[int]], links: dict[tuple[int, int], Link], nbytes: float) -> float:
    size, count = len(rings[0]), len(rings)
    inside = max(_fastest("all_reduce" if count == 1 else "reduce_scatter", ring, links, nbytes) for ring in rings)
    if count == 1:
        return inside
    across = max(_fastest("all_reduce", [ring[at] for ring in rings], links, nbytes / size) for at in range(size))
    return 2 * inside + across  # to gather takes as long as to scatter


def _fastest(operation: str, members: Sequence[int], links: dict[tuple[int, int], Link], nbytes: float) -> float:
    """Seconds of the fastest algorithm: a ring at the narrowest link of the best order, others at that of any pair."""
    pairs = [links[first, second] for first in members for second in members if first != second]
    around = widest_ring(list(members), links)
    ring = worst(links[pair] for pair in zip(around, around[1:] + around[:1], strict=True))
    return min(
        time_of(operation, name, len(members), nbytes, ring if name == "ring" else worst(pairs))
        for name in ALGORITHMS[operation]
        if can(operation, name, len(members))
    )
