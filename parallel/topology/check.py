"""Find the groups of a job that cross slow links although they need not, and the order of ranks that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.collectives import best
from mindspeed_ms.parallel.topology.groups import DIMENSIONS, HasDegrees, arrange, rank_groups, size_of
from mindspeed_ms.parallel.topology.rings import find_rings

# What each dimension mostly does (Megatron-LM; Narayanan et al., 2021).
OPERATION = {
    "tensor": "all_reduce",
    "context": "all_gather",
    "expert": "all_to_all",
    "data": "all_reduce",
    "pipeline": "send",
}
_SLOWER = 1.05  # below that, a difference is not worth a word
_NBYTES = 64 << 20


@dataclass(frozen=True)
class Finding:
    """One group that crosses slow links: which ranks hold it up, over what, and what another order would bring."""

    dimension: str
    group: int  # its number within the dimension
    ranks: tuple[int, ...]
    pair: tuple[int, int]  # the two ranks with the slowest link between them
    kind: str  # of that link
    seconds: float  # of the dimension's operation on 64 MB
    best_seconds: float  # of the fastest group of this dimension, with the ranks arranged
    mend: tuple[int, ...] | None  # an order of ranks with fewer such groups; None: there is none

    @property
    def ratio(self) -> float:
        """How many times as long it takes."""
        return self.seconds / self.best_seconds if self.best_seconds else float("inf")

    def sentence(self) -> str:
        """All of it for a person."""
        first, second = self.pair
        how = f"{self.ratio:.1f} times as slow as it could be" if self.ratio >= _SLOWER else "as every such group does"
        cure = (
            "no order of ranks mends it: lower the degree" if self.mend is None else "another order of ranks mends it"
        )
        return (
            f"{self.dimension} group {self.group} crosses {self.kind} between ranks {first} and {second}, {how}; {cure}"
        )


def check(cluster: Cluster, order: Sequence[int], degrees: HasDegrees, nbytes: float = _NBYTES) -> list[Finding]:
    """The groups that are slower than the ranks' arrangement allows, and tensor groups that leave their ring.

    `order[rank]` is a slot. `nbytes` is the size of message to reckon with. Raises ConfigError for an order that does
    not fit the job or the cluster.
    """
    arranged = arrange(cluster, degrees).order
    _valid(cluster, order, size_of(degrees))
    groups = rank_groups(degrees)
    ring_of = {slot: number for number, ring in enumerate(find_rings(cluster)) for slot in ring.slots}
    times = {
        dimension: (
            _seconds(cluster, order, groups[dimension], dimension, nbytes),
            _seconds(cluster, arranged, groups[dimension], dimension, nbytes),
        )
        for dimension in DIMENSIONS
        if len(groups[dimension][0]) > 1
    }
    better = _better(times.values())
    found: list[Finding] = []
    for dimension, (now, then) in times.items():
        quickest = min(then)
        slow = [at for at, seconds in enumerate(now) if seconds > _SLOWER * quickest]
        unavoidable = sum(seconds > _SLOWER * quickest for seconds in then)
        mend = arranged if better and (sum(now), len(slow)) > (_SLOWER * sum(then), unavoidable) else None
        if mend is None:
            # As good as it gets; of the busiest dimension it is still worth a word.
            slow = _leaving(groups["tensor"], order, ring_of) if dimension == "tensor" else []
        for at in slow:
            ranks = groups[dimension][at]
            first, second = slowest_pair(cluster, [order[rank] for rank in ranks])
            kind = cluster.kind(order[ranks[first]], order[ranks[second]])
            pair = (ranks[first], ranks[second])
            found.append(Finding(dimension, at, ranks, pair, kind, now[at], quickest, mend))
    return found


def _better(times: Iterable[tuple[Sequence[float], Sequence[float]]]) -> bool:
    """Whether the second order is faster where it counts: in the busiest dimension in which they differ.

    There it has to be so in all, and its slowest group, for which the others wait, may be no slower.
    """
    for now, then in times:
        if max(sum(now), sum(then)) > _SLOWER * min(sum(now), sum(then)):
            return sum(now) > sum(then) and max(then) <= _SLOWER * max(now)
    return False


def _valid(cluster: Cluster, order: Sequence[int], size: int) -> None:
    if len(order) != size:
        raise ConfigError(f"the order has {len(order)} ranks, the degrees make {size}; they have to be equal")
    for slot in order:
        cluster.place(slot)
    if len(set(order)) < len(order):
        twice = next(slot for slot in order if list(order).count(slot) > 1)
        raise ConfigError(f"the order has slot {twice} twice; expected each device for one rank")


def _seconds(
    cluster: Cluster, order: Sequence[int], groups: Sequence[Sequence[int]], dimension: str, nbytes: float
) -> list[float]:
    if dimension != "pipeline":
        return [
            best(OPERATION[dimension], [order[rank] for rank in ranks], nbytes, cluster).seconds for ranks in groups
        ]
    return [  # a stage sends to the next: the slowest of these holds all up
        max(best("send", (order[a], order[b]), nbytes, cluster).seconds for a, b in zip(ranks, ranks[1:], strict=False))
        for ranks in groups
    ]


def _leaving(groups: Sequence[Sequence[int]], order: Sequence[int], ring_of: dict[int, int]) -> list[int]:
    """Numbers of the groups whose ranks sit in more than one ring."""
    return [at for at, ranks in enumerate(groups) if len({ring_of[order[rank]] for rank in ranks}) > 1]


def slowest_pair(cluster: Cluster, slots: Sequence[int]) -> tuple[int, int]:
    """Places in `slots` of the two that the slowest link joins, the first of equals.

    Links between servers depend on their pods alone, so one device of each server stands for the others there.
    """
    members: dict[int, list[int]] = {}
    for at, slot in enumerate(slots):
        members.setdefault(cluster.place(slot)[0], []).append(at)
    pairs = [(a, b) for inside in members.values() for n, a in enumerate(inside) for b in inside[n + 1 :]]
    pods: dict[object, list[int]] = {}
    pod_of = {server: number for number, pod in enumerate(cluster.pods) for server in pod}
    for server, inside in members.items():
        pods.setdefault(pod_of.get(server, ("alone", server)), []).append(inside[0])
    firsts = [heads[0] for heads in pods.values()]
    pairs += [(heads[0], heads[1]) for heads in pods.values() if len(heads) > 1]
    pairs += [(firsts[0], firsts[1])] if len(firsts) > 1 else []

    def speed(pair: tuple[int, int]) -> tuple[float, float, int, int]:
        link = cluster.link(slots[pair[0]], slots[pair[1]])
        return link.bandwidth, -link.latency, min(pair), max(pair)

    first, second = min(pairs, key=speed)
    return min(first, second), max(first, second)
