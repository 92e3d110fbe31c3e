"""Documents of a segment as rows of a few fixed lengths: cut, sorted into buckets, joined, and made arrays of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mindspeed_ms.config.data import ArrangeConfig
from mindspeed_ms.data.packing import best_fit

_TOKENS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Pieces:
    """Stretches of a segment's tokens: starts int64 [n], lengths int64 [n]; whole documents, or parts of long ones."""

    starts: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Layout:
    """The rows of one bucket in one segment: their pieces in order, and how many pieces each row has, int64 [rows]."""

    pieces: Pieces
    per_row: np.ndarray


def cut(starts: np.ndarray, lengths: np.ndarray, arrange: ArrangeConfig) -> Pieces:
    """Documents that are longer than the longest row are split, truncated or dropped; those without tokens are gone.

    starts, lengths: int64 [documents].
    """
    longest = arrange.longest
    some = lengths > 0
    starts, lengths = starts[some], lengths[some]
    if arrange.overlong == "drop":
        fits = lengths <= longest
        return Pieces(starts[fits], lengths[fits])
    if arrange.overlong == "truncate":
        return Pieces(starts, np.minimum(lengths, longest))
    counts = -(-lengths // longest)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    offsets = (np.arange(len(before)) - before) * longest
    return Pieces(np.repeat(starts, counts) + offsets, np.minimum(np.repeat(lengths, counts) - offsets, longest))


def layouts(pieces: Pieces, boundaries: list[int], arrange: ArrangeConfig) -> list[Layout]:
    """The rows of each bucket; boundaries are their lengths, ascending, the last at least as long as any piece."""
    if arrange.mode == "pack" or arrange.join:
        most = [arrange.max_documents or max(1, boundary // 4) for boundary in boundaries]
        row_of, kinds = best_fit(pieces.lengths, boundaries, most)
    else:
        row_of, kinds = np.arange(len(pieces.lengths)), np.searchsorted(boundaries, pieces.lengths)
    return [_of_bucket(pieces, row_of, kinds == bucket) for bucket in range(len(boundaries))]


def concatenated(starts: np.ndarray, lengths: np.ndarray, length: int) -> list[Layout]:
    """Mode stream: all documents end to end, cut every `length` tokens; only the last row may have padding."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.union1d(ends, np.arange(length, total, length))
    cuts = cuts[cuts > 0]
    firsts = np.concatenate([[0], cuts[:-1]]).astype(np.int64)[: len(cuts)]
    document = np.searchsorted(ends, firsts, side="right")
    within = firsts - (ends - lengths)[document]
    pieces = Pieces(starts[document] + within, cuts - firsts)
    return [Layout(pieces, np.bincount(firsts // length) if total else np.empty(0, dtype=np.int64))]


def rows(
    layout: Layout, length: int, ends: int, pad_id: int, tokens: np.ndarray, loss: np.ndarray | None
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of a layout a few at a time: input_ids int32 [n, length], document_ends int32 [n, ends] and, with
    `loss` (uint8 [T]), loss_mask int32 [n, length]. tokens: int32 [T], the segment's."""
    step = max(1, _TOKENS_AT_ONCE // length)
    first_piece = np.concatenate([[0], np.cumsum(layout.per_row)])
    for first in range(0, len(layout.per_row), step):
        per_row = layout.per_row[first : first + step]
        where = slice(first_piece[first], first_piece[first + len(per_row)])
        starts, lengths = layout.pieces.starts[where], layout.pieces.lengths[where]
        row = np.repeat(np.arange(len(per_row)), per_row)
        before = np.concatenate([[0], np.cumsum(lengths)])
        base = before[(np.cumsum(per_row) - per_row)]
        ends_in_row = before[1:] - base[row]
        within = np.arange(before[-1])
        source = np.repeat(starts - before[:-1], lengths) + within
        target = np.repeat(row * length + ends_in_row - before[1:], lengths) + within
        table = np.repeat(np.diff([*base, before[-1]])[:, None], ends, axis=1).astype(np.int32)
        slot = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        table[row, slot] = ends_in_row
        result = {"input_ids": np.full((len(per_row), length), pad_id, dtype=np.int32), "document_ends": table}
        result["input_ids"].reshape(-1)[target] = tokens[source]
        if loss is not None:
            result["loss_mask"] = np.zeros((len(per_row), length), dtype=np.int32)
            result["loss_mask"].reshape(-1)[target] = loss[source]
        yield result


def _of_bucket(pieces: Pieces, row_of: np.ndarray, mine: np.ndarray) -> Layout:
    """mine: bool [rows], the rows of this bucket; inside a row the pieces keep the order of the corpus."""
    number = np.cumsum(mine) - 1
    chosen = np.flatnonzero(mine[row_of])
    chosen = chosen[np.argsort(row_of[chosen], kind="stable")]
    per_row = np.bincount(number[row_of[chosen]], minlength=int(mine.sum()))
    return Layout(Pieces(pieces.starts[chosen], pieces.lengths[chosen]), per_row)
