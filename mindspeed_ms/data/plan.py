"""Which rows there will be: decided for the whole corpus from lengths alone, before the first row is written."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from mindspeed_ms.config.data import ArrangeConfig, PrepareConfig
from mindspeed_ms.data.arrange import Layout, Pieces, concatenated, cut, layouts
from mindspeed_ms.data.boundaries import halved_boundaries, optimal_boundaries
from mindspeed_ms.data.dedup import exact_duplicates, near_duplicates
from mindspeed_ms.data.files import disk_errors, write_atomic
from mindspeed_ms.data.segments import Segment
from mindspeed_ms.errors import DataError

# The lengths that a histogram tells apart: all up to 16, then eight an octave.
_EDGES = [*range(1, 17), *(n << octave for octave in range(1, 28) for n in range(9, 17))]


@dataclass
class Totals:
    """What a bucket holds."""

    length: int
    ends: int = 1
    rows: int = 0
    documents: int = 0
    tokens: int = 0
    most_rows: int = 0  # in one segment


@dataclass
class Plan:
    """The buckets, and what the manifest says of the corpus."""

    buckets: list[Totals]
    documents: int
    cleaning: dict[str, int]
    sources: list[dict[str, int]]  # documents, tokens and bytes of each
    lengths: list[dict[str, int]]  # upto, documents, tokens
    layouts: list[str]  # xxh3-64 of the file of each segment

    @property
    def rows(self) -> int:
        """Rows of all buckets."""
        return sum(bucket.rows for bucket in self.buckets)


def load_plan(folder: Path) -> Plan | None:
    """A complete plan, if there is one."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        return Plan(**{**values, "buckets": [Totals(**bucket) for bucket in values["buckets"]]})
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path}: damaged since it was written ({error}); begin anew with --restart") from None


def make_plan(
    folder: Path, segments: Sequence[Segment], config: PrepareConfig, sources: int, done: Callable[[int, int], None]
) -> Plan:
    """Find duplicates and boundaries, lay out every segment and leave all of it in `folder`, plan.json last.

    sources: how many there are. Raises DataError.
    """
    arrange = config.arrange
    removed, cleaning = _copies(folder, segments, config)
    documents = _Documents(sources)
    lengths: Counter[int] = Counter()
    for segment, gone in zip(segments, removed, strict=True):
        documents.add(segment, gone, arrange)
        pieces = _pieces(segment, gone, arrange)
        for length, count in zip(*np.unique(pieces.lengths, return_counts=True), strict=True):
            lengths[int(length)] += int(count)
    cleaning.update(documents.cleaning)
    buckets = [Totals(boundary) for boundary in _boundaries(lengths, arrange, cleaning)]
    digests = []
    # Cut again rather than kept: the pieces of all segments would not be bounded.
    for segment, gone in zip(segments, removed, strict=True):
        laid = _lay_out(_pieces(segment, gone, arrange), [bucket.length for bucket in buckets], arrange)
        for bucket, layout in zip(buckets, laid, strict=True):
            if len(layout.per_row):
                bucket.ends = max(bucket.ends, int(layout.per_row.max()))
            bucket.rows += len(layout.per_row)
            bucket.most_rows = max(bucket.most_rows, len(layout.per_row))
            bucket.documents += len(layout.pieces.lengths)
            bucket.tokens += int(layout.pieces.lengths.sum())
        digests.append(_save(folder / f"{segment.number:05d}.npz", laid))
        done(segment.number + 1, len(segments))
    plan = Plan(buckets, documents.count, dict(cleaning), documents.sources(), documents.histogram(), digests)
    write_atomic(folder / "plan.json", json.dumps(asdict(plan)).encode())
    return plan


def load_layouts(folder: Path, segment: Segment, digest: str) -> list[Layout]:
    """A segment's rows, a layout a bucket; digest: what the plan has of the file. Raises DataError."""
    path = folder / f"{segment.number:05d}.npz"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); begin anew with --restart") from None
    if xxhash.xxh3_64_hexdigest(data) != digest:
        raise DataError(f"{path}: damaged since it was written; begin anew with --restart")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return [
            Layout(Pieces(file[f"starts{i}"], file[f"lengths{i}"]), file[f"per_row{i}"]) for i in range(len(file) // 3)
        ]


def _save(path: Path, laid: list[Layout]) -> str:
    """Write the layouts of a segment; returns the xxh3-64 of the file."""
    arrays: dict[str, np.ndarray] = {}
    for i, layout in enumerate(laid):
        arrays |= {
            f"starts{i}": layout.pieces.starts,
            f"lengths{i}": layout.pieces.lengths,
            f"per_row{i}": layout.per_row,
        }
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomic(path, content.getvalue())
    return xxhash.xxh3_64_hexdigest(content.getvalue())


def _copies(folder: Path, segments: Sequence[Segment], config: PrepareConfig) -> tuple[list[np.ndarray], Counter[str]]:
    """bool [documents] a segment, True where one is a copy; and what was counted so far."""
    removed = [_mask(folder / f"{segment.number:05d}.copies", len(segment.array("lengths"))) for segment in segments]
    counts = Counter(damaged_files=0, exact_duplicates=0, near_duplicates=0)
    for segment in segments:
        counts.update(segment.counts)
    counts["damaged_files"] = len({file for segment in segments for file in segment.damaged})
    if config.clean.dedup:
        exact_duplicates(segments, removed)
        counts["exact_duplicates"] = sum(int(mask.sum()) for mask in removed)
    if config.clean.near_duplicates is not None:
        near = near_duplicates(segments, removed, config.clean.near_duplicates)
        counts["near_duplicates"] = sum(int(mask.sum()) for mask in near)
        for mask, more in zip(removed, near, strict=True):
            mask |= more
    return removed, counts


def _mask(path: Path, count: int) -> np.ndarray:
    """bool [count], False, in a file: a byte a document of a large corpus is too much memory."""
    with disk_errors(path):
        if not count:
            return np.zeros(0, dtype=bool)
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, count)  # a full disk is an error here, and would end the process later
        return np.memmap(path, dtype=bool, mode="r+", shape=count)


def _boundaries(lengths: Counter[int], arrange: ArrangeConfig, cleaning: Counter[str]) -> list[int]:
    if not lengths:
        counted = ", ".join(f"{count} {rule.replace('_', ' ')}" for rule, count in cleaning.items() if count)
        raise DataError(f"no document is left after cleaning ({counted}); look at the files, and at docs/data.md")
    if arrange.boundaries:
        return arrange.boundaries
    if arrange.mode != "bucket":
        return [arrange.longest]
    values = np.array(sorted(lengths), dtype=np.int64)
    if arrange.join:
        return halved_boundaries(values, arrange.longest, arrange.buckets or 5, arrange.multiple_of)
    counts = np.array([lengths[int(value)] for value in values], dtype=np.int64)
    return optimal_boundaries(values, counts, arrange.buckets or 5, arrange.multiple_of)


def _kept(segment: Segment, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the documents that are no copies and have tokens: which they are, their starts and lengths, int64."""
    lengths = segment.array("lengths").astype(np.int64)
    kept = np.flatnonzero(~gone & (lengths > 0))
    return kept, (np.cumsum(lengths) - lengths)[kept], lengths[kept]


def _pieces(segment: Segment, gone: np.ndarray, arrange: ArrangeConfig) -> Pieces:
    _, starts, lengths = _kept(segment, gone)
    return Pieces(starts, lengths) if arrange.mode == "stream" else cut(starts, lengths, arrange)


def _lay_out(pieces: Pieces, boundaries: list[int], arrange: ArrangeConfig) -> list[Layout]:
    if arrange.mode == "stream":
        return concatenated(pieces.starts, pieces.lengths, arrange.longest)
    return layouts(pieces, boundaries, arrange)


class _Documents:
    """Sums over the documents that are kept."""

    def __init__(self, sources: int) -> None:
        self.count = 0
        self.cleaning: Counter[str] = Counter(overlong_split=0, overlong_truncated=0, overlong_dropped=0)
        self._sources = np.zeros((sources, 3), dtype=np.int64)
        self._bins = np.zeros((len(_EDGES), 2), dtype=np.int64)
        self._longest = 0

    def add(self, segment: Segment, gone: np.ndarray, arrange: ArrangeConfig) -> None:
        """Count a segment's documents."""
        kept, _, lengths = _kept(segment, gone)
        # A tokenizer may find nothing in a text.
        self.cleaning["empty"] += int((~gone & (segment.array("lengths") == 0)).sum())
        used = lengths
        if arrange.mode != "stream":
            over = lengths > arrange.longest
            name = {"split": "overlong_split", "truncate": "overlong_truncated", "drop": "overlong_dropped"}
            self.cleaning[name[arrange.overlong]] += int(over.sum())
            if arrange.overlong == "truncate":
                used = np.minimum(lengths, arrange.longest)
            elif arrange.overlong == "drop":
                kept, lengths = kept[~over], lengths[~over]
                used = lengths
        self.count += len(kept)
        owner = segment.array("sources")[kept]
        for column, values in enumerate((np.ones(len(kept)), used, segment.array("sizes")[kept])):
            self._sources[:, column] += _sums(owner, values, len(self._sources))
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        which = np.searchsorted(_EDGES, lengths)
        for column, values in enumerate((np.ones(len(kept)), lengths)):
            self._bins[:, column] += _sums(which, values, len(_EDGES))

    def sources(self) -> list[dict[str, int]]:
        """documents, tokens and bytes of each source."""
        return [dict(zip(("documents", "tokens", "bytes"), row, strict=True)) for row in self._sources.tolist()]

    def histogram(self) -> list[dict[str, int]]:
        """Documents and tokens by length, from the shortest bin with documents to the one of the longest."""
        filled = np.flatnonzero(self._bins[:, 0])
        if not len(filled):
            return []
        where = slice(int(filled[0]), int(filled[-1]) + 1)
        bins = zip(_EDGES[where], self._bins[where].tolist(), strict=True)
        return [
            {"upto": min(edge, self._longest), "documents": documents, "tokens": tokens}
            for edge, (documents, tokens) in bins
        ]


def _sums(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Exact up to 2^53."""
    return np.bincount(groups, weights=values, minlength=count).astype(np.int64)
