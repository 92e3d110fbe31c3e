"""What collective operations cost, by Hockney's model: seconds = α·messages + β·bytes sent + γ·bytes reduced.

Formulas: HCCL user guide, "Introduction to collective algorithms" (mirror-cann/hccl, docs/zh/user_guide/
coll_algo_intro: Ring, Mesh, RHD, NHR, NB, Pipeline, Pairwise, hierarchical_comm_principle). `simulate` plays every one
of them message by message and must agree.

`nbytes` is n of the formulas: the whole buffer of an all_reduce, broadcast or send, the whole input of a
reduce_scatter, the whole output of an all_gather, all that one rank holds before an all_to_all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology import schedules, simulate
from mindspeed_ms.parallel.topology.cluster import Cluster, Link
from mindspeed_ms.parallel.topology.hierarchy import GroupShape, Level, shape_of

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send")
ALGORITHMS = {
    "all_reduce": ("ring", "mesh", "rhd", "nhr", "nb"),
    "reduce_scatter": ("ring", "mesh", "rhd", "nhr", "nb"),
    "all_gather": ("ring", "mesh", "rhd", "nhr", "nb"),
    "all_to_all": ("pairwise", "mesh"),
    "broadcast": ("ring", "mesh", "rhd", "nhr", "nb"),
    "scatter": ("ring", "mesh", "nhr", "nb"),
    "send": ("send",),
}


@dataclass(frozen=True)
class Choice:
    """The cheapest way to do one operation: its name, seconds, and (what, seconds) of each part in turn."""

    algorithm: str
    seconds: float
    parts: tuple[tuple[str, float], ...] = ()


def time_of(operation: str, algorithm: str, p: int, nbytes: float, link: Link, gamma: float = 0.0) -> float:
    """Seconds of one operation among p ranks that are joined by equal links.

    A shared link is one port for all of a rank's messages: what a mesh sends at once then goes in turn.
    Raises ConfigError for an algorithm that does not do this operation, or not with p ranks.
    """
    if algorithm not in ALGORITHMS.get(operation, ()):
        known = ", ".join(ALGORITHMS.get(operation, ())) or f"operations are {', '.join(OPERATIONS)}"
        raise ConfigError(f"no algorithm {algorithm!r} for {operation!r}: {known}")
    if p < 2:
        return 0.0
    if not can(operation, algorithm, p):
        raise ConfigError(f"rhd: a {operation} needs a power of two of ranks, not {p}; take nhr, nb or ring")
    steps, sent, reduced = _counts(operation, algorithm, p, link.shared)
    return steps * link.latency + sent * nbytes / link.bandwidth + reduced * nbytes * gamma


def can(operation: str, algorithm: str, p: int) -> bool:
    """Whether the algorithm does the operation with so many ranks (HCCL's formula of rhd is partly for 2^k only)."""
    return algorithm != "rhd" or operation in ("all_reduce", "broadcast") or p & (p - 1) == 0


@cache
def _counts(operation: str, algorithm: str, p: int, shared: bool) -> tuple[float, float, float]:
    """Messages in turn, and bytes sent and reduced by a rank as a share of n."""
    share, steps = (p - 1) / p, (p - 1).bit_length()
    reduced = share if operation in ("all_reduce", "reduce_scatter") else 0.0
    if operation == "send":
        return 1, 1.0, 0.0
    if operation == "all_to_all":
        return (p - 1, share, 0.0) if algorithm == "pairwise" else (1, share if shared else 1 / p, 0.0)
    passes = 2 if operation in ("all_reduce", "broadcast") else 1
    if algorithm == "mesh":
        return passes, passes * (share if shared else 1 / p), reduced
    if operation == "broadcast" and algorithm in ("ring", "rhd"):
        turns = p - 1 if algorithm == "ring" else steps
        return turns, float(turns), 0.0
    if algorithm == "ring":
        return passes * (p - 1), passes * share, reduced
    if algorithm == "rhd" and p & (p - 1):
        core = 1 << (steps - 1)
        inner = (core - 1) / core
        return 2 * (steps - 1) + 2, 2 * inner + 2, inner + 1
    return passes * steps, passes * share, reduced


def pipeline_time(operation: str, inner: Level, outer: Level, nbytes: float, gamma: float = 0.0) -> float:
    """Seconds of HCCL's pipeline: a ring between servers while the block before is spread inside each server."""
    if operation not in ("all_reduce", "reduce_scatter", "all_gather"):
        raise ConfigError(f"no algorithm 'pipeline' for {operation!r}: it does all_reduce, reduce_scatter, all_gather")
    block = nbytes / (inner.size * outer.size)
    ports = inner.size - 1 if inner.mesh.shared else 1
    inside = inner.mesh.latency + ports * block / inner.mesh.bandwidth
    across = outer.ring.latency + block / outer.ring.bandwidth
    once = max(across, inside) * (outer.size - 1) + inside
    reduced = 0.0 if operation == "all_gather" else (nbytes - block) * gamma
    return (2 if operation == "all_reduce" else 1) * once + reduced


# (inner operation, its bytes) before and after what the levels above do, by the order of HCCL (Atlas A2):
# the share of the bytes that the level itself and the levels above work on, given their sizes.
def _around(operation: str, inner: int, above: int) -> tuple[tuple[str, float] | None, float, tuple[str, float] | None]:
    if operation == "all_reduce":
        return ("reduce_scatter", 1.0), 1 / inner, ("all_gather", 1.0)
    if operation == "reduce_scatter":
        return None, 1.0, ("reduce_scatter", 1 / above)
    if operation == "all_gather":
        return ("all_gather", 1 / above), 1.0, None
    if operation == "broadcast":
        return ("scatter", 1.0), 1 / inner, ("all_gather", 1.0)
    return (operation, 1.0), 1.0, None


@lru_cache(maxsize=1 << 16)
def flat(operation: str, level: Level, nbytes: float, gamma: float = 0.0) -> Choice:
    """The cheapest algorithm among the members of one level."""
    timed = [
        (time_of(operation, name, level.size, nbytes, level.ring if name == "ring" else level.mesh, gamma), name)
        for name in ALGORITHMS[operation]
        if can(operation, name, level.size)
    ]
    seconds, name = min(timed)
    return Choice(name, seconds, ((f"{operation} {name} of {level.size} over {level.mesh.kind}", seconds),))


def layered(operation: str, levels: tuple[Level, ...], nbytes: float, gamma: float = 0.0) -> Choice:
    """The cheapest of: each level in turn (HCCL's hierarchical form), a pipeline over two levels, one ring over all."""
    if len(levels) == 1:
        return flat(operation, levels[0], nbytes, gamma)
    found = [_in_turn(operation, levels, nbytes, gamma), _one_ring(operation, levels, nbytes, gamma)]
    one_port = levels[0].mesh.shared and levels[0].mesh.kind == levels[1].ring.kind
    if len(levels) == 2 and not one_port and operation in ("all_reduce", "reduce_scatter", "all_gather"):
        seconds = pipeline_time(operation, levels[0], levels[1], nbytes, gamma)
        found.append(
            Choice("pipeline", seconds, ((f"{operation} pipeline {levels[0].size}x{levels[1].size}", seconds),))
        )
    return min(found, key=lambda choice: choice.seconds)


def _in_turn(operation: str, levels: tuple[Level, ...], nbytes: float, gamma: float) -> Choice:
    inner, above = levels[0], levels[1:]
    members = 1
    for level in above:
        members *= level.size
    before, share, after = _around(operation, inner.size, members)
    chosen = []
    if before:
        chosen.append(flat(before[0], inner, before[1] * nbytes, gamma))
    chosen.append(layered(operation, above, share * nbytes, gamma))
    if after:
        chosen.append(flat(after[0], inner, after[1] * nbytes, gamma))
    parts = tuple(part for choice in chosen for part in choice.parts)
    return Choice("hierarchical", sum(choice.seconds for choice in chosen), parts)


def _one_ring(operation: str, levels: tuple[Level, ...], nbytes: float, gamma: float) -> Choice:
    """Every member in one ring through all levels (one by one for an all_to_all): a round takes its slowest link."""
    size = 1
    for level in levels:
        size *= level.size
    name = "pairwise" if operation == "all_to_all" else "ring"
    steps, sent, reduced = _counts(operation, name, size, False)
    block = sent / steps * nbytes
    each = [level.ring.latency + block / level.ring.bandwidth for level in levels]
    if operation == "broadcast":
        seconds = sum(count * once for count, once in zip(_hops(levels, size), each, strict=True))
    elif operation == "all_to_all":
        rounds = _rounds(levels, size)
        seconds = sum(count * max(each[number:]) for number, count in enumerate(rounds))
    else:
        seconds = steps * max(each) + reduced * nbytes * gamma
    return Choice(name, seconds, ((f"{operation} {name} of {size} over all levels", seconds),))


def _hops(levels: tuple[Level, ...], size: int) -> list[int]:
    """How many neighbours on a chain through all members are joined at each level."""
    found, inside = [], 1
    for level in levels:
        found.append(size // inside - size // (inside * level.size))
        inside *= level.size
    return found


def _rounds(levels: tuple[Level, ...], size: int) -> list[int]:
    """Of the rounds in which all send by one and the same distance, how many use each level as their innermost."""
    found, inside, before = [], 1, 0
    for level in levels:
        inside *= level.size
        nearer = min(2 * (inside - 1), size - 1)
        found.append(nearer - before)
        before = nearer
    return found


def _played(operation: str, shape: GroupShape, nbytes: float, gamma: float) -> Choice:
    """Servers with different numbers of members: no formula holds, so every algorithm is played."""

    def link(source: int, target: int) -> Link:
        return shape.links[source][target]  # type: ignore[return-value]

    timed = []
    for name in ALGORITHMS[operation]:
        if can(operation, name, shape.size):
            seconds = simulate.run(schedules.schedule_of(operation, name, shape.size), nbytes, link, gamma)
            timed.append((seconds, name))
    seconds, name = min(timed)
    return Choice(name, seconds, ((f"{operation} {name} of {shape.size} on uneven servers", seconds),))


@lru_cache(maxsize=1 << 18)
def best_of_shape(operation: str, shape: GroupShape, nbytes: float, gamma: float = 0.0) -> Choice:
    """The cheapest way among groups of this shape."""
    if operation not in OPERATIONS:
        raise ConfigError(f"no operation {operation!r}: they are {', '.join(OPERATIONS)}")
    if shape.size < 2 or nbytes <= 0:
        return Choice("none", 0.0)
    if operation == "send":
        link = shape.levels[-1].mesh
        seconds = time_of("send", "send", 2, nbytes, link)
        return Choice("send", seconds, ((f"send over {link.kind}", seconds),))
    return _played(operation, shape, nbytes, gamma) if shape.links else layered(operation, shape.levels, nbytes, gamma)


def best(operation: str, slots: Sequence[int], nbytes: float, cluster: Cluster, gamma: float = 0.0) -> Choice:
    """The cheapest way to do an operation among these slots of a cluster; a send goes over their slowest link."""
    return best_of_shape(operation, shape_of(cluster, slots), nbytes, gamma)
