"""One preparation at a time in a folder, and only of what it was begun with."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import manifest as m
from mindspeed_ms.data.files import disk_errors, write_atomic
from mindspeed_ms.errors import DataError

WORK = ".work"
_OURS = re.compile(r"\A(manifest\.json|tokenizer\.json|bucket-\d{5,}|\.work|\..*\.partial)\Z")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Make the folder and hold its lock, which ends with the process. Raises DataError when another one holds it."""
    with disk_errors(out):
        if out.exists() and not out.is_dir():
            raise DataError(f"{out}: is a file; give the path of a folder for the set")
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"{out}: another process prepares a set here; wait for it or choose another folder"
            ) from None
        yield
    finally:
        os.close(handle)


def corpus_hash(sources: Sequence[tuple[str, int]]) -> str:
    """SHA-256 of the names and sizes of the input files."""
    return hashlib.sha256(json.dumps(list(sources)).encode()).hexdigest()


def finished(out: Path, corpus: str, tokenizer: str, config: PrepareConfig) -> m.Manifest | None:
    """The manifest of a set that is already there. Raises DataError when it is another one."""
    if not (out / m.NAME).exists():
        return None
    found = m.read_manifest(out)
    for what, there, wanted in (
        ("corpus", found.corpus, corpus),
        ("tokenizer", found.tokenizer.file.sha256, tokenizer),
        ("configuration", found.config, config),
    ):
        if there != wanted:
            raise DataError(
                f"{out}: holds a set of another {what}; choose another folder, or --restart to prepare it anew"
            )
    return found


def begin(out: Path, corpus: str, tokenizer: str, config: PrepareConfig) -> Path:
    """The work folder, new or of an earlier run that was asked for the same. Raises DataError for anything else."""
    strange = sorted(entry.name for entry in out.iterdir() if not _OURS.match(entry.name))
    if strange:
        raise DataError(f"{out}: holds {strange[0]!r}, which is not of a set; choose an empty or new folder")
    work = out / WORK
    job = {"version": m.VERSION, "corpus": corpus, "tokenizer": tokenizer, "config": config.model_dump(mode="json")}
    path = work / "job.json"
    if path.exists():
        other = [name for name, value in json.loads(path.read_text()).items() if job.get(name) != value]
        if other:
            raise DataError(
                f"{out}: holds half a set that was begun with another {other[0]}; finish that one, choose another "
                "folder, or --restart to throw it away"
            )
        return work
    if any(entry.name.startswith("bucket-") for entry in out.iterdir()):
        raise DataError(f"{out}: holds buckets without a manifest; choose another folder, or --restart to remove them")
    with disk_errors(out):
        work.mkdir(exist_ok=True)
    write_atomic(path, json.dumps(job).encode())
    return work


def clear(out: Path) -> None:
    """Remove a set or half of one; its manifest first, so that no reader takes the rest for a set."""
    with disk_errors(out):
        (out / m.NAME).unlink(missing_ok=True)
        for entry in out.iterdir():
            if _OURS.match(entry.name):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def tidy(out: Path) -> None:
    """Remove what a finished preparation no longer needs."""
    with disk_errors(out):
        for partial in out.glob(".*.partial"):
            partial.unlink()
        if (out / WORK).exists():
            shutil.rmtree(out / WORK)
