"""A new file of chunks: filled in memory by one thread, written past the page cache by another."""

from __future__ import annotations

import errno
import queue
import threading
from pathlib import Path

import numpy as np
from xxhash import xxh3_64

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.manifest import PAGE, Chunk
from mindspeed_ms.checkpoint.priority import Aside
from mindspeed_ms.checkpoint.snapshot import aligned

BUFFER_BYTES = 8 << 20
BUFFERS = 4
_ALIGNED = 64 << 10  # a chunk of this size or more begins at a page


class Sink:
    """One file. The buffers stay from file to file; a chunk has room in one of them."""

    def __init__(self, files: Files, chunk_bytes: int, aside: Aside) -> None:
        self._files, self._aside = files, aside
        self._bytes = max(BUFFER_BYTES, 2 * chunk_bytes) + 2 * PAGE
        self._free: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(aligned(self._bytes))

    def begin(self, path: Path) -> None:
        self._path = path
        self._full: queue.SimpleQueue[tuple[np.ndarray, int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._handle: int | None = None
        self._direct = True
        self._buffer = self._free.get()
        self._start = 0  # where the buffer's first byte lies in the file
        self._end = 0  # of what was placed, in the buffer
        self._chunks: list[list[int | str]] = []
        self._hash = xxh3_64()

    def room(self, nbytes: int) -> np.ndarray:
        """uint8 [nbytes] to encode a chunk into."""
        self._at = -(-self._end // PAGE) * PAGE
        if self._at + nbytes > self._bytes - PAGE:
            self._hand_over()
            self._at = -(-self._end // PAGE) * PAGE
        return self._buffer[self._at : self._at + nbytes]

    def keep(self, codec: str, used: int) -> int:
        """The first `used` bytes of the room are a chunk; returns its number."""
        if used < _ALIGNED and self._at > self._end:
            self._buffer[self._end : self._end + used] = self._buffer[self._at : self._at + used].copy()
        else:
            self._pad(self._at)
        self._seal()
        data = self._buffer[self._end : self._end + used]
        self._hash = xxh3_64(data.data)
        self._chunks.append([self._start + self._end, used, used, codec, ""])
        self._end += used
        return len(self._chunks) - 1

    def finish(self) -> tuple[list[Chunk], int]:
        """Write, sync and close; returns the chunks and the file's bytes. No file where there is no chunk."""
        if self._chunks:
            self._pad(-(-self._end // PAGE) * PAGE)
            self._seal()
            self._hand_over()
        size = self._start
        self._stop()
        if self._handle is not None:
            try:
                self._files.fsync(self._handle)
            finally:
                handle, self._handle = self._handle, None
                self._files.close(handle)
        self._free.put(self._buffer)
        return [Chunk(self._path.name, *values) for values in self._chunks], size  # type: ignore[arg-type]

    def abort(self) -> None:
        """Leave the file as it is, closed."""
        try:
            self._stop()
        except BaseException:  # noqa: BLE001 - the one that led here, or one like it
            pass
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._files.close(handle)
        while self._free.qsize() < BUFFERS:
            self._free.put(aligned(self._bytes))

    def _pad(self, end: int) -> None:
        """Zeros up to `end` that belong to the chunk before."""
        count = end - self._end
        if count:
            zeros = self._buffer[self._end : end]
            zeros[:] = 0
            self._hash.update(zeros.data)
            self._chunks[-1][1] += count  # type: ignore[operator]
            self._end = end

    def _seal(self) -> None:
        if self._chunks:
            self._chunks[-1][4] = self._hash.hexdigest()

    def _hand_over(self) -> None:
        """Give the whole pages to the writing thread, and begin a buffer with the rest."""
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._handle = self._open()
            thread = threading.Thread(target=self._write, name="checkpoint-write", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from None
            self._thread = thread
        whole = self._end // PAGE * PAGE
        buffer = self._free.get()
        buffer[: self._end - whole] = self._buffer[whole : self._end]
        self._full.put((self._buffer, whole, self._start))
        self._buffer, self._start, self._end = buffer, self._start + whole, self._end - whole

    def _open(self) -> int:
        try:
            return self._files.open_new(self._path, direct=True)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            try:
                self._files.unlink(self._path)  # some file systems create it before they refuse
            except FileNotFoundError:
                pass
            return self._files.open_new(self._path)

    def _write(self) -> None:
        self._aside.enter()
        while (item := self._full.get()) is not None:
            buffer, length, offset = item
            try:
                if self._error is None:
                    self._put(memoryview(buffer[:length].data), offset)
            except BaseException as error:  # noqa: BLE001 - raised by the other thread
                self._error = error
            self._free.put(buffer)
        self._aside.leave()

    def _put(self, data: memoryview, offset: int) -> None:
        assert self._handle is not None
        if self._direct:
            try:
                self._files.pwrite(self._handle, data, offset)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
                self._files.leave_direct(self._handle)
        self._files.pwrite(self._handle, data, offset)
        self._files.release(self._handle, offset + len(data), len(data))

    def _stop(self) -> None:
        if self._thread is not None:
            self._full.put(None)
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
