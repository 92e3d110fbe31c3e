"""Row lengths for the buckets: the ones that pad least, by an exact dynamic programme."""

from __future__ import annotations

import numpy as np

from mindspeed_ms.errors import DataError


def padding(lengths: np.ndarray, counts: np.ndarray, boundaries: list[int]) -> int:
    """Tokens of padding when each document has a row to itself, of the smallest boundary that holds it.

    lengths, counts: int64 [n], a histogram. Raises DataError when a length is above the last boundary.
    """
    limits = np.asarray(boundaries, dtype=np.int64)
    if len(lengths) and lengths.max() > limits[-1]:
        raise DataError(f"a document of {lengths.max()} tokens is longer than the last boundary, {boundaries[-1]}")
    rows = limits[np.searchsorted(limits, lengths)]
    return int(((rows - lengths) * counts).sum())


def optimal_boundaries(lengths: np.ndarray, counts: np.ndarray, buckets: int, multiple_of: int = 1) -> list[int]:
    """At most `buckets` ascending multiples of `multiple_of` that minimise `padding`.

    lengths, counts: int64 [n], a histogram of positive lengths. With c the possible boundaries and N(j) the number of
    documents up to c(j), the least capacity of k buckets up to c(j) is f(k, j) = min over i < j of
    f(k-1, i) + (N(j) - N(i)) c(j): for each k the lower envelope of lines of slope -N(i), asked at ascending c(j)
    (the convex hull trick), so all of it is O(buckets · n), in exact integers.
    """
    rounded = -(-np.asarray(lengths, dtype=np.int64) // multiple_of) * multiple_of
    points, where = np.unique(rounded, return_inverse=True)
    sums = np.zeros(len(points), dtype=np.int64)
    np.add.at(sums, where.ravel(), counts)
    kept = sums > 0
    ends: list[int] = points[kept].tolist()
    below = [0, *np.cumsum(sums[kept]).tolist()]
    if not ends:
        raise DataError("no document is left to make buckets for; see what cleaning dropped")
    best: list[int | None] = [0, *[None] * len(ends)]  # least capacity of the documents below each point, k = 0
    choices: list[list[int]] = []
    for _ in range(min(buckets, len(ends))):
        best, chosen = _one_more_bucket(best, below, ends)
        choices.append(chosen)
    result: list[int] = []
    j = len(ends)
    for chosen in reversed(choices):
        result.append(ends[j - 1])
        j = chosen[j]
    return result[::-1]


def halved_boundaries(lengths: np.ndarray, longest: int, buckets: int, multiple_of: int = 1) -> list[int]:
    """At most `buckets` lengths from `longest` down, each half of the next, for rows that are shared.

    A row then holds two documents of the bucket below. The boundaries that pad least with a document a row lie closer
    together, and a row that nothing else fits into keeps its padding: 11 to 12 % of Chinese poems against 1 to 5 % with
    halves (docs/benchmarks.md). Lengths that no document would open a row of are left out. Raises DataError when there
    is no document.
    """
    if not len(lengths):
        raise DataError("no document is left to make buckets for; see what cleaning dropped")
    halves = (-(-longest // (1 << bucket)) for bucket in range(buckets))  # rounded up
    rounded = sorted({-(-half // multiple_of) * multiple_of for half in halves})
    last = next(boundary for boundary in rounded if boundary >= lengths.max())
    return [boundary for boundary in rounded if lengths.min() <= boundary <= last]


def _one_more_bucket(best: list[int | None], below: list[int], ends: list[int]) -> tuple[list[int | None], list[int]]:
    """f(k, ·) from f(k-1, ·), and where the k-th bucket starts for each end."""
    after: list[int | None] = [None] * len(best)
    chosen = [0] * len(best)
    hull: list[tuple[int, int, int]] = []  # slope, intercept, start: lines in order of falling slope
    head = 0
    for j, end in enumerate(ends, 1):
        value = best[j - 1]
        if value is not None:
            line = (-below[j - 1], value, j - 1)
            while len(hull) - head >= 2 and _hides(hull[-2], line, hull[-1]):
                hull.pop()
            hull.append(line)
        if head >= len(hull):
            continue
        while head + 1 < len(hull) and _at(hull[head + 1], end) <= _at(hull[head], end):
            head += 1
        after[j] = _at(hull[head], end) + below[j] * end
        chosen[j] = hull[head][2]
    return after, chosen


def _at(line: tuple[int, int, int], x: int) -> int:
    return line[0] * x + line[1]


def _hides(left: tuple[int, int, int], right: tuple[int, int, int], middle: tuple[int, int, int]) -> bool:
    """Whether the middle one of three lines of falling slope is nowhere the lowest."""
    return (right[1] - left[1]) * (left[0] - middle[0]) <= (middle[1] - left[1]) * (left[0] - right[0])
