"""Chunks read back and verified, and the tensors they make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from xxhash import xxh3_64_hexdigest

from mindspeed_ms.checkpoint.codec import decode
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.manifest import ITEM_BYTES, PAGE, Chunk, Entry, Manifest
from mindspeed_ms.checkpoint.records import no_read
from mindspeed_ms.checkpoint.snapshot import aligned, pieces
from mindspeed_ms.errors import CheckpointError

_THREADS = 4
_Job = TypeVar("_Job")


class ChunkReader:
    """Reads chunks of a store's files, each checked by its checksum. Raises CheckpointError. Several threads may."""

    def __init__(self, folder: Path, files: Files, *, direct: bool = False) -> None:
        """direct: past the page cache, where the file system can."""
        self._folder, self._files, self._direct = folder, files, direct
        self._handles: dict[str, int] = {}
        self._guard = threading.Lock()
        self._scratch = threading.local()

    def require_size(self, name: str, size: int) -> None:
        path = self._folder / name
        try:
            found = self._files.size(self._open(name))
        except OSError as error:
            raise no_read(path, error) from None
        if found != size:
            raise CheckpointError(f"{path}: {found} bytes, {size} were saved; the checkpoint is damaged")

    def read(self, chunk: Chunk, itemsize: int, out: np.ndarray) -> None:
        """Bring a chunk's bytes to `out`, uint8 [n]."""
        if chunk.codec == "raw" and chunk.stored == chunk.used and not self._direct:
            self._fill(chunk, out)
            return
        stored = self._stored(chunk, "own")
        base = None if chunk.base is None else self.view(chunk.base, itemsize, out.size)
        try:
            decode(chunk.codec, stored[: chunk.used], itemsize, base, out)
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder / chunk.file}: byte {chunk.offset}: {error}") from None

    def view(self, chunk: Chunk, itemsize: int, nbytes: int) -> np.ndarray:
        """The bytes of a chunk that has no base, uint8 [nbytes]; this thread's next call overwrites them."""
        stored = self._stored(chunk, "base")
        if chunk.codec == "raw" and stored.ctypes.data % 8 == 0:
            return stored[: chunk.used]
        out = self._room("decoded", nbytes)[:nbytes]
        try:
            decode(chunk.codec, stored[: chunk.used], itemsize, None, out)
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder / chunk.file}: byte {chunk.offset}: {error}") from None
        return out

    def close(self) -> None:
        with self._guard:
            for handle in self._handles.values():
                self._files.close(handle)
            self._handles.clear()

    def __del__(self) -> None:
        self.close()

    def _stored(self, chunk: Chunk, use: str) -> np.ndarray:
        skip = chunk.offset % PAGE if self._direct else 0
        length = skip + chunk.stored
        if self._direct:
            length = -(-length // PAGE) * PAGE
        room = self._room(use, length)[:length]
        return self._fill(chunk, room, skip)

    def _fill(self, chunk: Chunk, room: np.ndarray, skip: int = 0) -> np.ndarray:
        path = self._folder / chunk.file
        try:
            count = self._files.pread(self._open(chunk.file), memoryview(room.data), chunk.offset - skip)
        except OSError as error:
            raise no_read(path, error) from None
        stored = room[skip : skip + chunk.stored]
        if count < skip + chunk.stored or xxh3_64_hexdigest(stored.data) != chunk.digest:
            end = chunk.offset + chunk.stored
            raise CheckpointError(
                f"{path}: bytes {chunk.offset} to {end} are not those that were saved; the checkpoint is damaged"
            )
        return stored

    def _room(self, use: str, nbytes: int) -> np.ndarray:
        found: np.ndarray | None = getattr(self._scratch, use, None)
        if found is None or found.size < nbytes:
            found = aligned(nbytes)
            setattr(self._scratch, use, found)
        return found

    def _open(self, name: str) -> int:
        with self._guard:
            if name not in self._handles:
                path = self._folder / name
                try:
                    self._handles[name] = self._files.open_read(path, direct=self._direct)
                except OSError:
                    if not self._direct:
                        raise
                    self._handles[name] = self._files.open_read(path)
            return self._handles[name]


class Tensors(Mapping[str, np.ndarray]):
    """A commit's tensors by name, each read when it is asked for. Raises CheckpointError."""

    def __init__(self, reader: ChunkReader, manifest: Manifest, entries: Mapping[str, Entry]) -> None:
        self._reader, self._manifest, self.entries = reader, manifest, entries

    def __getitem__(self, name: str) -> np.ndarray:
        out = empty(self.entries[name])
        read_entries(self._reader, self._manifest, [(self.entries[name], out)])
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def empty(entry: Entry) -> np.ndarray:
    """An array for a tensor; bfloat16 is uint16 that holds its bits."""
    try:
        return np.empty(entry.shape, "uint16" if entry.dtype == "bfloat16" else entry.dtype)
    except (ValueError, MemoryError) as error:
        raise CheckpointError(f"tensor {entry.name!r} of shape {list(entry.shape)}: no memory ({error})") from None


def read_entries(reader: ChunkReader, manifest: Manifest, wanted: Iterable[tuple[Entry, np.ndarray]]) -> None:
    """Decode tensors into arrays of their dtype and shape, C-contiguous, with a few threads."""
    jobs = []
    for entry, array in wanted:
        data = array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
        itemsize = ITEM_BYTES[entry.dtype]
        for chunk, out in zip(entry.chunks, pieces(data, manifest.chunk_bytes), strict=True):
            jobs.append((chunk, itemsize, out))
    in_threads(lambda job: reader.read(*job), jobs)


def in_threads(function: Callable[[_Job], None], jobs: list[_Job]) -> None:
    """Call with each; the first error is raised and what has not begun is left."""
    if len(jobs) < _THREADS:
        for job in jobs:
            function(job)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def check_entries(
    reader: ChunkReader, manifest: Manifest, entries: Iterable[Entry], done: dict[Chunk, str]
) -> list[str]:
    """Read and decode every chunk of these tensors; returns what is wrong.

    done: what was found of chunks before, which is not read again; it grows.
    """
    jobs, all_chunks = [], []
    for entry in entries:
        left = entry.nbytes
        for chunk in entry.chunks:
            nbytes = min(left, manifest.chunk_bytes)
            left -= nbytes
            all_chunks.append(chunk)
            if chunk not in done:
                done[chunk] = ""
                jobs.append((chunk, ITEM_BYTES[entry.dtype], nbytes, entry.name))
    room = threading.local()

    def check(job: tuple[Chunk, int, int, str]) -> None:
        chunk, itemsize, nbytes, name = job
        if not hasattr(room, "out"):
            room.out = aligned(manifest.chunk_bytes)
        try:
            reader.read(chunk, itemsize, room.out[:nbytes])
        except CheckpointError as error:
            done[chunk] = f"{error} (tensor {name!r})"

    in_threads(check, jobs)
    return sorted({done[chunk] for chunk in all_chunks} - {""})
