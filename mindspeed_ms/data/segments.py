"""The tokenized corpus on disk, in segments that are complete or not there: what a killed preparation goes on from.

A segment is a folder with one raw little-endian array a file and `segment.json`, which has the xxh3-64 of each; it is
written under another name and renamed when all of it is on the disk. Documents are in the order of the corpus.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from mindspeed_ms.data.files import disk_errors, feed, sync_file, sync_folder
from mindspeed_ms.data.types import Position, TokenChunk
from mindspeed_ms.errors import DataError

_MOST_DOCUMENTS = 1 << 21  # in a segment, all of whose documents are laid out in memory at once
_ARRAYS = {
    "tokens": np.int32,
    "lengths": np.int32,
    "sizes": np.int64,
    "hashes": np.uint64,
    "sources": np.int32,
    "loss": np.uint8,
    "signatures": np.uint32,
}


@dataclass(frozen=True)
class Segment:
    """A stretch of the corpus; arrays are mapped from its files when they are asked for."""

    folder: Path
    number: int
    source: int  # where reading goes on after it: index of the file, and the position in it
    after: Position
    bytes: int  # read of files for it
    counts: dict[str, int]
    damaged: list[int]  # files that ended early, by index; a file may be met again after a kill

    def array(self, name: str) -> np.ndarray:
        """tokens int32 [T], lengths int32 [n], sizes int64 [n], hashes uint64 [n, 2], sources int32 [n],
        loss uint8 [T], signatures uint32 [n, 128]."""
        path = self.folder / f"{name}.bin"
        dtype = _ARRAYS[name]
        empty = not path.exists() or not path.stat().st_size
        flat = np.empty(0, dtype=dtype) if empty else np.memmap(path, dtype=dtype, mode="r")
        if name in ("hashes", "signatures"):
            return flat.reshape(-1, 2 if name == "hashes" else 128)
        return flat


class SegmentStore:
    """Segments in a folder, in order; append chunks, and every so many tokens a segment is complete."""

    def __init__(self, folder: Path, segment_tokens: int) -> None:
        self._folder = folder
        self._segment_tokens = segment_tokens
        self._open: _Writer | None = None
        self.segments: list[Segment] = []
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for partial in folder.glob("*.partial"):
                shutil.rmtree(partial)
        while (found := folder / f"{len(self.segments):05d}").is_dir():
            self.segments.append(_read(found, len(self.segments)))

    def append(self, chunk: TokenChunk, reading: int) -> None:
        """Add a chunk's documents; `reading` is the index of the file they are of. Raises DataError."""
        with disk_errors(self._folder):
            self._writer().append(chunk, reading)
            if self._writer().tokens >= self._segment_tokens or self._writer().documents >= _MOST_DOCUMENTS:
                self.finish()

    def damaged(self, files: list[int]) -> None:
        """Note files that ended early: all that was read of them has been appended."""
        if files:
            with disk_errors(self._folder):
                self._writer().damaged += files

    def _writer(self) -> _Writer:
        if self._open is None:
            # Where reading goes on if nothing but counts comes.
            last = self.segments[-1] if self.segments else None
            end = (last.source, last.after) if last else (0, Position())
            self._open = _Writer(self._folder / f"{len(self.segments):05d}.partial", end)
        return self._open

    def finish(self) -> None:
        """Complete the segment that is being written, if any."""
        if self._open is not None:
            with disk_errors(self._folder):
                self._open.close()
                final = self._folder / f"{len(self.segments):05d}"
                os.rename(self._open.folder, final)
                sync_folder(self._folder)
            self._open = None
            self.segments.append(_read(final, len(self.segments)))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


class _Writer:
    def __init__(self, folder: Path, end: tuple[int, Position]) -> None:
        self.folder = folder
        self.tokens = self.documents = 0
        self.counts: Counter[str] = Counter()
        self.damaged: list[int] = []
        self._files: dict[str, BinaryIO] = {}
        self._digests = {name: xxhash.xxh3_64() for name in _ARRAYS}
        self._bytes = 0
        self._end = end
        folder.mkdir()

    def append(self, chunk: TokenChunk, reading: int) -> None:
        arrays = {
            "tokens": chunk.tokens,
            "lengths": chunk.lengths,
            "sizes": chunk.sizes,
            "hashes": chunk.hashes,
            "sources": np.full(len(chunk.lengths), chunk.source),
            "loss": chunk.loss,
            "signatures": chunk.signatures,
        }
        for name, array in arrays.items():
            if array is not None:
                if name not in self._files:
                    self._files[name] = open(self.folder / f"{name}.bin", "wb")
                data = np.ascontiguousarray(array, dtype=_ARRAYS[name]).data
                self._files[name].write(data)
                self._digests[name].update(data)
        self.tokens += len(chunk.tokens)
        self.documents += len(chunk.lengths)
        self._bytes += chunk.bytes
        self.counts.update(chunk.counts)
        self._end = (reading, chunk.after)

    def close(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        source, after = self._end
        facts = {
            "source": source,
            "after": list(after),
            "bytes": self._bytes,
            "counts": dict(self.counts),
            "damaged": self.damaged,
            "arrays": {name: self._digests[name].hexdigest() for name in self._files},
        }
        path = self.folder / "segment.json"
        path.write_text(json.dumps(facts))
        sync_file(path)
        sync_folder(self.folder)


def _read(folder: Path, number: int) -> Segment:
    """A complete segment; its arrays are compared with their digests. Raises DataError."""
    try:
        facts = json.loads((folder / "segment.json").read_bytes())
        for name, digest in facts["arrays"].items():
            if feed(xxhash.xxh3_64(), folder / f"{name}.bin").hexdigest() != digest:
                raise DataError(f"{folder / name}.bin: damaged since it was written; begin anew with --restart")
        after = Position(*facts["after"])
        return Segment(folder, number, facts["source"], after, facts["bytes"], facts["counts"], facts["damaged"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: damaged since it was written ({error}); begin anew with --restart") from None
