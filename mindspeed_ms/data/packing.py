"""Several documents to a row: best-fit decreasing, on all documents of one length at once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np


def best_fit(lengths: np.ndarray, capacities: list[int], most: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows for documents: the longest first, each into the row that it leaves the least room in.

    lengths: int [n], 1 to the last capacity. capacities: row lengths to choose from, ascending: a new row is of the
    smallest that holds the document. most: documents a row of each capacity may hold.
    Returns the row of each document, int64 [n], and the capacity's index of each row, int64 [rows].
    The classic greedy (Johnson 1974): at most 11/9 of the fewest rows, in practice near none over where many are short.
    """
    row_of = np.empty(len(lengths), dtype=np.int64)
    kinds: list[np.ndarray] = []  # of the rows, as they are opened
    rows = _OpenRows(capacities[-1])
    order = np.argsort(lengths, kind="stable")
    values, starts = np.unique(lengths[order], return_index=True)
    for length, documents in zip(values[::-1].tolist(), np.split(order, starts[1:])[::-1], strict=False):
        placed = rows.place(length, documents, row_of)
        left = documents[placed:]
        if not len(left):
            continue
        kind = int(np.searchsorted(capacities, length))
        each = min(capacities[kind] // length, most[kind])
        count = -(-len(left) // each)
        kinds.append(np.full(count, kind, dtype=np.int64))
        row_of[left] = rows.total + np.arange(len(left)) // each
        rows.open(count, capacities[kind], most[kind], each, len(left), length)
    return row_of, np.concatenate(kinds) if kinds else np.empty(0, dtype=np.int64)


class _OpenRows:
    """Rows with room left, by how much: room g -> the numbers of the rows that have it."""

    def __init__(self, largest: int) -> None:
        self.total = 0
        self._by_room: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._any = np.zeros(largest + 1, dtype=bool)
        self._left = np.empty(0, dtype=np.int64)  # documents that each row may still take

    def open(self, count: int, capacity: int, most: int, each: int, documents: int, length: int) -> None:
        """`count` new rows with `each` documents of one length; the last one has what remains."""
        numbers = np.arange(self.total, self.total + count)
        self.total += count
        if self.total > len(self._left):
            self._left = np.concatenate([self._left, np.empty(max(count, len(self._left)), dtype=np.int64)])
        self._left[numbers] = most - each
        last = documents - each * (count - 1)
        self._left[numbers[-1]] = most - last
        self._file(numbers[:-1], capacity - each * length)
        self._file(numbers[-1:], capacity - last * length)

    def place(self, length: int, documents: np.ndarray, row_of: np.ndarray) -> int:
        """Put documents of one length where they fit best; returns how many found room."""
        placed = 0
        for room in (np.flatnonzero(self._any[length:]) + length).tolist():
            if placed == len(documents):
                break
            rows = np.concatenate(self._by_room.pop(room))
            self._any[room] = False
            takes = np.minimum(room // length, self._left[rows])
            sums = np.cumsum(takes)
            full = int(np.searchsorted(sums, len(documents) - placed, side="right"))
            used = takes[: full + 1].copy()
            if full < len(rows):  # the last row touched takes the rest, perhaps nothing
                used[full] = len(documents) - placed - (sums[full - 1] if full else 0)
            touched = rows[: len(used)]
            count = int(used.sum())
            row_of[documents[placed : placed + count]] = np.repeat(touched, used)
            placed += count
            self._left[touched] -= used
            for n in np.unique(used).tolist():
                self._file(touched[used == n], room - n * length)
            self._file(rows[len(used) :], room)
        return placed

    def _file(self, rows: np.ndarray, room: int) -> None:
        rows = rows[self._left[rows] > 0]
        if len(rows) and room > 0:
            self._by_room[room].append(rows)
            self._any[room] = True
