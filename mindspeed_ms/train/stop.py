"""Ctrl-C and SIGTERM while a run trains: the batch that is at work is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """`number` is that of the first signal that came, or None."""

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def stop_in_order(told: Callable[[int], None]) -> Iterator[Stop]:
    """Signals in here set `number`, and `told` is called with it; a second one is KeyboardInterrupt at once.

    In another thread than the main one, which alone gets signals, nothing is changed.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.number is not None:
            raise KeyboardInterrupt("the run goes on from its last checkpoint with --resume")
        stop.number = number
        told(number)

    # A handler that is not Python's is None, and cannot be put back; a shell ignores SIGINT of its background jobs.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    mine = [number for number, old in before.items() if old is not None and old is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, handler)
    try:
        yield stop
    finally:
        for number in mine:
            signal.signal(number, before[number])
