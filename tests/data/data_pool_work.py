"""What the workers of the tests' pools do; imported by name in their processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from mindspeed_ms.data.types import Position, RawChunk
from mindspeed_ms.errors import ConfigError, DataError


class Damaged(DataError):
    """A subclass that mindspeed_ms.errors does not know."""


def doubler():
    """A function that takes longer for the first items, and knows in which process it runs."""

    def work(number: int) -> tuple[int, int]:
        time.sleep(0.05 if number % 3 == 0 else 0)
        return 2 * number, os.getpid()

    return work


def doer():
    """A function that does what its item says."""
    return lambda item: TASKS[item[0]](*item[1:])


def broken():
    """A factory that fails."""
    raise ConfigError("option: x: expected y; leave it out")


def _fail(kind: str) -> None:
    if kind == "data":
        raise DataError("file: record 3: bad; repair it")
    if kind == "damaged":
        raise Damaged("file: damaged; copy it again")
    raise ZeroDivisionError("two\nlines")


def _echo(value: Any) -> Any:
    return value


def _stop(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def _facts() -> dict[str, Any]:
    return {
        "fork_free": "pytest" not in sys.modules,
        "parallelism": os.environ["TOKENIZERS_PARALLELISM"],
        "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "blocked": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "files": sorted(filter(None, map(_kind, set(range(3, 256)) - {sys.stderr.fileno()}))),
    }


def _kind(fd: int) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
    return None


def _panic() -> None:
    """A real one, of the Rust library, after a word of Python's own."""
    print("a word on standard error", file=sys.stderr, flush=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(length=0)
    tokenizer.encode("a b")


def _print() -> None:
    print("a word on standard output", flush=True)


TASKS = {
    "fail": _fail,
    "echo": _echo,
    "stop": _stop,
    "facts": _facts,
    "panic": _panic,
    "print": _print,
    "pid": os.getpid,
    "sleep": time.sleep,
    "spin": lambda: [None for _ in iter(int, 1)],
    "sum": lambda array: np.asarray(array) * 2,
}


def main(pids: str) -> None:
    """A parent whose workers sleep and spin; writes their numbers into a file, then waits for them."""
    from mindspeed_ms.data.pool import Pool

    with Pool(doer, 2) as pool:
        found = {pid for pid in pool.map(("pid",) for _ in range(20))}
        while len(found) < 2:
            found |= {pid for pid in pool.map([("sleep", 0.01), ("pid",), ("pid",)]) if pid}
        Path(pids + ".new").write_text(json.dumps(sorted(found)))
        os.replace(pids + ".new", pids)
        list(pool.map([("spin",), ("sleep", 600)]))


def raw_chunks(texts: list[str], size: int) -> list[RawChunk]:
    """The texts as chunks of so many records."""
    records = [text.encode() for text in texts]
    return [
        RawChunk(0, at, "text", records[at : at + size], 0, None, size, Position(at + size, 0))
        for at in range(0, len(records), size)
    ]


partial = functools.partial
