"""Ready batches of a prepared set, one static shape a bucket, made ahead by a thread while a step runs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.data import order
from mindspeed_ms.data.blocks import open_blocks
from mindspeed_ms.data.columns import check_columns
from mindspeed_ms.data.gather import Gather
from mindspeed_ms.data.manifest import Manifest, read_manifest
from mindspeed_ms.data.prefetch import Prefetcher
from mindspeed_ms.errors import ConfigError, DataError

_MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class Batch(Mapping[str, Any]):
    """One rank's share of a step: a mapping of column names to int32 [batch rows, width], so that `**batch` works.

    The values are MindSpore tensors (NumPy arrays where the loader was asked for those). They may be the set's own
    pages: they are not to be written to. The first `rows` rows are real; others are empty, all padding and zeros.
    """

    columns: dict[str, Any]
    length: int  # tokens of a row: the bucket
    rows: int  # real ones of this rank
    tokens: int  # real ones of this rank, without padding
    epoch: int
    step: int  # in the epoch, from 0; every rank has the same bucket at a step
    ids: Sequence[int] | np.ndarray = ()  # of the real rows: their numbers in the bucket, from 0

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


class BucketLoader:
    """Every row of a prepared set once an epoch, in batches of one bucket each; order.py says in which order.

    folder: of the set.
    batch_size or tokens_per_batch: rows of every batch of a rank; or its tokens, padding included, which make
        max(1, tokens_per_batch // length) rows.
    seed, shuffle: False keeps the stored order, the shortest bucket first.
    rank, world_size: this process, and how many share the rows.
    columns: stored or derived ones (columns.py); by default all that are stored.
    prefetch: batches made ahead at most; by default min(8, 2 x world_size): a step waits for the slowest of its ranks.
    tensors: False gives NumPy arrays and needs no MindSpore.
    verify: read all blocks once and compare their SHA-256; one process of a machine is enough.
    tokenizer: a path; it has to be the tokenizer that the set was made with.

    Iterating gives what is left of the epoch; the epoch advances when its last batch is handed over, and `len` is the
    number of batches that iterating would give now. A new `iter()` ends the one before it, and goes on after the last
    batch that was handed over, not after what was made ahead. Neither pickled nor shared between threads.

    Raises ConfigError, and DataError when the set is damaged or empty.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        columns: Sequence[str] | None = None,
        prefetch: int | None = None,
        tensors: bool = True,
        verify: bool = True,
        tokenizer: str | Path | None = None,
    ) -> None:
        if (batch_size is None) == (tokens_per_batch is None):
            raise ConfigError(
                f"batch_size is {batch_size} and tokens_per_batch {tokens_per_batch}; expected exactly one of them"
            )
        _check("world_size", world_size, 1, order.MAX_BATCH_ROWS)
        _check("rank", rank, 0, world_size - 1)
        _check("seed", seed, 0, _MAX_SEED)
        self.manifest = read_manifest(folder)
        self._rows = [bucket.rows for bucket in self.manifest.buckets]
        if not any(self._rows):
            raise DataError(f"{folder}: no rows in this set; prepare it of documents that are not all dropped")
        self.batch_rows = _batch_rows(self.manifest, batch_size, tokens_per_batch, world_size)
        self.prefetch = min(8, 2 * world_size) if prefetch is None else _check("prefetch", prefetch, 1, 1 << 16)
        self.columns = check_columns(self.manifest.columns if columns is None else columns, self.manifest.columns)
        if tokenizer is not None:
            from mindspeed_ms.data.tokenizer import check_tokenizer

            check_tokenizer(tokenizer, self.manifest.tokenizer.file.sha256, folder)
        self._to_tensor = _tensor_maker() if tensors else None
        self._seed = seed if shuffle else None
        self._rank, self._world_size = rank, world_size
        blocks = open_blocks(folder, self.manifest, verify=verify)
        self._gathers = [
            Gather(blocks[number], self.columns, bucket.length, self.batch_rows[bucket.length], self.manifest)
            for number, bucket in enumerate(self.manifest.buckets)
        ]
        self._running: weakref.ref[_Epoch] | None = None
        self.wait_seconds = 0.0  # that this loader made its caller wait, since it was made
        self.work_seconds = 0.0  # that its caller spent between one batch and asking for the next
        self._go_to(order.fresh(self._rows, self._global_batch()))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._progress().epoch

    @property
    def step(self) -> int:
        """The step of the next batch in its epoch, from 0."""
        return self._progress().step

    def __len__(self) -> int:
        return self._plan.steps - self._done

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        epoch = _Epoch(self)
        self._running = weakref.ref(epoch)
        return epoch

    def wait_share(self) -> float:
        """Waiting time as a share of all time between the first and the last call for a batch of each iteration."""
        total = self.wait_seconds + self.work_seconds
        return self.wait_seconds / total if total else 0.0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; ends an iteration that runs."""
        self._go_to(order.fresh(self._rows, self._global_batch(), _check("epoch", epoch, 0, _MAX_SEED)))

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after the last batch that was handed over: plain values, the same on every rank."""
        return order.save(self._progress(), self.manifest.checksum, self._seed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this set and seed, saved with any batch and world size; ends an iteration that runs.

        With the same global batch the batches are those that would have come; with another, the rows that are left come
        in their order. Raises DataError and ConfigError, then nothing has changed.
        """
        progress = order.load(state, self._rows, self.manifest.checksum, self._seed)
        self._go_to(order.replan(order.Plan(self._rows, progress, self._seed), self._global_batch()))

    def close(self) -> None:
        """End an iteration that runs, and its thread."""
        running = self._running and self._running()
        if running:
            running.close()

    def _global_batch(self) -> list[int]:
        return [rows * self._world_size for rows in self.batch_rows.values()]

    def _go_to(self, progress: order.Progress) -> None:
        self.close()
        self._plan = order.Plan(self._rows, progress, self._seed)
        self._done = progress.part_step  # steps of the plan whose batches were handed over

    def _progress(self) -> order.Progress:
        return self._plan.after(self._done)

    def _hand_over(self, batch: Batch) -> Batch:
        if self._to_tensor is not None:
            batch = replace(batch, columns={name: self._to_tensor(array) for name, array in batch.columns.items()})
        # Counted last: an interrupt before this leaves the state before this batch.
        self._done += 1
        if self._done == self._plan.steps:
            self._plan, self._done = order.Plan(self._rows, self._progress(), self._seed), 0
        return batch


class _Epoch(Iterator[Batch]):
    """The rest of an epoch."""

    def __init__(self, loader: BucketLoader) -> None:
        self._loader = loader
        self._handed: float | None = None
        # The thread's plan is its own: the random order is drawn there, and freed with it.
        plan = order.Plan(loader._rows, loader._progress(), loader._seed)
        gathers, rank, world_size = loader._gathers, loader._rank, loader._world_size
        self._batches = Prefetcher(lambda: _batches(plan, gathers, rank, world_size), loader.prefetch)

    def __next__(self) -> Batch:
        begin = time.perf_counter()
        if self._handed is not None:
            self._loader.work_seconds += begin - self._handed
        try:
            return self._loader._hand_over(next(self._batches))
        except BaseException:  # an interrupt may have come between the thread's batch and the state that counts it
            self.close()
            raise
        finally:
            self._handed = time.perf_counter()
            self._loader.wait_seconds += self._handed - begin

    def close(self) -> None:
        self._batches.close()


def _batches(plan: order.Plan, gathers: list[Gather], rank: int, world_size: int) -> Iterator[Batch]:
    now = plan.progress
    for part_step in range(now.part_step, plan.steps):
        bucket, rows = plan.take(part_step, rank, world_size)
        columns, tokens = gathers[bucket](rows)
        step = now.step + part_step - now.part_step
        yield Batch(columns, gathers[bucket].length, len(rows), tokens, now.epoch, step, rows)


def _batch_rows(
    manifest: Manifest, batch_size: int | None, tokens_per_batch: int | None, world_size: int
) -> dict[int, int]:
    """Rows of each bucket's batches on one rank, by length."""
    most = order.MAX_BATCH_ROWS // world_size
    if batch_size is not None:
        _check("batch_size", batch_size, 1, most)
        return {bucket.length: batch_size for bucket in manifest.buckets}
    tokens = _check("tokens_per_batch", tokens_per_batch, 1, most)
    return {bucket.length: max(1, tokens // bucket.length) for bucket in manifest.buckets}


def _check(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
    return int(value)


def _tensor_maker() -> Any:
    from mindspore import Tensor

    return Tensor.from_numpy


NPUStaticBucketLoader = BucketLoader
