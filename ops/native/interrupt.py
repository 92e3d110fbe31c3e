"""Ctrl-C while MindSpore runs a graph: it stays what the program wants it to be."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mindspeed_ms.ops.native.build import library


def restore_interrupt() -> None:
    """Undo what graphs that ran outside of `keep_interrupt` left of SIGINT; has no effect but in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextmanager
def keep_interrupt() -> Iterator[None]:
    """Around a run of a graph, in any thread: MindSpore's handler of SIGINT, which ends the process, is undone.

    An interrupt meanwhile reaches the handler that was there before, usually Python's KeyboardInterrupt in the main
    thread. Raises BuildError without a kernel library.
    """
    lib = library()
    lib.MsmsBeginRun()
    try:
        yield
    finally:
        lib.MsmsEndRun()
