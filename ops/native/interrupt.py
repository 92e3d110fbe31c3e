"""Ctrl-C while MindSpore runs a graph: it stays what the program wants it to be."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def restore_interrupt() -> None:
    """Undo what graphs that ran outside of `keep_interrupt` left of SIGINT; has no effect but in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextmanager
def keep_interrupt(library: ctypes.CDLL) -> Iterator[None]:
    """Around a run of a graph, in any thread: MindSpore's handler of SIGINT, which ends the process, is undone.

    library: the kernel library. An interrupt meanwhile reaches the handler that was there before, usually Python's,
    which raises KeyboardInterrupt in the main thread.
    """
    library.MsmsBeginRun()
    try:
        yield
    finally:
        library.MsmsEndRun()
