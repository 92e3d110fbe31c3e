"""Several ranks under one commit: each writes its part, rank 0 gathers them and commits.

.session                       the token that rank 0 draws when it begins to write
step-00000120.1.<token>.part   what rank 1 wrote for step 120, or why it failed; gone when rank 0 has committed
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.manifest import MOST_BYTES, dump_entries, dump_line
from mindspeed_ms.checkpoint.parse import parse_line, parse_part
from mindspeed_ms.checkpoint.writer import Part
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.paths import partial_path

SESSION = ".session"
_FORMAT = "mindspeed-ms-checkpoint-part"
_LEAST_PAUSE, _MOST_PAUSE = 0.005, 0.2  # seconds


class Ranks:
    """The meeting of the ranks of a store in its folder. Raises CheckpointError, OSError."""

    def __init__(self, folder: Path, files: Files, rank: int, world: int, timeout: float, chunk_bytes: int) -> None:
        self._folder, self._files = folder, files
        self._rank, self._world, self._timeout = rank, world, timeout
        self._chunk_bytes = chunk_bytes
        self._token = ""

    def begin(self) -> None:
        """Rank 0, before anything of this session is written: parts of former sessions do not count any more."""
        self._token = secrets.token_hex(8)
        path = self._folder / SESSION
        self._files.replace(path, partial_path(path), self._token.encode())

    def clear(self, step: int) -> None:
        """Rank 0, before and after a commit: remove a step's parts; a rank that still waits writes its own again."""
        for rank in range(self._world):
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._path(step, rank))

    def fail(self, step: int, reason: str) -> None:
        """Tell the others that this rank's part will not come."""
        with contextlib.suppress(OSError, CheckpointError):  # then they find out when their time is over
            self._publish(step, {"error": reason})

    def gather(self, step: int) -> dict[int, tuple[Part, dict[str, Any]]]:
        """Rank 0: wait for part and state of each other rank. Raises CheckpointError for one that failed or is late."""
        found: dict[int, tuple[Part, dict[str, Any]]] = {}

        def look() -> bool:
            for rank in range(1, self._world):
                if rank not in found:
                    with contextlib.suppress(FileNotFoundError):
                        found[rank] = self._read(step, rank)
            return len(found) == self._world - 1

        def late() -> str:
            missing = ", ".join(str(rank) for rank in range(1, self._world) if rank not in found)
            return f"no part came from rank {missing}"

        self._await(step, look, late)
        return found

    def follow(self, step: int, part: Part, state: dict[str, Any], committed: Callable[[], bool]) -> None:
        """Another rank: hand in its part, wait until `committed`. Raises CheckpointError where rank 0 failed."""
        names = sorted(part.files)
        values = {
            "base": part.base,
            "bytes": part.bytes,
            "chunk_bytes": self._chunk_bytes,
            "files": part.files,
            "tensors": dump_entries(part.entries, names),
            "state": state,
        }

        handed_in = False

        def look() -> bool:
            nonlocal handed_in
            if committed():
                return True
            with contextlib.suppress(FileNotFoundError):
                self._read(step, 0)  # only ever to say that it failed
            token = self._session()
            if token is None:
                return False
            if not handed_in or token != self._token or not self._there(self._path(step, self._rank)):
                if committed():  # rank 0 removes the parts after it has committed
                    return True
                self._token = token
                self._publish(step, values)
                handed_in = True
            return False

        self._await(step, look, lambda: "rank 0 has not committed")

    def claimed(self) -> set[str]:
        """The files that this rank's parts of the present session name: rank 0 may be about to commit them."""
        token = self._session()
        found: set[str] = set()
        for name in self._files.names(self._folder):
            parts = name.split(".")
            if token and len(parts) == 4 and parts[1:] == [str(self._rank), token, "part"]:
                with contextlib.suppress(OSError, CheckpointError):
                    values, _ = parse_line(self._files.read_all(self._folder / name, MOST_BYTES), name)
                    found |= {name, *values.get("files", {})}
        return found

    def _await(self, step: int, look: Callable[[], bool], late: Callable[[], str]) -> None:
        end, pause = time.monotonic() + self._timeout, _LEAST_PAUSE
        while not look():
            if time.monotonic() > end:
                raise CheckpointError(
                    f"{self._folder}: step {step}: {late()} within {self._timeout:g} s; see what became of that rank"
                )
            if not threading.main_thread().is_alive():
                raise CheckpointError(f"{self._folder}: step {step}: {late()} before this process ended")
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE)

    def _publish(self, step: int, values: dict[str, Any]) -> None:
        token = self._token if self._rank == 0 else self._session()
        if token is None:
            return
        self._token = token
        line = {"format": _FORMAT, "version": 1, "step": step, "rank": self._rank, **values}
        data, _ = dump_line(line)
        path = self._path(step, self._rank)
        self._files.replace(path, partial_path(path), data)

    def _read(self, step: int, rank: int) -> tuple[Part, dict[str, Any]]:
        path = self._path(step, rank)
        values, _ = parse_line(self._files.read_all(path, MOST_BYTES), str(path))
        found = tuple(values.get(key) for key in ("format", "version", "step", "rank"))
        if found != (_FORMAT, 1, step, rank):
            raise CheckpointError(f"{path}: is not the part of rank {rank} for step {step}")
        if "error" in values:
            raise CheckpointError(f"rank {rank} could not save step {step}: {str(values['error'])[:2000]}")
        base, nbytes, entries, files, state = parse_part(values, str(path), step, rank, self._world)
        return Part(base, nbytes, entries, files), state

    def _path(self, step: int, rank: int) -> Path:
        return self._folder / f"step-{step:08d}.{rank}.{self._token}.part"

    def _session(self) -> str | None:
        try:
            return self._files.read_all(self._folder / SESSION, 64).decode("ascii", "replace") or None
        except FileNotFoundError:
            return None

    def _there(self, path: Path) -> bool:
        try:
            self._files.file_size(path)
        except OSError:
            return False
        return True


def shard(nbytes: dict[str, int], rank: int, world: int) -> list[str]:
    """The names of whole tensors that a rank saves where each rank has them all: about equally many bytes a rank."""
    loads, shares = [0] * world, [[] for _ in range(world)]  # type: ignore[var-annotated]
    for name in sorted(nbytes, key=lambda name: (-nbytes[name], name)):
        least = loads.index(min(loads))
        loads[least] += nbytes[name]
        shares[least].append(name)
    return sorted(shares[rank])
