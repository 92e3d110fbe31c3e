"""Token ids in Megatron's and MindFormers' pair of files: X.bin holds the ids, X.idx says where documents begin.

X.idx, little-endian: the magic, uint64 version 1, uint8 type of the ids, uint64 number of sequences S and of document
indices D, then int32 [S] lengths, int64 [S] offsets in X.bin in bytes, int64 [D] the sequence at which each document
begins (the last entry is S), and in multimodal sets int8 [S] modes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from mindspeed_ms.data.files import disk_errors, sync_folder
from mindspeed_ms.data.readers import Rows
from mindspeed_ms.data.sources import Damaged
from mindspeed_ms.errors import DataError
from mindspeed_ms.paths import partial_path, remove_abandoned

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_INT32, _UINT16 = 4, 8
_BLOCK = 1 << 20  # entries of an index that are looked at together
_SLICE = 4096  # documents
_AHEAD = 2 * _SLICE  # entries of an index that are held


def read_rows(prefix: Path, start: int, limit: int) -> Iterator[Rows]:
    """Documents from number `start` on as int64 arrays; None instead of one that would have more than `limit` bytes."""
    with MegatronReader(prefix) as reader:
        for first in range(start, len(reader), _SLICE):
            ends = reader.token_ends(first, min(first + _SLICE, len(reader)))
            sizes = 8 * np.diff(ends)
            records = (reader[first + k] if size <= limit else None for k, size in enumerate(sizes.tolist()))
            yield Rows(first, records, ends * reader.dtype.itemsize)


class MegatronReader:
    """The documents of a pair; a document that has several sequences is all of them, joined.

    Raises Damaged when the files are unreadable, not such a pair, or contradict one another.
    """

    def __init__(self, prefix: str | Path) -> None:
        self._bin, self._idx = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
        self._file = self._index_file = -1
        self._ends = (0, 0)  # a sequence and the tokens before it, so that reading on need not count again
        try:
            self._file = os.open(self._bin, os.O_RDONLY)
            self._index_file = os.open(self._idx, os.O_RDONLY)
            self._size = os.fstat(self._file).st_size
            self._open_index()
        except OSError as error:
            self.close()
            raise Damaged(f"{error.filename or self._idx}: cannot be read ({error.strerror})") from None
        except Damaged:
            self.close()
            raise

    def _open_index(self) -> None:
        size = os.fstat(self._index_file).st_size
        header = os.pread(self._index_file, _HEADER.size, 0)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise self._damaged("does not begin as an index of Megatron does")
        _, version, code, sequences, entries = _HEADER.unpack(header)
        if version != 1 or code not in _TYPES:
            raise self._damaged(f"version {version}, type {code}; expected version 1 and a type of {list(_TYPES)}")
        self.dtype = np.dtype(_TYPES[code])
        needed = _HEADER.size + 12 * sequences + 8 * entries
        if entries < 1 or size not in (needed, needed + sequences):
            raise self._damaged(f"{size} bytes, its {sequences} sequences and {entries} indices need {needed}")
        begin = _HEADER.size
        self._lengths = _Column(self._idx, self._index_file, begin, sequences, "<i4")
        self._offsets = _Column(self._idx, self._index_file, begin + 4 * sequences, sequences, "<i8")
        self._documents = _Column(self._idx, self._index_file, begin + 12 * sequences, entries, "<i8")
        self._check()

    def _check(self) -> None:
        """Before anything is allocated by what the index says."""
        total = 0
        for begin in range(0, len(self._lengths), _BLOCK):
            lengths = self._lengths[begin : begin + _BLOCK].astype(np.int64)
            offsets = self._offsets[begin : begin + _BLOCK]
            ends = offsets + lengths * self.dtype.itemsize  # an offset so large that this wraps is refused as negative
            wrong = (lengths < 0) | (offsets < 0) | (ends < offsets) | (ends > self._size)
            if wrong.any():
                raise self._damaged(f"sequence {begin + int(wrong.argmax())} does not lie in {self._bin.name}")
            total += int(lengths.sum())
        if total * self.dtype.itemsize != self._size:
            raise self._damaged(f"counts {total} tokens, {self._bin.name} has {self._size / self.dtype.itemsize:g}")
        for begin in range(0, len(self._documents), _BLOCK):
            part = self._documents[max(0, begin - 1) : begin + _BLOCK]
            if (np.diff(part) < 0).any():
                raise self._damaged("its documents do not ascend")
        first, last = (self._documents[at : at + 1].item() for at in (0, len(self)))
        if first != 0 or last != len(self._lengths):
            raise self._damaged(f"its documents do not cover its {len(self._lengths)} sequences")

    def _damaged(self, text: str) -> Damaged:
        return Damaged(f"{self._idx}: {text}; copy or make the pair again")

    def __len__(self) -> int:
        return len(self._documents) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> np.ndarray:
        """Document `index`, int64 [tokens]."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin, end = self._documents[index : index + 2].tolist()
        parts: list[bytes] = []
        for offset, length in zip(self._offsets[begin:end].tolist(), self._lengths[begin:end].tolist(), strict=True):
            parts.append(_read(self._bin, self._file, offset, length * self.dtype.itemsize))
        return np.frombuffer(b"".join(parts), self.dtype).astype(np.int64)

    def token_ends(self, begin: int, end: int) -> np.ndarray:
        """int64 [end - begin + 1]: tokens before document `begin`, and up to each one's end, in order of documents."""
        borders = self._documents[begin : end + 1]
        known, tokens = self._ends
        if known > borders[0]:
            known, tokens = 0, 0
        for at in range(known, int(borders[0]), _BLOCK):
            tokens += int(self._lengths[at : min(at + _BLOCK, int(borders[0]))].sum(dtype=np.int64))
        sums = np.cumsum(self._lengths[borders[0] : borders[-1]], dtype=np.int64)
        ends = tokens + np.concatenate(([0], sums))[borders - borders[0]]
        self._ends = (int(borders[-1]), int(ends[-1]))
        return ends

    def close(self) -> None:
        """Give the files back."""
        for handle in (self._file, self._index_file):
            if handle >= 0:
                os.close(handle)
        self._file = self._index_file = -1

    def __enter__(self) -> MegatronReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Column:
    """Integers in a file, to be sliced, read some ahead; a map would end the process if the file is cut meanwhile."""

    def __init__(self, path: Path, file: int, offset: int, count: int, kind: str) -> None:
        self._path, self._file, self._offset, self._count = path, file, offset, count
        self._begin, self._held = 0, np.empty(0, kind)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> np.ndarray:
        begin, end, _ = part.indices(self._count)
        if begin < self._begin or end > self._begin + len(self._held):
            count = max(end, min(begin + _AHEAD, self._count)) - begin
            size = self._held.itemsize
            data = _read(self._path, self._file, self._offset + begin * size, max(0, count) * size)
            self._begin, self._held = begin, np.frombuffer(data, self._held.dtype)
        return self._held[begin - self._begin : max(begin, end) - self._begin]


def _read(path: Path, file: int, offset: int, size: int) -> bytes:
    try:
        data = os.pread(file, size, offset)
        while 0 < len(data) < size and (more := os.pread(file, size - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise Damaged(f"{path}: cannot be read at byte {offset} ({error.strerror})") from None
    if len(data) < size:
        raise Damaged(f"{path}: ends before byte {offset + size}; it was cut while being read")
    return data


class MegatronWriter:
    """Writes a pair, document by document; it is complete or not there.

    Ids are uint16 when `vocab_size` is below 65500, as Megatron chooses, else int32. Raises DataError.
    """

    def __init__(self, prefix: str | Path, vocab_size: int | None = None) -> None:
        self._bin, self._idx = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
        small = vocab_size is not None and vocab_size < 65500
        self._code = _UINT16 if small else _INT32
        self._limit = min(vocab_size or 1 << 31, 1 << 31)
        self._documents = 0
        with disk_errors(self._bin), contextlib.ExitStack() as stack:
            self._bin.parent.mkdir(parents=True, exist_ok=True)
            for path in (self._bin, self._idx):
                remove_abandoned(path)
            self._tokens = stack.enter_context(open(partial_path(self._bin), "wb"))
            self._index = stack.enter_context(open(partial_path(self._idx), "w+b"))
            self._index.write(b"\0" * _HEADER.size)
            stack.pop_all()

    def add(self, ids: np.ndarray) -> None:
        """Add one document, integers [tokens]."""
        self.add_documents(ids, np.array([len(ids)]))

    def add_documents(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Add documents that lie end to end: ids [sum of lengths], lengths [documents]."""
        ids, lengths = np.asarray(ids), np.asarray(lengths)
        if len(ids) != lengths.sum(dtype=np.int64) or (lengths < 0).any():
            raise DataError(f"{self._bin}: {len(ids)} ids for documents of {lengths.sum()} tokens together")
        for wrong in (int(ids.min()), int(ids.max())) if len(ids) else ():
            if not 0 <= wrong < self._limit:
                raise DataError(f"{self._bin}: token id {wrong}, expected 0 to {self._limit - 1}; check the tokenizer")
        with disk_errors(self._bin):
            self._tokens.write(ids.astype(_TYPES[self._code]).tobytes())
            self._index.write(lengths.astype("<i4").tobytes())
        self._documents += len(lengths)

    def close(self) -> None:
        """Complete the pair. Raises DataError when there is no document in it."""
        with self._cleaned(), disk_errors(self._bin):
            if self._documents == 0:
                raise DataError(f"{self._bin}: no document to write; a pair without any cannot be read")
            self._write_index()
            for file in (self._tokens, self._index):
                file.flush()
                os.fsync(file.fileno())
            # Without an index there is no pair: an old one must not be read with the new ids.
            self._idx.unlink(missing_ok=True)
            os.replace(self._tokens.name, self._bin)
            os.replace(self._index.name, self._idx)
            sync_folder(self._idx.parent)

    def discard(self) -> None:
        """Leave nothing behind."""
        with self._cleaned():
            pass

    @contextlib.contextmanager
    def _cleaned(self) -> Iterator[None]:
        try:
            yield
        finally:
            for file in (self._tokens, self._index):
                with contextlib.suppress(OSError):
                    file.close()
                Path(file.name).unlink(missing_ok=True)

    def _write_index(self) -> None:
        """Offsets and documents, after the lengths that are there already; one sequence a document."""
        size, offset = np.dtype(_TYPES[self._code]).itemsize, 0
        for begin in range(0, self._documents, _BLOCK):
            self._index.seek(_HEADER.size + 4 * begin)
            lengths = np.frombuffer(self._index.read(4 * min(_BLOCK, self._documents - begin)), "<i4")
            ends = offset + size * np.cumsum(lengths, dtype="<i8")
            self._index.seek(_HEADER.size + 4 * self._documents + 8 * begin)
            self._index.write((ends - size * lengths).astype("<i8").tobytes())
            offset = int(ends[-1])
        self._index.seek(0, os.SEEK_END)
        for begin in range(0, self._documents + 1, _BLOCK):
            end = min(begin + _BLOCK, self._documents + 1)
            self._index.write(np.arange(begin, end, dtype="<i8").tobytes())
        self._index.seek(0)
        self._index.write(_HEADER.pack(_MAGIC, 1, self._code, self._documents, self._documents + 1))

    def __enter__(self) -> MegatronWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
