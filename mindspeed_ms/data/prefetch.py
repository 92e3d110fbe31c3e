"""A thread that makes the next few things while the last one is in use."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mindspeed_ms.errors import DataError

T = TypeVar("T")


class Prefetcher(Iterator[T], Generic[T]):
    """Iterates over what `make()` yields, of which a thread keeps at most `depth` things ready.

    Whatever `make` or what it returns raises comes out of the next `next()` after the things made before it, and ends
    the iteration. Closing or dropping this iterator, or leaving Python, ends the thread once it is done with one thing.
    """

    def __init__(self, make: Callable[[], Iterator[T]], depth: int) -> None:
        self._process = os.getpid()
        self._shelf: _Shelf[T] = _Shelf(depth)
        # The thread knows the shelf and not this object, so that dropping the last reference to it ends the thread.
        self._thread = threading.Thread(target=_fill, args=(make, self._shelf), name="mindspeed-ms-data", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._shelf.close)

    def __next__(self) -> T:
        if os.getpid() != self._process:  # a fork copies no threads: nothing would ever come
            raise DataError("loader: this iterator belongs to the process before the fork; expected iter() after it")
        return self._shelf.take()

    def close(self) -> None:
        """End: what is ready is dropped, and `next()` raises StopIteration."""
        self._finalizer()


class _Shelf(Generic[T]):
    """What is ready, between the two threads: queues of C code, for a handing over that takes microseconds."""

    def __init__(self, depth: int) -> None:
        self._ready: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._closed = False  # nothing more is wanted
        self._ended = False  # nothing more comes

    def wait_for_room(self) -> bool:
        """False when nothing more is wanted."""
        self._room.get()
        return not self._closed

    def put(self, thing: tuple[T] | BaseException) -> None:
        """Add a thing, or the exception that ends it all."""
        self._ready.put(thing)

    def take(self) -> T:
        if self._closed or self._ended:
            raise StopIteration
        thing = self._ready.get()
        if isinstance(thing, BaseException):
            self._ended = True
            raise thing
        self._room.put(None)
        return thing[0]

    def close(self) -> None:
        self._closed = True
        try:
            while True:
                self._ready.get_nowait()
        except queue.Empty:
            pass
        self._room.put(None)  # either thread may be waiting
        self._ready.put(StopIteration())


def _fill(make: Callable[[], Iterator[T]], shelf: _Shelf[T]) -> None:
    try:
        things = make()
        while shelf.wait_for_room():
            shelf.put((next(things),))
    except BaseException as error:  # noqa: BLE001 - it belongs to the consumer's thread; StopIteration is the usual one
        shelf.put(error)
