"""One thread runs the engine for every caller, so that their requests share its batches."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from mindspeed_ms.errors import ServeError
from mindspeed_ms.serving.engine.core import Engine
from mindspeed_ms.serving.engine.sequence import RequestOutput, Sequence

T = TypeVar("T")
_STOP = object()


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer's text; the last one carries the whole answer in `output`."""

    text: str
    output: RequestOutput | None = None


class Handle:
    """A request in flight: iterate for its text as it comes, or wait for `result`."""

    def __init__(self, seq: Sequence, cancel: Callable[[Sequence], None]) -> None:
        self._seq = seq
        self._cancel = cancel
        self._chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            chunk = self._chunks.get()
            yield chunk
            if chunk.output is not None:
                return

    def result(self) -> RequestOutput:
        """Wait for the end; call it or iterate, once."""
        return next(chunk.output for chunk in self if chunk.output is not None)

    def cancel(self) -> None:
        """Free the request's place; its answer ends with finish_reason 'cancelled'."""
        self._cancel(self._seq)

    def deliver(self) -> None:
        """Called by the engine's thread after each token."""
        text = self._seq.text.take()
        if self._seq.finished:
            self._chunks.put(Chunk(text, self._seq.output()))
        elif text:
            self._chunks.put(Chunk(text))


class EngineLoop:
    """Owns the engine's thread; the engine is made, used and dropped in it."""

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._handles: dict[Sequence, Handle] = {}
        made: queue.SimpleQueue[Engine | BaseException] = queue.SimpleQueue()
        self._closed = threading.Event()
        # The thread does not know this object: dropping the last reference to it, or leaving Python, ends the thread.
        args = (make_engine, made, self._commands, self._handles, self._closed)
        self._thread = threading.Thread(target=_main, args=args, name="mindspeed-ms-engine", daemon=True)
        self._thread.start()
        engine = made.get()
        if isinstance(engine, BaseException):
            raise engine
        self.engine = engine
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._commands, self._thread, self._process)

    @property
    def pending(self) -> int:
        """Requests that are not finished."""
        return len(self._handles)

    def submit(self, seq: Sequence) -> Handle:
        """Queue a checked sequence."""
        self._check_process()
        handle = self._handles[seq] = Handle(seq, self._abort)
        if self._closed.is_set():  # asked after the handle is where the ending thread looks
            self._handles.pop(seq, None)
            raise ServeError("engine: it has been closed: expected an open one")
        self._commands.put(lambda engine: engine.add(seq))
        return handle

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run `function(engine)` in the engine's thread between two steps and return its result."""
        self._check_process()
        box: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run(engine: Engine) -> None:
            try:
                box.put((True, function(engine)))
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller's thread
                box.put((False, error))

        self._commands.put(run)
        while True:
            try:
                good, value = box.get(timeout=0.5)
                break
            except queue.Empty:
                if self._closed.is_set():
                    raise ServeError("engine: it has been closed: expected an open one") from None
        if not good:
            raise value
        result: T = value
        return result

    def close(self) -> None:
        """End the thread; requests in flight end with an error."""
        self._finalizer()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # a fork copies no threads: nobody would answer
            raise ServeError("engine: it runs in the process that made it: expected a model loaded after the fork")

    def _abort(self, seq: Sequence) -> None:
        self._commands.put(lambda engine: _abort(engine, seq, self._handles))


def _abort(engine: Engine, seq: Sequence, handles: dict[Sequence, Handle]) -> None:
    engine.abort(seq)
    handle = handles.pop(seq, None)
    if handle is not None:
        handle.deliver()


def _end(commands: queue.SimpleQueue[Any], thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:
        return
    commands.put(_STOP)
    if thread is not threading.current_thread():
        thread.join()


def _main(
    make_engine: Callable[[], Engine],
    made: queue.SimpleQueue[Any],
    commands: queue.SimpleQueue[Any],
    handles: dict[Sequence, Handle],
    closed: threading.Event,
) -> None:
    try:
        engine = make_engine()
    except BaseException as error:  # noqa: BLE001 - the caller's constructor raises it
        made.put(error)
        return
    made.put(engine)
    why = "engine: it was closed before the answer was complete"
    try:
        while _obey(engine, commands):
            for seq in engine.step():
                handles[seq].deliver()
                if seq.finished:
                    del handles[seq]
    except Exception as error:
        why = f"engine: it stopped: {error!r}"
        raise
    finally:
        closed.set()
        for seq, handle in list(handles.items()):
            seq.fail(why)
            handle.deliver()
        handles.clear()


def _obey(engine: Engine, commands: queue.SimpleQueue[Any]) -> bool:
    """Carry out what callers asked for, waiting for it when there is nothing to run; False to stop."""
    while True:
        try:
            command = commands.get(block=not engine.busy)
        except queue.Empty:
            return True
        if command is _STOP:
            return False
        command(engine)
