"""Collective algorithms as messages: which rank sends which blocks to which rank in which round.

A buffer is cut into equal blocks. Rounds follow one another; the messages of a round travel at once. These are the
moves that the formulas of `collectives` count, written down apart from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError


@dataclass(frozen=True)
class Message:
    """Blocks `taken` of the source go to the places `put` of the target, which adds them there or replaces."""

    source: int
    target: int
    taken: tuple[int, ...]
    put: tuple[int, ...]
    add: bool = False


Round = tuple[Message, ...]


@dataclass(frozen=True)
class Schedule:
    """An operation among `ranks`: each holds n bytes in `blocks` blocks.

    An all_to_all has as many places again for what arrives, and as many more for what is on its way. A message of a
    rank to itself costs nothing.
    """

    operation: str
    ranks: int
    blocks: int
    rounds: tuple[Round, ...]


def _message(source: int, target: int, blocks: Sequence[int], add: bool = False) -> Message:
    return Message(source, target, tuple(blocks), tuple(blocks), add)


def _ring_reduce(p: int) -> list[Round]:
    return [tuple(_message(r, (r + 1) % p, [(r - step - 1) % p], True) for r in range(p)) for step in range(p - 1)]


def _ring_gather(p: int) -> list[Round]:
    return [tuple(_message(r, (r + 1) % p, [(r - step) % p]) for r in range(p)) for step in range(p - 1)]


def _mesh_reduce(p: int) -> list[Round]:
    return [tuple(_message(a, b, [b], True) for a in range(p) for b in range(p) if a != b)]


def _mesh_gather(p: int) -> list[Round]:
    return [tuple(_message(a, b, [a]) for a in range(p) for b in range(p) if a != b)]


def _steps(p: int) -> range:
    return range((p - 1).bit_length())


def _bruck_reduce(p: int, way: int) -> list[Round]:
    """Non-uniform Bruck: in step k a block that still has to go an odd multiple of 2^k ranks goes on by 2^k."""
    return [
        tuple(
            _message(r, (r + way * (1 << k)) % p, [(r + way * o) % p for o in range(1 << k, p, 2 << k)], True)
            for r in range(p)
        )
        for k in _steps(p)
    ]


def _reversed(rounds: list[Round]) -> list[Round]:
    """A gather is a reduction that runs backwards and adds nothing."""
    return [tuple(Message(m.target, m.source, m.put, m.taken) for m in messages) for messages in reversed(rounds)]


def _halving_reduce(p: int) -> list[Round]:
    """Recursive halving between 2^k ranks: each pair keeps one half of what it still has to reduce."""
    rounds = []
    for k in reversed(_steps(p)):
        half = 1 << k
        rounds.append(
            tuple(
                _message(r, r ^ half, [b for b in range(p) if b // half == (r ^ half) // half], True) for r in range(p)
            )
        )
    return rounds


def _folded(p: int) -> Schedule:
    """All_reduce of rhd between other than 2^k ranks: odd ranks of the first pairs give theirs to the even ones."""
    core = 1 << ((p - 1).bit_length() - 1)
    extra = p - core
    members = [2 * i for i in range(extra)] + list(range(2 * extra, p))
    every = range(core)
    inner = _halving_reduce(core)
    inner += _reversed(inner)
    before = tuple(_message(2 * i + 1, 2 * i, every, True) for i in range(extra))
    after = tuple(_message(2 * i, 2 * i + 1, every) for i in range(extra))
    moved = [
        tuple(Message(members[m.source], members[m.target], m.taken, m.put, m.add) for m in messages)
        for messages in inner
    ]
    return Schedule("all_reduce", p, core, (before, *moved, after))


def _tree_scatter(p: int) -> list[Round]:
    """From rank 0: in step k, the last first, each holder gives away what lies 2^k or more ranks on."""
    rounds = []
    for k in reversed(_steps(p)):
        far = 1 << k
        holders = [r for r in range(0, p, 2 * far) if r + far < p]
        rounds.append(tuple(_message(r, r + far, range(r + far, min(r + 2 * far, p))) for r in holders))
    return rounds


def _scatter(algorithm: str, p: int) -> list[Round]:
    if algorithm == "mesh":
        return [tuple(_message(0, b, [b]) for b in range(1, p))]
    if algorithm == "ring":
        # The farthest block leaves first; each goes on by one rank a round.
        return [
            tuple(
                _message(r, r + 1, [p - 1 - step + r]) for r in range(p - 1) if 0 <= step - r and p - 1 - step + r > r
            )
            for step in range(p - 1)
        ]
    return _tree_scatter(p)


_REDUCE: dict[str, Callable[[int], list[Round]]] = {
    "ring": _ring_reduce,
    "mesh": _mesh_reduce,
    "rhd": _halving_reduce,
    "nhr": lambda p: _bruck_reduce(p, -1),
    "nb": lambda p: _bruck_reduce(p, 1),
}


def _gather(algorithm: str, p: int) -> list[Round]:
    return _mesh_gather(p) if algorithm == "mesh" else _reversed(_REDUCE[algorithm](p))


def _broadcast(algorithm: str, p: int) -> Schedule:
    if algorithm == "ring":
        return Schedule("broadcast", p, 1, tuple((_message(r, r + 1, [0]),) for r in range(p - 1)))
    if algorithm == "rhd":
        rounds = []
        for k in reversed(_steps(p)):
            far = 1 << k
            rounds.append(tuple(_message(r, r + far, [0]) for r in range(0, p, 2 * far) if r + far < p))
        return Schedule("broadcast", p, 1, tuple(rounds))
    return Schedule("broadcast", p, p, tuple(_scatter(algorithm, p) + _gather(algorithm, p)))


def _all_to_all(algorithm: str, p: int) -> list[Round]:
    def message(source: int, target: int) -> Message:
        return Message(source, target, (target,), (p + source,))

    if algorithm == "mesh":
        return [tuple(message(a, b) for a in range(p) for b in range(p))]
    return [tuple(message(r, (r + step) % p) for r in range(p)) for step in range(p)]


def hierarchical_all_to_all(inner: tuple[str, int], outer: tuple[str, int]) -> Schedule:
    """Inside each server blocks go to the rank with the place of their target, then between servers to the target.

    inner, outer: (algorithm, ranks). Rank = server · inner ranks + place.
    """
    size, servers = inner[1], outer[1]
    p = size * servers

    def inside(server: int, m: Message) -> Message:
        a, b = m.source, m.target
        taken = tuple(other * size + b for other in range(servers))
        return Message(
            server * size + a, server * size + b, taken, tuple(2 * p + other * size + a for other in range(servers))
        )

    def across(place: int, m: Message) -> Message:
        a, b = m.source, m.target
        taken = tuple(2 * p + b * size + i for i in range(size))
        return Message(a * size + place, b * size + place, taken, tuple(p + a * size + i for i in range(size)))

    rounds = [tuple(inside(server, m) for server in range(servers) for m in r) for r in _all_to_all(*inner)]
    rounds += [tuple(across(place, m) for place in range(size) for m in r) for r in _all_to_all(*outer)]
    return Schedule("all_to_all", p, p, tuple(rounds))


def schedule_of(operation: str, algorithm: str, p: int) -> Schedule:
    """The messages of one algorithm among p ranks; a broadcast and a scatter begin at rank 0."""
    if operation == "all_reduce":
        if algorithm == "rhd" and p & (p - 1):
            return _folded(p)
        reduce = _REDUCE[algorithm](p)
        return Schedule(operation, p, p, tuple(reduce + _gather(algorithm, p)))
    if operation == "reduce_scatter" and (algorithm != "rhd" or not p & (p - 1)):
        return Schedule(operation, p, p, tuple(_REDUCE[algorithm](p)))
    if operation == "all_gather" and (algorithm != "rhd" or not p & (p - 1)):
        return Schedule(operation, p, p, tuple(_gather(algorithm, p)))
    if operation == "broadcast":
        return _broadcast(algorithm, p)
    if operation == "scatter":
        return Schedule(operation, p, p, tuple(_scatter(algorithm, p)))
    if operation == "all_to_all":
        return Schedule(operation, p, p, tuple(_all_to_all(algorithm, p)))
    if operation == "send":
        return Schedule(operation, 2, 1, ((_message(0, 1, [0]),),))
    raise ConfigError(f"no messages for {algorithm!r} of {operation!r} among {p} ranks")


def _lifted(
    schedule: Schedule, members: Sequence[Sequence[int]], places: Sequence[Sequence[Sequence[int]]]
) -> list[Round]:
    """The same schedule in several groups at once.

    members[g][i]: the rank that is number i of group g. places[g][b]: the blocks of the whole that its block b is.
    """
    rounds = []
    for messages in schedule.rounds:
        together: list[Message] = []
        for ranks, blocks in zip(members, places, strict=True):
            for m in messages:
                taken = tuple(fine for block in m.taken for fine in blocks[block])
                put = tuple(fine for block in m.put for fine in blocks[block])
                together.append(Message(ranks[m.source], ranks[m.target], taken, put, m.add))
        rounds.append(tuple(together))
    return rounds


def hierarchical(operation: str, inner: tuple[str, int], above: Schedule, gather: str = "") -> Schedule:
    """Compose as HCCL does on Atlas A2: `inner` (algorithm, ranks) inside each server, `above` between servers.

    `gather`: another algorithm for the closing all_gather.
    Rank = server · inner ranks + place. Reduce_scatter: between, then inside. All_gather: inside, then between.
    All_reduce: reduce_scatter inside, all_reduce between, all_gather inside. Broadcast: scatter inside, broadcast
    between, all_gather inside.
    """
    algorithm, size = inner
    servers = above.ranks
    within = [[server * size + place for place in range(size)] for server in range(servers)]
    across = [[server * size + place for server in range(servers)] for place in range(size)]
    if operation in ("all_reduce", "broadcast"):
        # Block i of a server is `pieces` blocks of the whole, which the ranks of place i then share out.
        pieces = above.blocks
        blocks = [[range(i * pieces, (i + 1) * pieces) for i in range(size)]] * servers
        own = [[[i * pieces + b] for b in range(pieces)] for i in range(size)]
        first = "reduce_scatter" if operation == "all_reduce" else "scatter"
        groups = (within, blocks) if operation == "all_reduce" else (within[:1], blocks[:1])
        rounds = _lifted(schedule_of(first, algorithm, size), *groups) + _lifted(above, across, own)
        rounds += _lifted(schedule_of("all_gather", gather or algorithm, size), within, blocks)
        return Schedule(operation, size * servers, size * pieces, tuple(rounds))
    coarse = [[range(server * size, (server + 1) * size) for server in range(servers)]] * size
    fine = [[[server * size + place] for place in range(size)] for server in range(servers)]
    inside = _lifted(schedule_of(operation, algorithm, size), within, fine)
    between = _lifted(above, across, coarse)
    rounds = between + inside if operation == "reduce_scatter" else inside + between
    return Schedule(operation, size * servers, size * servers, tuple(rounds))


def pipeline(operation: str, size: int, servers: int) -> Schedule:
    """HCCL's pipeline: while blocks travel the ring of servers, each server spreads those that came before."""
    gather = _pipeline_gather(size, servers)
    reduce = [tuple(Message(m.target, m.source, m.put, m.taken, True) for m in messages) for messages in gather[::-1]]
    rounds = {"all_gather": gather, "reduce_scatter": reduce, "all_reduce": reduce + gather}[operation]
    return Schedule(operation, size * servers, size * servers, tuple(rounds))


def _pipeline_gather(size: int, servers: int) -> list[Round]:
    def spread(step: int) -> list[Message]:
        return [
            _message(server * size + a, server * size + b, [(server - step) % servers * size + a])
            for server in range(servers)
            for a in range(size)
            for b in range(size)
            if a != b
        ]

    rounds = []
    for step in range(servers - 1):
        onward = [
            _message(server * size + a, (server + 1) % servers * size + a, [(server - step) % servers * size + a])
            for server in range(servers)
            for a in range(size)
        ]
        rounds.append(tuple(onward + spread(step)))
    return [*rounds, tuple(spread(servers - 1))]
