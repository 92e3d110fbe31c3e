"""Full checkpoints, a folder each: tensors.safetensors, and state.json that holds the SHA-256 of both.

    step-00001000/
        tensors.safetensors   every tensor, as the safetensors format has it
        state.json            format, version, step, tensors: {bytes, sha256}, sha256 (of state, keys sorted), state

A folder is written under another name, synced and renamed: by its own name it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.store import Checkpoint, Saved
from mindspeed_ms.checkpoint.tensors import TensorFile, write_tensors
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.log import get_logger
from mindspeed_ms.paths import open_regular, partial_path, read_regular, remove_abandoned

_FORMAT, _VERSION = "mindspeed-ms-checkpoint", 1
_TENSORS, _STATE = "tensors.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8,})")
_MOST_STATE = 64 << 20
_PIECE = 4 << 20
_SPARE = 1 << 20  # bytes beside the tensors

log = get_logger(__name__)


class PlainStore:
    """Checkpoints in `folder`, of which the newest `keep` stay; 0 keeps all of them. Raises CheckpointError."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 0:
            raise CheckpointError(f"keep is {keep}, expected a number of checkpoints, or 0 for all of them")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> Saved:
        final = self.folder / f"step-{step:08d}"
        temporary = partial_path(final)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            self._require_space(sum(array.nbytes for array in tensors.values()) + _SPARE)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            size = _write(temporary, step, tensors, state)
            self._commit(temporary, final)
        except OSError as error:
            raise CheckpointError(f"{final}: {_describe(error)}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(step)
        return Saved(step, str(final), size, size)

    def steps(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be read ({error.strerror})") from None
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def load(self, step: int | None = None) -> Checkpoint | None:
        if step is not None:
            return self._read(step)
        steps = self.steps()
        problem: CheckpointError | None = None
        for newest in reversed(steps):
            try:
                found = self._read(newest)
            except CheckpointError as error:
                log.warning("%s; taking the checkpoint before it", error)
                problem = problem or error
            else:
                return found
        if problem is not None:
            raise CheckpointError(f"{self.folder}: none of {len(steps)} checkpoints is whole; the newest: {problem}")
        return None

    def _read(self, step: int) -> Checkpoint:
        folder = self.folder / f"step-{step:08d}"
        values = _read_state(folder / _STATE)
        path = folder / _TENSORS
        entry = values["tensors"]
        try:
            size, digest = _digest(path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); the checkpoint is damaged") from None
        if (size, digest) != (entry.get("bytes"), entry.get("sha256")):
            raise CheckpointError(f"{path}: {size} bytes that are not those that were saved; the checkpoint is damaged")
        if values["step"] != step:
            found = values["step"]
            raise CheckpointError(f"{folder / _STATE}: step is {found}, its folder says {step}; rename it back")
        return Checkpoint(step, TensorFile(path), values["state"])

    def _commit(self, temporary: Path, final: Path) -> None:
        """Rename into place; what was there by this name, and is not to be mixed with it, goes."""
        if final.exists():
            old = partial_path(final.with_name(final.name + "-old"))
            os.rename(final, old)
            os.rename(temporary, final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, final)
        _sync(self.folder)

    def _prune(self, newest: int) -> None:
        """Remove all but the newest that are kept, up to the step that was saved: a later one may be damaged."""
        steps = [step for step in self.steps() if step <= newest]
        for step in steps[: -self.keep] if self.keep else []:
            path = self.folder / f"step-{step:08d}"
            going = partial_path(path)
            # Renamed first: a folder with a step's name never lacks a file.
            with contextlib.suppress(OSError):
                os.rename(path, going)
            shutil.rmtree(going, ignore_errors=True)

    def _tidy(self) -> None:
        """Remove what killed processes left: of checkpoints that never came to be, and of pruned ones."""
        for path in self.folder.glob(".step-*.partial"):
            remove_abandoned(path.with_name(path.name.removeprefix(".").rsplit(".", 2)[0]))

    def _require_space(self, nbytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < nbytes:
            raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free of {nbytes / 1e6:.0f} MB that it takes")


def _write(folder: Path, step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> int:
    """Both files, synced; returns their bytes."""
    size, digest = write_tensors(folder / _TENSORS, tensors)
    values = {
        "format": _FORMAT,
        "version": _VERSION,
        "step": step,
        "tensors": {"bytes": size, "sha256": digest},
        "sha256": _state_digest(state),
        "state": state,
    }
    data = json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"
    with open(folder / _STATE, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)
    return size + len(data)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(path, _MOST_STATE))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); the checkpoint is damaged") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is not JSON; the checkpoint is damaged") from None
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise CheckpointError(f"{path}: is not the state of a checkpoint; the checkpoint is damaged")
    if values.get("version") != _VERSION:
        raise CheckpointError(
            f"{path}: version is {values.get('version')!r}, this program reads {_VERSION}; "
            "use the version of mindspeed-ms that wrote it"
        )
    state, tensors = values.get("state"), values.get("tensors")
    try:
        whole = values["sha256"] == _state_digest(state) and isinstance(values["step"], int)
    except (KeyError, ValueError, RecursionError):
        whole = False
    if not whole or not isinstance(state, dict) or not isinstance(tensors, dict):
        raise CheckpointError(f"{path}: its state is not the one that was saved; the checkpoint is damaged")
    return values


def _state_digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _digest(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _describe(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"no space left on the disk ({error.strerror}); the checkpoints before it are whole: "
            "make room and resume the run"
        )
    return f"cannot be written ({error.strerror or error}); the checkpoints before it are whole"
