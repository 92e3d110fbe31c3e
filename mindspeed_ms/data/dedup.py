"""Copies of earlier documents, found in bounded memory: which documents of each segment are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindspeed_ms.data.segments import Segment

_AT_ONCE = 4 << 20  # distinct documents in memory while looking for exact copies


def exact_duplicates(segments: Sequence[Segment], copies: Sequence[np.ndarray]) -> None:
    """Mark documents that equal an earlier one, by xxh3-128 of their cleaned text.

    copies: bool [documents] a segment, False; mapped from files they need no memory either. The hashes are looked at a
    range at a time, each with about _AT_ONCE distinct ones in it.
    """
    ranges = -(-sum(map(len, copies)) // _AT_ONCE)
    for part in range(ranges):
        seen = np.empty((0, 2), dtype=np.uint64)
        for segment, copy in zip(segments, copies, strict=True):
            hashes = segment.array("hashes")
            # The upper 32 bits times the number of ranges, shifted down: the range that a hash is in.
            here = np.flatnonzero((hashes[:, 0] >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32) == part)
            seen = _mark(hashes[here], here, copy, seen)


def _mark(hashes: np.ndarray, where: np.ndarray, copy: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Mark what is in `seen` or earlier in `hashes`; returns `seen` with the new ones, sorted."""
    together = np.concatenate([seen, hashes])
    order = np.lexsort((np.arange(len(together)), together[:, 1], together[:, 0]))
    ordered = together[order]
    again = np.zeros(len(order), dtype=bool)
    again[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    repeated = order[again]
    copy[where[repeated - len(seen)]] = True  # what was seen before is first among its equals
    return ordered[~again]


def near_duplicates(segments: Sequence[Segment], removed: Sequence[np.ndarray], threshold: float) -> list[np.ndarray]:
    """bool [documents] a segment: True where a document resembles an earlier one that is kept.

    Candidates share one band of their MinHash signatures (locality-sensitive hashing); they count when the share of
    equal entries, which estimates the Jaccard similarity of their shingles, is at least `threshold`. Memory: about
    40 bytes a document. removed: exact copies, which are not looked at again.
    """
    from mindspeed_ms.data.minhash import bands

    count, rows = bands(threshold)
    signatures = [segment.array("signatures") for segment in segments]
    starts = np.cumsum([0, *map(len, signatures)])
    gone = np.concatenate([*removed, np.empty(0, dtype=bool)])
    pairs: list[np.ndarray] = []
    for band in range(count):
        columns = slice(band * rows, (band + 1) * rows)
        keys = np.concatenate([_hash(part[:, columns]) for part in signatures])
        pairs.append(_candidates(keys, gone))
    found = np.unique(np.concatenate(pairs), axis=0) if pairs else np.empty((0, 2), dtype=np.int64)
    near = np.zeros(len(gone), dtype=bool)
    # In the order of the later document: whether the earlier one is kept is then known.
    for later, earlier in found[np.lexsort((found[:, 1], found[:, 0]))].tolist():
        if not near[later] and not near[earlier]:
            near[later] = _similar(signatures, starts, later, earlier) >= threshold
    return [near[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]


def _hash(columns: np.ndarray) -> np.ndarray:
    """uint64 [n]: one number a row (FNV-1a over the entries)."""
    mixed = np.full(len(columns), 0xCBF29CE484222325, dtype=np.uint64)
    for column in columns.T:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x100000001B3)
    return mixed


def _candidates(keys: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """int64 [pairs, 2]: (later, earlier) documents of equal keys, each with the first and with the one before it."""
    alive = np.flatnonzero(~gone)
    order = alive[np.argsort(keys[alive], kind="stable")]
    ordered = keys[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = order[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
    again = np.flatnonzero(~fresh)
    with_first = np.stack([order[again], first[again]], axis=1)
    with_last = np.stack([order[again], order[again - 1]], axis=1)
    return np.unique(np.concatenate([with_first, with_last]), axis=0)


def _similar(signatures: list[np.ndarray], starts: np.ndarray, one: int, other: int) -> float:
    def signature(document: int) -> np.ndarray:
        segment = int(np.searchsorted(starts, document, side="right")) - 1
        return signatures[segment][document - starts[segment]]

    return float((signature(one) == signature(other)).mean())
