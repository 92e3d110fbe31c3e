"""What a rank writes for a save: its tensors' chunks in one new file, or references to chunks of earlier saves."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.codec import Encoder, takes_base
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.kernels import kernels
from mindspeed_ms.checkpoint.manifest import ITEM_BYTES, Chunk, Entry, Manifest, bin_name, chunk_count, named_files
from mindspeed_ms.checkpoint.priority import Aside
from mindspeed_ms.checkpoint.reader import ChunkReader
from mindspeed_ms.checkpoint.records import NotFinite
from mindspeed_ms.checkpoint.sink import Sink
from mindspeed_ms.checkpoint.snapshot import Taken, pieces
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger
from mindspeed_ms.ops.native.checkpoint import EXPONENTS

BASE_EVERY = 8
_LIVE = 0.5  # a file of which less is still named is not referenced by a new base

log = get_logger(__name__)


@dataclass
class Job:
    """A save."""

    step: int
    tensors: list[Taken]
    state: dict[str, Any]
    metric: float | None = None
    layout: Mapping[str, dict[str, list[int]]] = field(default_factory=dict)
    finite: frozenset[str] = frozenset()
    blocked: float = 0.0


@dataclass(frozen=True)
class Part:
    """What a rank has written: entries of a manifest, and the files that they name."""

    base: bool
    bytes: int
    entries: tuple[Entry, ...]
    files: dict[str, int]


class Writer:
    """Writes the parts of one rank, one after another. Memory: four buffers, and three chunks of a base."""

    def __init__(self, folder: Path, files: Files, rank: int, chunk_bytes: int, aside: Aside) -> None:
        self._aside = aside
        self._folder, self._files, self._rank, self._chunk_bytes = folder, files, rank, chunk_bytes
        self._sink: Sink | None = None
        self._encoder, self._first = Encoder(), True

    def write(self, job: Job, prior: Manifest | None) -> Part:
        """`prior` is the commit before. Raises CheckpointError, OSError; then it leaves no file."""
        plain = prior is None or self._is_base(job, prior)
        if plain or self._first:
            self._encoder = Encoder()  # what it learns of a tensor holds for the saves up to the next base
        self._first = plain
        bases = self._bases(job, prior, plain)
        if self._sink is None:
            self._sink = Sink(self._files, self._chunk_bytes, self._aside)
        path = self._folder / bin_name(job.step, self._rank, secrets.token_hex(4))
        self._sink.begin(path)
        self._lost: set[str] = set()  # files of which something cannot be read
        reader = ChunkReader(self._folder, self._files, direct=True)
        try:
            self._job = job
            placed = [self._tensor(taken, bases.get(taken.name), plain, self._sink, reader) for taken in job.tensors]
            chunks, size = self._sink.finish()
            if size:
                self._files.fsync_folder(self._folder)
        except BaseException:
            self._sink.abort()
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        finally:
            reader.close()
        entries = tuple(
            self._entry(job, taken, [_placed(chunks, item) for item in items])
            for taken, items in zip(job.tensors, placed, strict=True)
        )
        known = {**(prior.files if prior is not None else {}), path.name: size}
        return Part(plain, size, entries, {name: known[name] for name in named_files(entries)})

    def _is_base(self, job: Job, prior: Manifest) -> bool:
        """Whether the commit before is no ground for differences."""
        mine = {entry.name: (entry.dtype, entry.shape) for entry in prior.tensors if entry.rank == self._rank}
        return (
            prior.since_base + 1 >= BASE_EVERY
            or prior.chunk_bytes != self._chunk_bytes
            or mine != {taken.name: (taken.dtype, taken.shape) for taken in job.tensors}
        )

    def _bases(self, job: Job, prior: Manifest | None, plain: bool) -> dict[str, list[Chunk | None]]:
        """For each chunk the one that it may refer to: of the last base, or of a commit since that stored it whole."""
        if prior is None or prior.chunk_bytes != self._chunk_bytes:
            return {}
        wasteful = self._wasteful(prior) if plain else set()
        same = {taken.name: (taken.dtype, taken.shape) for taken in job.tensors}
        found: dict[str, list[Chunk | None]] = {}
        for entry in prior.tensors:
            if entry.rank == self._rank and same.get(entry.name) == (entry.dtype, entry.shape):
                grounds = [chunk.base or chunk for chunk in entry.chunks]
                found[entry.name] = [None if chunk.file in wasteful else chunk for chunk in grounds]
        return found

    def _wasteful(self, prior: Manifest) -> set[str]:
        live: dict[str, int] = dict.fromkeys(prior.files, 0)
        for chunk in {chunk.base or chunk for entry in prior.tensors for chunk in entry.chunks}:
            live[chunk.file] += chunk.stored
        return {name for name, size in prior.files.items() if live[name] < _LIVE * size}

    def _tensor(
        self, taken: Taken, bases: list[Chunk | None] | None, plain: bool, sink: Sink, reader: ChunkReader
    ) -> list[Chunk | tuple[int, Chunk | None]]:
        """For each chunk the one it refers to; or its number in the new file, and what it is a difference to."""
        if bases is None:
            bases = [None] * chunk_count(taken.data.size, self._chunk_bytes)
        parts = pieces(taken.data, self._chunk_bytes)
        return [self._chunk(taken, data, base, plain, sink, reader) for data, base in zip(parts, bases, strict=True)]

    def _chunk(
        self, taken: Taken, data: np.ndarray, base: Chunk | None, plain: bool, sink: Sink, reader: ChunkReader
    ) -> Chunk | tuple[int, Chunk | None]:
        itemsize = ITEM_BYTES[taken.dtype]
        # Here, while the cache holds the chunk.
        if taken.name in self._job.finite and not _is_finite(taken.dtype, data):
            raise NotFinite(self._job.step, taken.name)
        out = sink.room(data.size)
        codec, used = "", 0
        if base is not None and base.file not in self._lost:
            ground = base
            try:
                codec, used = self._encoder.encode(
                    taken.name, data, itemsize, lambda: reader.view(ground, itemsize, data.size), out, plain=plain
                )
            except CheckpointError as error:
                if base.file not in self._lost:
                    log.warning("%s; what refers to that file is stored anew", error)
                self._lost.add(base.file)
        if codec == "same":
            assert base is not None
            return base
        if not codec or (plain and takes_base(codec)):
            base = None
            codec, used = self._encoder.encode(taken.name, data, itemsize, None, out, plain=plain)
        return sink.keep(codec, used), base if takes_base(codec) else None

    def _entry(self, job: Job, taken: Taken, chunks: list[Chunk]) -> Entry:
        return Entry(taken.name, self._rank, taken.dtype, taken.shape, job.layout.get(taken.name), tuple(chunks))


def _placed(chunks: list[Chunk], item: Chunk | tuple[int, Chunk | None]) -> Chunk:
    if isinstance(item, Chunk):
        return item
    chunk, base = chunks[item[0]], item[1]
    return Chunk(chunk.file, chunk.offset, chunk.stored, chunk.used, chunk.codec, chunk.digest, base)


def _is_finite(dtype: str, data: np.ndarray) -> bool:
    if dtype not in EXPONENTS:
        return True
    values = data.view(np.uint16 if dtype == "bfloat16" else dtype)
    return bool(kernels().all_finite(values, dtype))
