"""Ctrl-C under MindSpore: each run of a graph replaces the handler of SIGINT by one that sends its process SIGTERM."""

import signal
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM: from outside, or what MindSpore has made of a Ctrl-C."""


def catch_terminate() -> None:
    """Let SIGTERM raise Terminated in the main thread, as SIGINT raises KeyboardInterrupt."""

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, handler)


def restore_interrupt() -> None:
    """Give Ctrl-C its usual meaning again, until the next run of a graph."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
