"""Which commit a reader gets: the one it names, or the newest that is whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import numpy as np

from mindspeed_ms.checkpoint.catalog import Catalog
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.manifest import Entry, Manifest
from mindspeed_ms.checkpoint.reader import ChunkReader, Tensors, check_entries, read_entries
from mindspeed_ms.checkpoint.records import Checkpoint, OtherCheckpoint, Unreadable
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger

log = get_logger(__name__)

Names = Collection[str] | Callable[[str], bool] | None


def load_step(
    catalog: Catalog,
    files: Files,
    step: int,
    names: Names,
    into: Mapping[str, np.ndarray] | None,
    rank: int,
    identity: Mapping[str, str],
) -> Checkpoint:
    """The commit of a step. Raises CheckpointError, which names the newest good commit."""
    try:
        return _load(catalog, files, step, names, into, rank, identity)
    except (OtherCheckpoint, Unreadable):
        raise
    except CheckpointError as error:
        if "is missing" in str(error):  # a save of the same step may have taken its place, and its files
            with contextlib.suppress(CheckpointError):
                return _load(catalog, files, step, names, into, rank, identity)
            catalog.read(step)  # or it was removed, which this tells
        good = newest_good(catalog, files, exclude={step}) if "damaged" in str(error) else None
        if good is None:
            raise
        raise CheckpointError(f"{error}; the newest good checkpoint is that of step {good}") from None


def load_newest(
    catalog: Catalog,
    files: Files,
    names: Names,
    into: Mapping[str, np.ndarray] | None,
    rank: int,
    identity: Mapping[str, str],
) -> Checkpoint | None:
    """The newest whole commit. Raises CheckpointError where there are commits and none is whole.

    A writer may add commits and remove others meanwhile: where one has gone, those that have come since are before it.
    """
    problems: dict[int, CheckpointError] = {}
    steps = left = catalog.steps()
    while left:
        step = left[-1]
        try:
            found = _load(catalog, files, step, names, into, rank, identity)
        except (OtherCheckpoint, Unreadable):
            if step in catalog.steps():
                raise
        except CheckpointError as error:
            again = step not in problems and "is missing" in str(error)  # saved again meanwhile, perhaps
            problems[step] = error
            if again:
                continue
        else:
            for bad in sorted(problems, reverse=True):
                if bad > step:
                    log.warning(
                        "%s; the newest good checkpoint is that of step %d, which is taken", problems[bad], step
                    )
            return found
        now = catalog.steps()
        if step not in now:
            problems.pop(step, None)
        steps, new = now, [other for other in now if other > max(steps, default=-1)]
        left = [other for other in now if other < step] + new
    if problems:
        worst = problems[max(problems)]
        raise CheckpointError(f"{catalog.folder}: none of {len(problems)} checkpoints is whole; the newest: {worst}")
    return None


def newest_good(catalog: Catalog, files: Files, exclude: Collection[int] = ()) -> int | None:
    """The newest step of which every byte is as it was saved."""
    for step in reversed(catalog.steps()):
        if step not in exclude:
            try:
                _load(catalog, files, step, None, None, 0, {}, every_rank=True)
            except CheckpointError:
                continue
            return step
    return None


def _load(
    catalog: Catalog,
    files: Files,
    step: int,
    names: Names,
    into: Mapping[str, np.ndarray] | None,
    rank: int,
    identity: Mapping[str, str],
    *,
    every_rank: bool = False,
) -> Checkpoint:
    manifest = catalog.read(step)
    path = str(catalog.path(step))
    manifest.require_identity(identity, path)
    entries = _wanted(manifest, names if into is None else list(into), rank, path)
    reader = ChunkReader(catalog.folder, files)
    for name, size in manifest.files.items():
        reader.require_size(name, size)
    if into is not None:
        for name, array in into.items():
            _require_fit(entries[name], array, path)
        read_entries(reader, manifest, [(entries[name], array) for name, array in into.items()])
    else:
        wrong = check_entries(reader, manifest, manifest.tensors if every_rank else entries.values(), {})
        if wrong:
            raise CheckpointError(wrong[0])
    return Checkpoint(
        step,
        dict(into) if into is not None else Tensors(reader, manifest, entries),
        manifest.rank_states.get(rank, manifest.state) if rank else manifest.state,
        manifest.identity,
        manifest.metric,
        {name: entry.layout for name, entry in entries.items() if entry.layout is not None},
    )


def _wanted(manifest: Manifest, names: Names, rank: int, path: str) -> dict[str, Entry]:
    """By name: the rank's own, else one that is whole."""
    found: dict[str, Entry] = {}
    for entry in manifest.tensors:
        if entry.rank == rank or (entry.layout is None and entry.name not in found):
            found[entry.name] = entry
    if names is None:
        return found
    if callable(names):
        return {name: entry for name, entry in found.items() if names(name)}
    for name in names:
        if name not in found:
            raise CheckpointError(f"{path}: has no tensor {name!r} for rank {rank}; it has {len(found)} others")
    return {name: found[name] for name in names}


def _require_fit(entry: Entry, array: np.ndarray, path: str) -> None:
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        raise CheckpointError(f"{path}: tensor {entry.name!r}: its place is a {kind}, expected a NumPy array")
    dtype = "uint16" if entry.dtype == "bfloat16" and array.dtype.name == "uint16" else entry.dtype
    found = (array.dtype.name if dtype != "uint16" else "uint16", array.shape)
    flags = array.flags
    if found != (dtype, entry.shape) or not (flags.c_contiguous and flags.writeable and array.dtype.isnative):
        raise CheckpointError(
            f"{path}: tensor {entry.name!r} is {entry.dtype} {list(entry.shape)}, its place {array.dtype} "
            f"{list(array.shape)}; expected the same, contiguous, writable and in this machine's order of bytes"
        )
