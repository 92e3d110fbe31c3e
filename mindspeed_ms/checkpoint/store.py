"""Checkpoints in a folder: commits that are whole, or not there. docs/checkpoint-format.md describes the files."""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from mindspeed_ms.checkpoint import request
from mindspeed_ms.checkpoint.catalog import Catalog
from mindspeed_ms.checkpoint.commit import Committer
from mindspeed_ms.checkpoint.files import FILES, Files
from mindspeed_ms.checkpoint.load import load_newest, load_step
from mindspeed_ms.checkpoint.manifest import CHUNK_BYTES, Manifest
from mindspeed_ms.checkpoint.priority import Aside
from mindspeed_ms.checkpoint.records import Checkpoint, NotFinite, Problem, Saved
from mindspeed_ms.checkpoint.snapshot import Snapshot, views
from mindspeed_ms.checkpoint.verify import verify
from mindspeed_ms.checkpoint.writer import Job
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger

__all__ = ["Checkpoint", "CheckpointStore", "NotFinite", "Problem", "Saved"]

_Result = TypeVar("_Result")
_Values = ParamSpec("_Values")
_SPARE = 1 << 20  # bytes beside the tensors
_PATIENCE = 120.0  # seconds after which a save no longer waits for time that nobody wants

log = get_logger(__name__)


def _alone(
    method: Callable[Concatenate[CheckpointStore, _Values], _Result],
) -> Callable[Concatenate[CheckpointStore, _Values], _Result]:
    """One thread at a time, and no process that was forked: the threads of a save are its parent's."""

    @functools.wraps(method)
    def call(store: CheckpointStore, /, *values: _Values.args, **options: _Values.kwargs) -> _Result:
        if os.getpid() != store._process:
            raise CheckpointError(
                f"{store.folder}: was opened by process {store._process}, from which this one was forked; "
                "open it anew to write"
            )
        with store._guard:
            return method(store, *values, **options)

    return call


class CheckpointStore:
    """Checkpoints in a folder: commits that are whole, or not there. Raises CheckpointError.

    keep: the newest commits that stay, 0 for all; keep_every: those of steps that it divides stay too; keep_best: so
    many of the lowest metrics. identity: what a commit is of; `load` refuses a commit that says otherwise.
    timeout: seconds that a rank waits for the others.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        keep_best: int = 0,
        rank: int = 0,
        world: int = 1,
        identity: Mapping[str, str] | None = None,
        files: Files = FILES,
        timeout: float = 600.0,
        write: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        world = request.whole(world, "world", 1, 1 << 24, "number of ranks")
        if type(rank) is not int or not 0 <= rank < world:
            raise CheckpointError(f"rank is {rank} of {world}, expected 0 to {world - 1}")
        self.folder = Path(folder)
        self.identity = request.identity(identity)
        self._rules = request.rules(keep, keep_every, keep_best)
        self._rank, self._files, self._write = rank, files, write
        self._catalog = Catalog(self.folder, files)
        self._aside = Aside()
        self._snapshot = Snapshot()
        self._committer = Committer(
            self._catalog,
            files,
            rules=self._rules,
            rank=rank,
            world=world,
            identity=self.identity,
            timeout=timeout,
            chunk_bytes=request.chunk_size(chunk_bytes),
            aside=self._aside,
        )
        self._guard, self._process = threading.RLock(), os.getpid()
        self._job: Job | None = None  # whose tensors have not all been copied
        self._thread: threading.Thread | None = None
        self._begun = 0.0
        self._saved: list[Saved] = []
        self._result: Saved | None = None
        self._error: BaseException | None = None

    @_alone
    def save(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        *,
        metric: float | None = None,
        layout: Mapping[str, Mapping[str, Any]] | None = None,
        finite: Collection[str] = (),
        late: Collection[str] = (),
        wait: bool = False,
    ) -> None:
        """Commit these tensors (C order, any dtype of the format) and what JSON holds of `state`.

        Returns when `tensors` may be changed; a background thread does the rest, and its error is raised by the next
        call; a process that ends before `wait` or `close` leaves the save undone. A save that still runs is waited for.
        wait: returns after the commit, and copies nothing. layout: {"shape", "offset"} of tensors that are a part of a
        global one. finite: tensors of which every value must be, else NotFinite. late: tensors that nothing but a
        native optimizer's update changes until this is called again, or `wait`: that update copies them, at less cost,
        and the next `poll` starts the background.
        """
        begun = time.perf_counter()
        self._finish()
        self._require_writable()
        step = request.whole(step, "step", 0, 10**18 - 1, "number")
        request.tensors(tensors, step)
        request.names(tensors, layout=layout or {}, finite=finite, late=late)
        metric, places = request.metric(metric, step), request.layout(layout, tensors)
        copied = request.state(state, step)
        try:
            self._committer.open()
            nbytes = sum(array.nbytes for array in tensors.values())
            free = self._files.free_bytes(self.folder)
        except OSError as error:
            raise CheckpointError(f"{self._catalog.path(step)}: {_describe(error)}") from None
        if free < nbytes + _SPARE:
            raise CheckpointError(
                f"{self.folder}: {free / 1e6:.0f} MB are free, step {step} may take {(nbytes + _SPARE) / 1e6:.0f} MB; "
                "make room; the checkpoints before are whole"
            )
        try:
            taken = views(tensors) if wait else self._snapshot.take(tensors, late)
        except (OSError, MemoryError):
            raise CheckpointError(
                f"{self._catalog.path(step)}: no memory for a copy of {nbytes / 1e6:.0f} MB; save with wait=True"
            ) from None
        job = Job(step, taken, copied, metric, places, frozenset(finite))
        self._job = job
        self._begin()
        job.blocked = time.perf_counter() - begun
        if wait:
            self._finish()

    @_alone
    def poll(self) -> list[Saved]:
        """The commits since the last call; does not wait."""
        self._begin()
        if self._thread is not None and not self._thread.is_alive():
            self._finish()
        elif self._thread is not None and time.monotonic() - self._begun > _PATIENCE:
            self._aside.hurry()
        saved, self._saved = self._saved, []
        return saved

    @_alone
    def wait(self) -> list[Saved]:
        """The commits since the last call, that of a running save with them."""
        self._finish()
        return self.poll()

    def steps(self) -> list[int]:
        """The steps that have a commit, ascending; whether they are damaged is not looked at."""
        return self._catalog.steps()

    def manifest(self, step: int) -> Manifest:
        """What the manifest of a step says."""
        return self._catalog.read(step)

    def load(
        self,
        step: int | None = None,
        names: Collection[str] | Callable[[str], bool] | None = None,
        into: Mapping[str, np.ndarray] | None = None,
        rank: int | None = None,
    ) -> Checkpoint | None:
        """The commit of a step; or the newest that is whole, and None where there is no commit at all.

        Every chunk of the tensors that are wanted is checked: all, or those of `names`, or those of `into`, which are
        then read into its arrays. Where a rank has no tensor of its own by a name it gets another's. Damage is an
        error that names the newest good commit; `into` then holds anything.
        """
        rank = self._rank if rank is None else rank
        if isinstance(names, str):
            raise CheckpointError(f"names is {names[:80]!r}, expected a collection of names")
        if step is None:
            return load_newest(self._catalog, self._files, names, into, rank, self.identity)
        step = request.whole(step, "step", 0, 10**18 - 1, "number")
        return load_step(self._catalog, self._files, step, names, into, rank, self.identity)

    def verify(self, step: int | None = None) -> list[Problem]:
        """Read every byte of a commit, or of all; returns what is wrong."""
        return verify(self._catalog, self._files, step)

    def kept(self) -> dict[int, str]:
        """The steps that the rules keep, and why."""
        return self._catalog.kept(*self._rules)

    def going(self) -> list[int]:
        """The steps that `prune` would remove. What stays is verified, as far as to find a good one among it."""
        known, _ = self._catalog.survey()
        stay = self.kept()
        going = [step for step in sorted(known) if step not in stay]
        if not going:
            return []
        problems = []
        for step in sorted(stay, reverse=True):
            found = self.verify(step)
            if not found:
                return going
            problems.append(found[0])
        for step in reversed(going):
            if not self.verify(step):
                for problem in problems:
                    log.warning("%s; step %d stays, the newest good checkpoint", problem.message, step)
                return [other for other in going if other != step]
        return []  # none is good: who may mend something needs all of it

    @_alone
    def prune(self) -> list[int]:
        """Remove the commits that the rules do not keep, but never the newest good one; returns their steps."""

        def remove() -> list[int]:
            going = self.going() if self._rank == 0 else []
            self._committer.remove(going)
            return going

        return self._changing(remove)

    @_alone
    def forget_after(self, step: int) -> list[int]:
        """Remove the commits of later steps, damaged or not: a run that goes on from `step` makes them anew."""

        def forget() -> list[int]:
            later = [found for found in self.steps() if found > step] if self._rank == 0 else []
            self._committer.remove(later)
            return later

        return self._changing(forget)

    @_alone
    def reclaim(self) -> int:
        """Remove what belongs to no commit; returns its bytes."""
        return self._changing(self._committer.reclaim)

    def close(self) -> None:
        """Wait for a running save and let others write; in a process that was forked, only let go."""
        if os.getpid() != self._process:
            return
        with self._guard:
            try:
                self._finish()
            finally:
                self._committer.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_writable(self) -> None:
        if not self._write:
            raise CheckpointError(f"{self.folder}: was opened to read; open it with write=True")

    def _changing(self, change: Callable[[], _Result]) -> _Result:
        self._require_writable()
        self._finish()
        try:
            self._committer.open()
            return change()
        except OSError as error:
            path = error.filename or self.folder
            raise CheckpointError(f"{path}: cannot be changed ({error.strerror or error})") from None

    def _begin(self) -> None:
        """Start the background of a save as soon as its tensors are copied."""
        if self._job is not None and not self._snapshot.waits():
            job, self._job = self._job, None
            self._aside.prepare()
            self._begun = time.monotonic()
            thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise CheckpointError(f"{self._catalog.path(job.step)}: not saved ({error})") from None
            self._thread = thread

    def _finish(self) -> None:
        """Wait for the running save; its error is raised once."""
        self._snapshot.finish()
        self._begin()
        if self._thread is not None:
            self._aside.hurry()
            self._thread.join()
            self._thread = None
            if self._result is not None:
                self._saved.append(self._result)
                self._result = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Job) -> None:
        self._aside.enter()
        try:
            self._result = self._committer.commit(job)  # handed over when this thread has ended
        except OSError as error:
            self._error = CheckpointError(f"{self._catalog.path(job.step)}: {_describe(error)}")
        except BaseException as error:  # noqa: BLE001 - raised by the next call
            self._error = error
        finally:
            self._aside.leave()


def _describe(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"no space left on the disk ({error.strerror}); the checkpoints before it are whole: "
            "make room and resume the run"
        )
    return f"cannot be written ({error.strerror or error}); the checkpoints before it are whole"
