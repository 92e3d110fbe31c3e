"""Threads that take only the time that nobody else wants, until somebody waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading


class Aside:
    """The threads of a store's background."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._guard = threading.Lock()
        self._hurried = False
        self._all: set[int] = set()
        self.caller_cpu: int | None = None

    def prepare(self) -> None:
        """In the caller's thread, before a background thread begins."""
        self._hurried = False
        with contextlib.suppress(OSError, AttributeError):
            self._all = os.sched_getaffinity(0)
        self.caller_cpu = None
        with contextlib.suppress(OSError, AttributeError):
            self.caller_cpu = int(ctypes.CDLL(None).sched_getcpu())

    def enter(self) -> None:
        """In a background thread: step aside, and off the caller's core, where the system lets it."""
        with self._guard:
            self._threads.add(threading.get_native_id())
            if self._hurried:
                self._as_any(0)  # the thread that began this one may have stepped aside
                return
            with contextlib.suppress(OSError, AttributeError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            with contextlib.suppress(OSError, AttributeError):
                others = self._all - {self.caller_cpu}
                if others:
                    os.sched_setaffinity(0, others)

    def leave(self) -> None:
        with self._guard:
            self._threads.discard(threading.get_native_id())

    def hurry(self) -> None:
        """Somebody waits: the threads are as important as any."""
        with self._guard:
            self._hurried = True
            for thread in self._threads:
                self._as_any(thread)

    def _as_any(self, thread: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(thread, self._all)
