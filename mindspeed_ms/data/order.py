"""Which rows come when: a pure function of the set, the seed, the epoch and the batch sizes.

An epoch permutes the rows of each bucket and cuts them into global batches: `batch rows x world_size` rows of one
bucket. Which bucket a step takes is drawn without replacement in proportion to the batches left, in other words the
batches are shuffled. Without shuffling, rows come as they are stored, the shortest bucket first.

The last global batch of a bucket may be short. Its rows are dealt to the ranks as evenly as can be, in order, and each
rank fills its batch with empty rows, so that all ranks take as many steps, each with the same bucket, and none stands
with an empty batch beside a full one. (Their losses have to be weighed by tokens, as in any batch with padding.)

Random numbers are raw output of Philox, keyed by SeedSequence. NumPy promises that those two stay what they are, which
it does not promise of `shuffle` and `permutation`: an epoch can be resumed under another NumPy and on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mindspeed_ms.errors import ConfigError, DataError

MAX_BATCH_ROWS = 1 << 31  # in one global batch
_MAX_NUMBER = (1 << 63) - 1
_PIECE = 1 << 20


@dataclass(frozen=True)
class Progress:
    """How far an epoch has come, for all ranks alike.

    An epoch is planned anew when it goes on with other batch sizes: each plan is a `part` of it that begins after the
    rows in `start`.
    """

    start: tuple[int, ...]  # rows of each bucket that earlier parts of this epoch have taken
    batch: tuple[int, ...]  # rows of each bucket's global batch
    epoch: int = 0
    part: int = 0
    part_step: int = 0  # steps of this part that are done
    step: int = 0  # steps of this epoch that are done


class Plan:
    """One part of an epoch, step by step.

    rows: of each bucket. seed: None leaves all in order. Keeps 4 bytes a row (8 from 2^32 rows on) and a few a step,
    drawn when first needed: 0.1 s a million rows, and 8 bytes more for each of a bucket meanwhile.
    """

    def __init__(self, rows: Sequence[int], progress: Progress, seed: int | None) -> None:
        self.rows = tuple(rows)
        self.progress = progress
        self.seed = seed
        self.batches = [
            -(-(total - start) // batch)
            for total, start, batch in zip(rows, progress.start, progress.batch, strict=True)
        ]
        self.steps = sum(self.batches)
        self._buckets: np.ndarray | None = None
        self._turns: np.ndarray | None = None
        self._shuffled: dict[int, np.ndarray] = {}

    @property
    def buckets(self) -> np.ndarray:
        """The bucket of each step: [steps]."""
        if self._buckets is None:
            in_order = np.repeat(np.arange(len(self.rows), dtype=np.min_scalar_type(len(self.rows))), self.batches)
            if self.seed is not None:
                # No bucket has this number, so that its key is nobody else's.
                key = (self.progress.epoch, len(self.rows), self.progress.part)
                in_order = in_order[permutation(self.steps, self.seed, key)]
            self._buckets = in_order
        return self._buckets

    def take(self, step: int, rank: int, world_size: int) -> tuple[int, range | np.ndarray]:
        """The bucket of a step, and its real rows for a rank: at most batch / world_size; a range where in order."""
        if self._turns is None:
            self._turns = _turns(self.buckets, len(self.rows))
        bucket = int(self.buckets[step])
        first = self.progress.start[bucket] + int(self._turns[step]) * self.progress.batch[bucket]
        real = min(self.progress.batch[bucket], self.rows[bucket] - first)
        below, above = deal(real, rank, world_size)
        if self.seed is None:
            return bucket, range(first + below, first + above)
        if bucket not in self._shuffled:
            key = (self.progress.epoch, bucket)
            self._shuffled[bucket] = permutation(self.rows[bucket], self.seed, key)
        return bucket, self._shuffled[bucket][first + below : first + above]

    def taken(self) -> tuple[int, ...]:
        """The rows of each bucket that this epoch has taken when progress.part_step steps of this part are done."""
        done = np.bincount(self.buckets[: self.progress.part_step], minlength=len(self.rows)).tolist()
        return tuple(
            min(start + turns * batch, total)
            for start, turns, batch, total in zip(
                self.progress.start, done, self.progress.batch, self.rows, strict=True
            )
        )

    def after(self, steps: int) -> Progress:
        """The progress when `steps` steps of this part are done; at the end that is the start of the next epoch."""
        now = self.progress
        if steps == self.steps:
            return fresh(self.rows, now.batch, now.epoch + 1)
        return replace(now, part_step=steps, step=now.step - now.part_step + steps)


def fresh(rows: Sequence[int], batch: Sequence[int], epoch: int = 0) -> Progress:
    """The start of an epoch."""
    return Progress(start=(0,) * len(rows), batch=tuple(batch), epoch=epoch)


def replan(plan: Plan, batch: Sequence[int]) -> Progress:
    """Go on with other global batch sizes: the rows that are left come in their order, in batches drawn anew."""
    now = plan.progress
    if tuple(batch) == now.batch:
        return now
    part = now.part + (now.part_step > 0)  # a plan of which nothing was taken leaves no trace
    return replace(now, start=plan.taken(), batch=tuple(batch), part=part, part_step=0)


def deal(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """The first and the one after the last of `rows` rows that a rank takes: as even as can be, in order."""
    each, more = divmod(rows, world_size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def permutation(count: int, seed: int, key: tuple[int, ...]) -> np.ndarray:
    """A random order of 0 .. count - 1, as uint32 (uint64 from 2^32 on).

    Sorts random numbers that carry the index in their low bits: no two are equal, so every sort gives this order.
    """
    bits = max(1, (count - 1).bit_length())
    keys = np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)).random_raw(count)
    for first in range(0, count, _PIECE):
        piece = keys[first : first + _PIECE]
        piece >>= np.uint64(bits)
        piece <<= np.uint64(bits)
        piece |= np.arange(first, first + len(piece), dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << bits) - 1)
    return keys if bits > 32 else keys.astype(np.uint32)


def save(progress: Progress, checksum: str, seed: int | None) -> dict[str, Any]:
    """A progress as plain values for a JSON file, with the set and the seed that it belongs to."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(progress).items()}
    return {"set": checksum, "seed": seed, **values}


def load(state: Mapping[str, Any], rows: Sequence[int], checksum: str, seed: int | None) -> Progress:
    """Check a saved progress, field by field, for a set with `rows` rows in each bucket.

    Raises DataError when it is malformed or of another set, ConfigError when it is of another seed.
    """
    names = ["set", "seed", *Progress.__dataclass_fields__]
    if not isinstance(state, Mapping) or set(state) != set(names):
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise DataError(f"loader state: it has {found}, expected {sorted(names)}; give what state_dict() returned")
    if state["set"] != checksum:
        raise DataError(
            f"loader state: set is {state['set']!r}, expected {checksum!r}; it was saved for another set, open that one"
        )
    _expect("epoch", state["epoch"], lambda value: _whole(value, 0, _MAX_NUMBER), "a number from 0 on")
    _expect("part", state["part"], lambda value: _whole(value, 0, _MAX_NUMBER), "a number from 0 on")
    before = list(rows) if state["part"] else [0] * len(rows)
    _expect("start", state["start"], lambda value: _list(value, [0] * len(rows), before), f"0 to {before}")
    most = [MAX_BATCH_ROWS] * len(rows)
    _expect("batch", state["batch"], lambda value: _list(value, [1] * len(rows), most), f"{len(rows)} numbers from 1")
    if state["seed"] != seed or isinstance(state["seed"], bool):
        raise ConfigError(
            f"loader state: seed is {state['seed']!r:.40}, the loader's {seed!r} (None: unshuffled); give it the same"
        )
    progress = Progress(
        start=tuple(state["start"]), batch=tuple(state["batch"]), epoch=state["epoch"], part=state["part"]
    )
    steps = Plan(rows, progress, seed).steps
    _expect("part_step", state["part_step"], lambda value: _whole(value, 0, steps - 1), f"0 to {steps - 1}")
    first = state["part_step"]
    most_steps = first + (sum(rows) if progress.part else 0)
    _expect("step", state["step"], lambda value: _whole(value, first, most_steps), f"{first} to {most_steps}")
    return replace(progress, part_step=first, step=state["step"])


def _expect(name: str, value: Any, good: Callable[[Any], bool], wanted: str) -> None:
    if not good(value):
        raise DataError(f"loader state: {name} is {value!r:.80}, expected {wanted}; give what state_dict() returned")


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _list(value: Any, least: Sequence[int], most: Sequence[int]) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == len(most)
        and all(_whole(number, low, high) for number, low, high in zip(value, least, most, strict=True))
    )


def _turns(buckets: np.ndarray, count: int) -> np.ndarray:
    """How many steps before each one take the same bucket: [steps]."""
    turns = np.empty(len(buckets), np.int64)
    for bucket in range(count):
        places = np.flatnonzero(buckets == bucket)
        turns[places] = np.arange(len(places))
    return turns
