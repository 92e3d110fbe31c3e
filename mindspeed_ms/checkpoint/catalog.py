"""The commits of a folder: their manifests, committed by rename, and their removal."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.keep import dead, kept, step_of_bin, steps_of
from mindspeed_ms.checkpoint.manifest import MOST_BYTES, Manifest, dump, manifest_name
from mindspeed_ms.checkpoint.parse import parse
from mindspeed_ms.checkpoint.records import no_read
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger
from mindspeed_ms.paths import partial_path

log = get_logger(__name__)


@dataclass(frozen=True)
class _Known:
    """What is remembered of a manifest: it does not change by its name while this process holds the lock."""

    digest: str
    metric: float | None
    files: dict[str, int]


class Catalog:
    """Reads, commits and removes the manifests of a folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder, self._files = folder, files
        self._known: dict[int, _Known] = {}
        self._alone = False

    def trust(self, alone: bool) -> None:
        """Whether from here on nobody else changes manifests; what was remembered before may be of others."""
        self._known.clear()
        self._alone = alone

    def names(self) -> list[str]:
        try:
            return self._files.names(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be read ({error.strerror})") from None

    def steps(self) -> list[int]:
        return steps_of(self.names())

    def path(self, step: int) -> Path:
        return self.folder / manifest_name(step)

    def read(self, step: int) -> Manifest:
        """The manifest of a step. Raises CheckpointError."""
        path = self.path(step)
        try:
            data = self._files.read_all(path, MOST_BYTES)
        except FileNotFoundError:
            steps = ", ".join(map(str, self.steps()[-10:])) or "none"
            raise CheckpointError(f"{path}: there is no such checkpoint; the newest steps are: {steps}") from None
        except OSError as error:
            raise no_read(path, error) from None
        return parse(data, str(path), step)

    def before(self, step: int) -> Manifest | None:
        """The newest manifest before a step that can be read."""
        for found in reversed(self.steps()):
            if found < step:
                try:
                    return self.read(found)
                except CheckpointError as error:
                    log.warning("%s; it is no ground for step %d", error, step)
        return None

    def commit(self, manifest: Manifest) -> int:
        """Put a manifest in place, durably; returns its bytes. Raises OSError, CheckpointError."""
        data, digest = dump(manifest)
        path = self.path(manifest.step)
        parse(data, str(path), manifest.step)  # what a reader would refuse does not take the place of what it can read
        temporary = partial_path(path)
        self._known.pop(manifest.step, None)  # another from here on, if this fails perhaps
        try:
            self._files.replace(path, temporary, data)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise
        self._files.fsync_folder(self.folder)
        self._known[manifest.step] = _Known(digest, manifest.metric, manifest.files)
        return len(data)

    def survey(self) -> tuple[dict[int, _Known], dict[int, str]]:
        """What is known of each readable manifest, and what is wrong with the others, by step."""
        if not self._alone:
            self._known.clear()
        known: dict[int, _Known] = {}
        unreadable: dict[int, str] = {}
        for step in self.steps():
            if step not in self._known:
                try:
                    found = self.read(step)
                except CheckpointError as error:
                    unreadable[step] = str(error)
                    continue
                self._known[step] = _Known(found.digest, found.metric, found.files)
            known[step] = self._known[step]
        return known, unreadable

    def looks_whole(self, files: dict[str, int]) -> bool:
        """Whether the files are there with their sizes."""
        try:
            return all(self._files.file_size(self.folder / name) == size for name, size in files.items())
        except OSError:
            return False

    def kept(self, keep: int, keep_every: int | None, keep_best: int, newest: int | None = None) -> dict[int, str]:
        """The steps that stay, of those up to `newest`, and why; one at least that looks whole."""
        known, _ = self.survey()
        known = {step: value for step, value in known.items() if newest is None or step <= newest}
        why = kept({step: value.metric for step, value in known.items()}, keep, keep_every, keep_best)
        if not any(self.looks_whole(known[step].files) for step in why):
            for step in sorted(known, reverse=True):
                if step not in why and self.looks_whole(known[step].files):
                    why[step] = "whole"
                    break
        return why

    def remove(self, steps: list[int]) -> None:
        """Remove manifests, durably, the oldest first. Their files stay for `sweep`."""
        for step in sorted(steps):
            self._files.unlink(self.path(step))
            self._known.pop(step, None)
        if steps:
            self._files.fsync_folder(self.folder)

    def discard(self, names: set[str]) -> None:
        """Remove those of these files that no commit needs."""
        if not names:
            return
        known, unreadable = self.survey()
        limit = max(unreadable, default=-1)
        needed = {name for value in known.values() for name in value.files}
        self._unlink([name for name in sorted(names - needed) if step_of_bin(name) > limit])

    def sweep(self, rank: int, world: int, claimed: set[str]) -> int:
        """Remove a rank's files that no commit needs, but those that are claimed; returns their bytes."""
        known, unreadable = self.survey()
        if unreadable:
            newest = max(unreadable)
            log.warning("%s; files of steps to %d stay", unreadable[newest], newest)
        needed = {name for value in known.values() for name in value.files}
        return self._unlink(dead(self.names(), needed | claimed, unreadable, rank, world))

    def _unlink(self, names: list[str]) -> int:
        freed = 0
        for name in names:
            try:
                size = self._files.file_size(self.folder / name)
                self._files.unlink(self.folder / name)
            except OSError as error:
                log.warning("%s: cannot be removed (%s)", self.folder / name, error.strerror)
            else:
                freed += size
        return freed
