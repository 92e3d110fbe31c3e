"""Ctrl-C while MindSpore runs a graph: it stays what the program wants it to be."""

from collections.abc import Iterator
from contextlib import contextmanager

from mindspeed_ms.ops.native.build import library


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
