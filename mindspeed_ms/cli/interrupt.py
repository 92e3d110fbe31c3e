"""SIGTERM ends a command as Ctrl-C does: what it holds is let go, what it writes is removed."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


def catch_terminate() -> None:
    """Let SIGTERM raise Terminated in the main thread, as SIGINT raises KeyboardInterrupt."""

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, handler)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt is behind an error: a C extension that is being imported makes an ImportError of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def can_go_on(how: str) -> Iterator[None]:
    """An interrupt in here says `how` one goes on from where it came."""
    try:
        yield
    except (KeyboardInterrupt, ImportError) as error:
        if not was_interrupted(error):
            raise
        raise KeyboardInterrupt(how) from error


def leave_if_half_imported() -> None:
    """End the process here if MindSpore's import was cut short: it would crash when Python ends in the usual way."""
    if "mindspore._c_expression" in sys.modules and "mindspore" not in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
