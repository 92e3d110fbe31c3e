"""An ordered parallel map over worker processes that neither outlive their parent nor fill its memory.

Workers are fresh interpreters, started by their path and never forked, each with a private pair of pipes. Even one
worker is a process: the parent reads and writes files while it computes. A worker ends when its pipe does, which the
kernel sees to when the parent is killed, whatever the worker is busy with; on Linux it is also told by a signal.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from mindspeed_ms import errors
from mindspeed_ms.errors import DataError, MindSpeedError
from mindspeed_ms.log import get_logger

_LOG = get_logger(__name__)
AHEAD = 2  # items that wait for a worker beside the ones that are worked on
_PR_SET_PDEATHSIG = 1
# Python has a stderr of its own: to the usual one a Rust panic prints its trace, and as an error it is told anyway.
_START = """
import os, sys
sys.stderr = open(os.dup(2), "w", buffering=1, errors="backslashreplace")
muted = os.open(os.devnull, os.O_WRONLY)
os.dup2(muted, 2)
os.close(muted)
sys.path[:] = [p for p in sys.path if p]
from mindspeed_ms.data.pool import serve
serve(%d, %d)
"""

Work = Callable[[Any], Any]


class Pool:
    """`with Pool(factory, workers) as pool: for result in pool.map(items)`.

    factory: picklable, importable by name; called once in each worker, returns the function that is mapped.
    workers: number of processes. Use and leave a pool in the thread that made it. At most workers + 2 items are on
    their way at any time, results that wait for an earlier one included.
    """

    def __init__(self, factory: Callable[[], Work], workers: int) -> None:
        self._workers: list[_Worker] = []
        self._limit = workers + AHEAD
        self._sequence = 0  # never starts again: what an abandoned map left behind is recognized by it
        start = pickle.dumps(factory, protocol=5)
        try:
            for _ in range(workers):
                self._workers.append(_Worker(start))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        self._workers = []

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """The function's result for each item, in order.

        What the function raises is raised here when its turn comes: a MindSpeedError as itself, others as a DataError.
        An error of `items` is raised after the results before it. Raises DataError when a worker dies.
        """
        return ordered(items, self._limit, self._send, self._receive)

    def _send(self, item: Any) -> int:
        self._sequence += 1
        data = pickle.dumps((self._sequence, item), protocol=5)
        min(self._workers, key=lambda worker: worker.load).send(data)
        return self._sequence

    def _receive(self) -> list[tuple[int, Result]]:
        """What has arrived, after waiting for the first."""
        by_pipe = {worker.results: worker for worker in self._workers}
        return [by_pipe[pipe].receive() for pipe in wait(list(by_pipe))]  # type: ignore[index]


class Result:
    """A value, or the error that stands in its place."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: tuple[str, str] | None = None) -> None:
        self.value, self.error = value, error

    def get(self) -> Any:
        """The value. Raises the error."""
        if self.error is None:
            return self.value
        name, message = self.error
        kind = getattr(errors, name, DataError)
        raise (kind if isinstance(kind, type) and issubclass(kind, MindSpeedError) else DataError)(message)

    @classmethod
    def of(cls, error: BaseException) -> Result:
        """An error by the name of its nearest class that `mindspeed_ms.errors` knows, and its one line."""
        if isinstance(error, MindSpeedError):
            known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
            return cls(error=(known.__name__, str(error)))
        _LOG.debug("a worker failed", exc_info=error)
        line = (str(error).splitlines() or [""])[0][:300]
        return cls(error=("DataError", f"a worker failed with {type(error).__name__}: {line}; please report this"))


def ordered(
    items: Iterable[Any], limit: int, send: Callable[[Any], int], receive: Callable[[], list[tuple[int, Result]]]
) -> Iterator[Any]:
    """Sends items while fewer than `limit` are on their way, and yields their results in order."""
    source = iter(items)
    sent: list[int] = []
    arrived: dict[int, Result] = {}
    failure: Exception | None = None
    more = True
    while more or sent:
        while more and len(sent) < limit:
            try:
                item = next(source)
            except StopIteration:
                more = False
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised after the results before it
                more, failure = False, error
            else:
                sent.append(send(item))
        if not sent:
            break
        while sent[0] not in arrived:
            arrived.update((number, result) for number, result in receive() if number in sent)
        yield arrived.pop(sent.pop(0)).get()
    if failure is not None:
        raise failure


class _Worker:
    """One process, seen from the parent."""

    def __init__(self, start: bytes) -> None:
        self.load = 0
        there_in, self._items = _pipe()
        self.results, there_out = _pipe()
        path = os.pathsep.join(part for part in sys.path if part)
        env = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        # Blocked until the worker ignores it: Ctrl-C is for the parent, who ends its workers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START % (there_in.fileno(), there_out.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=env,
                pass_fds=(there_in.fileno(), there_out.fileno()),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there_in.close()
            there_out.close()
        self._write(pickle.dumps(os.getpid()))
        self._write(start)

    def send(self, data: bytes) -> None:
        self._write(data)
        self.load += 1

    def receive(self) -> tuple[int, Result]:
        try:
            data = self.results.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        number, result = pickle.loads(data)
        if number < 0:
            result.get()  # the factory failed: there will never be another result
        self.load -= 1
        return number, result

    def kill(self) -> None:
        self._items.close()
        self._process.kill()

    def join(self) -> None:
        self._process.wait()
        self.results.close()

    def _write(self, data: bytes) -> None:
        try:
            self._items.send_bytes(data)
        except (BrokenPipeError, ConnectionResetError):
            # A factory that failed has said why before the process ended.
            if self.results.poll():
                self.receive()
            raise self._died() from None

    def _died(self) -> DataError:
        code = self._process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        why = " (the system may be out of memory)" if code == -signal.SIGKILL else ""
        return DataError(f"a worker process ended {how}{why}; take fewer workers, then run the same command again")


def _pipe() -> tuple[Connection, Connection]:
    """A one-way pipe: the end to read, the end to write; neither is inherited unless asked for."""
    reader, writer = os.pipe()
    return Connection(reader, writable=False), Connection(writer, readable=False)


def serve(items_fd: int, results_fd: int) -> None:
    """The life of a worker: make the function, apply it to item after item, end with the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    source = Connection(items_fd, writable=False)
    results = Connection(results_fd, readable=False)
    parent = pickle.loads(source.recv_bytes())
    _die_with(parent)
    items: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    start = source.recv_bytes()
    # A thread of its own keeps emptying the pipe, so that the parent never waits to write while we wait to write to it.
    threading.Thread(target=_read, args=(source, items), daemon=True).start()
    try:
        work = pickle.loads(start)()
    except BaseException as error:  # noqa: BLE001 - told to the parent as one line; a Rust panic is no Exception
        results.send_bytes(pickle.dumps((-1, Result.of(error)), protocol=5))
        return
    while True:
        number, item = pickle.loads(items.get())
        try:
            answer = Result(work(item))
        except BaseException as error:  # noqa: BLE001 - as above
            answer = Result.of(error)
        del item
        results.send_bytes(pickle.dumps((number, answer), protocol=5))


def _read(source: Connection, items: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            items.put(source.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone or wants no more; there is nothing to tidy


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(0)
