"""A batch compared with itself and the cache before it reaches the graph.

The kernels check the same things, but MindSpore runs no graph any more in a process where a kernel once failed.
"""

import numpy as np

from mindspeed_ms.errors import KernelError
from mindspeed_ms.ops.native.codes import CODES
from mindspeed_ms.serving.engine.batch import Batch


def check_batch(batch: Batch, vocab_size: int, num_blocks: int, block_size: int) -> None:
    """Raises KernelError with the sentence of the kernel that would have refused the batch."""
    tokens, starts, tables = len(batch.token_ids), batch.seq_starts, batch.block_tables
    sequences = len(starts) - 1
    if not tokens or len(batch.positions) != tokens or len(batch.slot_mapping) != tokens or tables.ndim != 2:
        _refuse(2, f"{tokens} token_ids, {len(batch.positions)} positions, {len(batch.slot_mapping)} slots")
    if sequences < 1 or len(tables) != sequences or not tables.shape[1]:
        _refuse(2, f"block_tables {list(tables.shape)} for {sequences} sequences")
    if _outside(batch.token_ids, 0, vocab_size):
        _refuse(5, f"token_ids from {batch.token_ids.min()} to {batch.token_ids.max()}, vocab_size {vocab_size}")
    if len(batch.logit_rows) and _outside(batch.logit_rows, 0, tokens):
        _refuse(10, f"logit_rows up to {batch.logit_rows.max()} of {tokens} tokens")
    lengths = np.diff(starts)
    if starts[0] != 0 or starts[-1] != tokens or lengths.min() < 0:
        _refuse(9, f"seq_starts {starts.tolist()[:8]} for {tokens} tokens")
    if _outside(tables, -1, num_blocks):
        _refuse(7, f"block_tables from {tables.min()} to {tables.max()}, {num_blocks} blocks")
    positions = batch.positions
    owner = np.repeat(np.arange(sequences), lengths)
    first = np.zeros(sequences, np.int64)
    used = lengths > 0
    first[used] = positions[starts[:-1][used]]
    if (
        _outside(positions, 0, tables.shape[1] * block_size)
        or (positions != first[owner] + np.arange(tokens) - starts[owner]).any()
    ):
        _refuse(8, f"positions from {positions.min()} to {positions.max()}, block tables of {tables.shape[1]} blocks")
    blocks = positions // block_size
    if (batch.slot_mapping != tables[owner, blocks] * block_size + positions % block_size).any():
        _refuse(6, "slot_mapping is not block_tables[s, position // block_size] * block_size + position % block_size")
    # every block up to a sequence's last position is read
    needed = np.where(used, (first + lengths - 1) // block_size, -1)
    if ((tables < 0) & (np.arange(tables.shape[1]) <= needed[:, None])).any():
        _refuse(7, "block_tables holds -1 before the last position of a sequence")


def _outside(values: np.ndarray, low: int, high: int) -> bool:
    return bool(values.min() < low or values.max() >= high)


def _refuse(code: int, facts: str) -> None:
    raise KernelError(f"batch: {CODES[code]} ({facts}); nothing was computed")
