"""A batch's columns out of a bucket's blocks: as a view where its rows lie together, else by one copy."""

from __future__ import annotations

import numpy as np

from mindspeed_ms.data.blocks import Block
from mindspeed_ms.data.columns import DERIVED
from mindspeed_ms.data.manifest import Manifest


class Gather:
    """Makes a batch's columns of one bucket's blocks."""

    def __init__(self, blocks: list[Block], wanted: list[str], length: int, batch: int, manifest: Manifest) -> None:
        self.length = length
        self._wanted, self._batch = wanted, batch
        self._starts = np.cumsum([0, *(block.rows for block in blocks)])
        self._arrays = {name: [block.columns[name] for block in blocks] for name in manifest.columns}
        self._ends = self._arrays["document_ends"]
        self._padding = {name: 0 for name in manifest.columns} | {"input_ids": manifest.tokenizer.pad_id}
        # Derived columns are made of all that are stored; the ends count the tokens.
        every = any(name in DERIVED for name in wanted)
        self._stored = manifest.columns if every else list({**dict.fromkeys(wanted), "document_ends": None})

    def __call__(self, rows: range | np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        """The wanted columns, int32 [batch, width], and the number of tokens in them."""
        if isinstance(rows, range) and rows:
            shard = int(np.searchsorted(self._starts, rows.start, "right")) - 1
            first, last = rows.start - int(self._starts[shard]), rows.stop - int(self._starts[shard])
            if last <= len(self._ends[shard]) and len(rows) == self._batch:
                stored = {name: _read_only(self._arrays[name][shard][first:last]) for name in self._stored}
                return self._with_derived(stored), int(self._ends[shard][first:last, -1].sum())
        rows = np.asarray(rows, np.int64)
        if len(self._ends) == 1:
            stored = {name: self._take_one(name, rows) for name in self._stored}
        else:
            shards = np.searchsorted(self._starts, rows, "right") - 1
            places = list(zip(shards.tolist(), (rows - self._starts[shards]).tolist(), strict=True))
            stored = {name: self._take_each(name, places) for name in self._stored}
        return self._with_derived(stored), int(stored["document_ends"][:, -1].sum())

    def _with_derived(self, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: DERIVED[name](stored) if name in DERIVED else stored[name] for name in self._wanted}

    def _take_one(self, name: str, rows: np.ndarray) -> np.ndarray:
        array = self._arrays[name][0]
        result = self._empty(name, array.shape[1], len(rows))
        # "clip", for rows that are all inside: "raise" would gather into a buffer first.
        np.take(array, rows, axis=0, out=result[: len(rows)], mode="clip")
        return result

    def _take_each(self, name: str, places: list[tuple[int, int]]) -> np.ndarray:
        arrays = self._arrays[name]
        result = self._empty(name, arrays[0].shape[1], len(places))
        for to, (shard, row) in enumerate(places):
            result[to] = arrays[shard][row]
        return result

    def _empty(self, name: str, width: int, real: int) -> np.ndarray:
        result = np.empty((self._batch, width), np.int32)
        result[real:] = self._padding[name]
        return result


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
