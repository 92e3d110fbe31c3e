"""The order round a graph whose narrowest link is as wide as can be: a bottleneck Hamiltonian cycle.

Up to 16 vertices the answer is exact: for each width from the widest down, dynamic programming over subsets (Held and
Karp, 1962) says whether the links of at least that width hold a cycle. Above, a path is grown and turned round (Pósa,
1976), a bounded number of times, so a wider order may exist; `exact` says which it was.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

EXACT = 16  # vertices up to which the answer is exact
_TURNS = 400  # of a path, for each of its vertices
Widths = Sequence[Sequence[float]]  # widths[a][b] of the link between a and b; the diagonal counts for nothing


def widest_cycle(widths: Widths) -> tuple[tuple[int, ...], bool]:
    """The order of the widest cycle through all vertices, from 0 on, and whether it is certain that none is wider."""
    return _widest(widths, closed=True)


def widest_path(widths: Widths) -> tuple[tuple[int, ...], bool]:
    """The same for a path, whose ends need no link."""
    return _widest(widths, closed=False)


def narrowest(widths: Widths, order: Sequence[int], closed: bool) -> float:
    """The width of an order's narrowest link; infinite for a single vertex."""
    pairs = list(zip(order, order[1:], strict=False))
    if closed and len(order) > 2:
        pairs.append((order[-1], order[0]))
    return min((widths[a][b] for a, b in pairs), default=float("inf"))


def _widest(widths: Widths, closed: bool) -> tuple[tuple[int, ...], bool]:
    count = len(widths)
    natural = tuple(range(count))
    if count < 3 and (closed or count < 2):
        return natural, True
    exact = True
    for width in sorted({widths[a][b] for a in range(count) for b in range(count) if a != b}, reverse=True):
        if narrowest(widths, natural, closed) >= width:
            return natural, exact
        near = [
            sum(1 << b for b in range(count) if b != a and widths[a][b] >= width) for a in range(count)
        ]  # a set of vertices is the bits of a number
        if not _may_have(near, closed):
            continue
        order = _exact(near, closed) if count <= EXACT else _grown(near, closed)
        if order:
            return order, exact
        exact = exact and count <= EXACT
    return natural, exact


def _may_have(near: list[int], closed: bool) -> bool:
    """Cheap signs that there is no such cycle or path: a vertex with too few links, a part out of reach."""
    few = sum(1 for links in near if links.bit_count() < 2)
    if any(links == 0 for links in near) or few > (0 if closed else 2):
        return False
    reached, todo = 1, 1
    while todo:
        vertex = (todo & -todo).bit_length() - 1
        todo &= todo - 1
        new = near[vertex] & ~reached
        reached |= new
        todo |= new
    return reached == (1 << len(near)) - 1


def _exact(near: list[int], closed: bool) -> tuple[int, ...]:
    """A cycle or path by dynamic programming over sets of vertices; empty if there is none."""
    count = len(near)
    # A path is a cycle through one more vertex that is linked with all.
    links = near if closed else [*(row | 1 << count for row in near), (1 << count) - 1]
    size = len(links)
    start = 0 if closed else count
    whole = (1 << size) - 1
    ends = {1 << start: 1 << start}  # a set that holds the start → the vertices where a path through all of it can end
    layer = [1 << start]
    for _ in range(size - 1):
        grown: dict[int, int] = {}
        for members in layer:
            last = ends[members]
            for vertex in range(size):
                bit = 1 << vertex
                if not members & bit and links[vertex] & last:
                    grown[members | bit] = grown.get(members | bit, 0) | bit
        ends.update(grown)
        layer = list(grown)
    closing = ends.get(whole, 0) & links[start]
    if not closing:
        return ()
    order, members, possible = [], whole, closing
    while members != 1 << start:
        bit = possible & -possible
        vertex = bit.bit_length() - 1
        order.append(vertex)
        members ^= bit
        possible = ends[members] & links[vertex]
    order.reverse()
    return (start, *order) if closed else tuple(order)


def _grown(near: list[int], closed: bool) -> tuple[int, ...]:
    """A cycle or path by growing one and turning its end round (Pósa); empty if none was found in time."""
    count = len(near)
    chance = random.Random(0)  # the same answer every time
    path, on = [0], 1
    for _ in range(_TURNS * count):
        last = path[-1]
        ways_on = near[last] & ~on
        if ways_on:
            # First to where few ways lead on (Warnsdorff): such vertices are hard to reach later.
            vertex = min(_bits(ways_on), key=lambda v: ((near[v] & ~on).bit_count(), v))
            path.append(vertex)
            on |= 1 << vertex
            continue
        if len(path) == count and (not closed or near[last] >> path[0] & 1):
            turn = path.index(0) if closed else 0
            return (*path[turn:], *path[:turn])
        behind = [vertex for vertex in _bits(near[last]) if vertex != path[-2:][0]]
        if not behind:
            path.reverse()
            continue
        at = path.index(chance.choice(behind))
        path[at + 1 :] = reversed(path[at + 1 :])
        if chance.random() < 0.1:
            path.reverse()
    return ()


def _bits(number: int) -> list[int]:
    found = []
    while number:
        found.append((number & -number).bit_length() - 1)
        number &= number - 1
    return found
