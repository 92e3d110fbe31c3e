"""A save from end to end, in its background thread: this rank's part, the others', the commit, what goes then."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from mindspeed_ms.checkpoint.catalog import Catalog
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.lock import Lock
from mindspeed_ms.checkpoint.manifest import Manifest
from mindspeed_ms.checkpoint.priority import Aside
from mindspeed_ms.checkpoint.ranks import Ranks
from mindspeed_ms.checkpoint.records import Saved
from mindspeed_ms.checkpoint.writer import Job, Part, Writer
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger

log = get_logger(__name__)


class Committer:
    """Makes and removes the commits of a store. Raises CheckpointError, OSError."""

    def __init__(
        self,
        catalog: Catalog,
        files: Files,
        *,
        rules: tuple[int, int | None, int],
        rank: int,
        world: int,
        identity: dict[str, str],
        timeout: float,
        chunk_bytes: int,
        aside: Aside,
    ) -> None:
        """rules: the newest that stay, of which steps all, how many of the best."""
        self._catalog, self._files = catalog, files
        self._rules, self._identity, self._chunk_bytes = rules, identity, chunk_bytes
        self._rank, self._world = rank, world
        self._ranks = Ranks(catalog.folder, files, rank, world, timeout, chunk_bytes)
        self._writer = Writer(catalog.folder, files, rank, chunk_bytes, aside)
        self._lock: Lock | None = None
        self._open = False

    def open(self) -> None:
        """Before the first change: rank 0 takes the lock, and each removes what it left when it was killed."""
        if self._open:
            return
        folder: Path = self._catalog.folder
        self._files.make_folder(folder)
        if self._rank == 0:
            self._lock = self._lock or Lock(folder, self._files)  # held already where what follows failed before
            self._catalog.trust(True)
            if self._world > 1:
                self._ranks.begin()
        self._open = True
        freed = self.reclaim()
        if freed:
            log.info("%s: reclaimed %.1f MB of a save that did not end", folder, freed / 1e6)

    def close(self) -> None:
        if self._lock is not None:
            self._catalog.trust(False)
            self._lock.close()
            self._lock = None
        self._open = False

    def reclaim(self) -> int:
        """Remove this rank's files that belong to no commit; returns their bytes."""
        return self._catalog.sweep(self._rank, self._world, self._ranks.claimed() if self._rank else set())

    def commit(self, job: Job) -> Saved:
        begun = time.perf_counter()
        prior = self._catalog.before(job.step)
        if prior is not None:
            prior.require_identity(self._identity, str(self._catalog.path(prior.step)))
        if self._rank == 0 and self._world > 1:
            self._ranks.clear(job.step)
        try:
            part = self._writer.write(job, prior)
            if self._rank:
                self._ranks.follow(job.step, part, job.state, lambda: self._has(job, part))
                manifest_bytes = 0
            else:
                try:
                    manifest_bytes = self._gather(job, part, prior)
                except BaseException:
                    with contextlib.suppress(OSError, CheckpointError):  # a commit that came to be keeps its file
                        self._catalog.discard(set(part.files) - set(prior.files if prior is not None else ()))
                    raise
        except BaseException as error:
            if self._world > 1:
                self._ranks.fail(job.step, str(error))
            raise
        path = str(self._catalog.path(job.step))
        raw_bytes = sum(taken.data.size for taken in job.tensors)
        seconds = time.perf_counter() - begun
        return Saved(job.step, path, manifest_bytes + part.bytes, raw_bytes, seconds, job.blocked, part.base)

    def prune(self, newest: int) -> None:
        """Remove the commits, of those up to `newest`, which was written just now, that the rules do not keep."""
        if self._rank:
            return
        known, _ = self._catalog.survey()
        stay = self._catalog.kept(*self._rules, newest)
        self.remove([step for step in sorted(known) if step not in stay and step <= newest])

    def remove(self, steps: list[int]) -> None:
        """Remove commits; rank 0 only. First the manifests, durably, then the files that none of the others needs."""
        known, _ = self._catalog.survey()
        files = {name for step in steps if step in known for name in known[step].files}
        self._catalog.remove(steps)
        self._catalog.discard(files)

    def _gather(self, job: Job, part: Part, prior: Manifest | None) -> int:
        """Rank 0: commit its part with those of the others; returns the manifest's bytes."""
        entries, files = list(part.entries), dict(part.files)
        states: dict[int, dict[str, Any]] = {}
        for rank, (other, state) in sorted(self._ranks.gather(job.step).items()):
            if not self._catalog.looks_whole(other.files):
                raise CheckpointError(f"{self._catalog.folder}: step {job.step}: files of rank {rank} are not there")
            entries += other.entries
            files |= other.files
            states[rank] = state
        is_base = part.base or prior is None
        manifest = Manifest(
            step=job.step,
            time=time.time(),
            previous=None if prior is None else (prior.step, prior.digest),
            base=job.step if prior is None or is_base else prior.base,
            since_base=0 if prior is None or is_base else prior.since_base + 1,
            world=self._world,
            metric=job.metric,
            identity=self._identity,
            state=job.state,
            rank_states=states,
            files=files,
            tensors=tuple(entries),
            chunk_bytes=self._chunk_bytes,
        )
        known, _ = self._catalog.survey()
        replaced = set(known[job.step].files) if job.step in known else set()
        size = self._catalog.commit(manifest)
        try:
            self._ranks.clear(job.step)
            self._catalog.discard(replaced)
            self.prune(job.step)
        except (OSError, CheckpointError) as error:
            log.warning("%s: old checkpoints cannot be removed (%s)", self._catalog.folder, error)
        return size

    def _has(self, job: Job, part: Part) -> bool:
        """Whether the commit is there, with this rank's part in it."""
        try:
            found = self._catalog.read(job.step)
        except CheckpointError:
            return False
        mine = tuple(entry for entry in found.tensors if entry.rank == self._rank)
        return mine == part.entries and found.rank_states.get(self._rank) == job.state
