"""One step's work as the arrays a runner reads: all sequences' tokens laid end to end, no padding."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences; R rows of logits are wanted; every array is int32 and C-contiguous.

    token_ids, positions, slot_mapping [T]; seq_starts [S+1], the last is T; block_tables [S, M], -1 where unused;
    logit_rows [R], indices into the T tokens.
    """

    token_ids: Int32
    positions: Int32
    slot_mapping: Int32
    seq_starts: Int32
    block_tables: Int32
    logit_rows: Int32


class Runner(Protocol):
    """The seam between the engine and a device."""

    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Write the tokens' keys and values into the cache and return logits float32 [R, V]."""
        ...


@dataclass(frozen=True)
class Chunk:
    """Tokens `start .. start + len(token_ids)` of one sequence; logit_rows are indices into the chunk."""

    token_ids: Seq[int]
    start: int
    block_table: Seq[int]
    logit_rows: Seq[int] = ()


def make_batch(chunks: Seq[Chunk], block_size: int) -> Batch:
    """Lay the chunks end to end; each block table must cover its chunk's last position."""
    seq_starts = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum([len(c.token_ids) for c in chunks], out=seq_starts[1:])
    total = int(seq_starts[-1])
    token_ids, positions, slots = (np.empty(total, np.int32) for _ in range(3))
    tables = np.full((len(chunks), max(len(c.block_table) for c in chunks)), -1, np.int32)
    rows: list[int] = []
    for s, chunk in enumerate(chunks):
        first, last = int(seq_starts[s]), int(seq_starts[s + 1])
        tables[s, : len(chunk.block_table)] = chunk.block_table
        token_ids[first:last] = chunk.token_ids
        position = np.arange(chunk.start, chunk.start + last - first, dtype=np.int32)
        positions[first:last] = position
        slots[first:last] = tables[s, position // block_size] * block_size + position % block_size
        rows.extend(first + r for r in chunk.logit_rows)
    return Batch(token_ids, positions, slots, seq_starts, tables, np.array(rows, np.int32))
