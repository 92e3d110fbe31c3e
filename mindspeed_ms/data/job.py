"""One preparation at a time in a folder, and only of what it was begun with."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def begin(out: Path, sources: Sequence[tuple[str, int]], tokenizer: str, config: PrepareConfig) -> Path:
    """The work folder, new or of an earlier run; sources: name and size of each input file.

    What an earlier run has done is kept if it was asked for the same, but for files that it had not come to and for
    `skip_damaged`; where it has finished no segment there is nothing to keep. Raises DataError for anything else.
    """
    strange = sorted(entry.name for entry in out.iterdir() if not _OURS.match(entry.name))
    if strange:
        raise DataError(f"{out}: holds {strange[0]!r}, which is not of a set; choose an empty or new folder")
    work = out / WORK
    job = {
        "version": m.VERSION,
        "sources": [list(source) for source in sources],
        "tokenizer": tokenizer,
        "config": config.model_dump(mode="json"),
    }
    path = work / "job.json"
    old = _read_job(path)
    if old is not None and old != job:
        if not (work / "segments" / f"{0:05d}").exists():
            clear(out)
        elif other := _difference(old, job, work):
            raise DataError(
                f"{out}: holds half a set that was begun with another {other}; give that again, choose another folder, "
                "or --restart to throw it away"
            )
    elif old is None and any(entry.name.startswith("bucket-") for entry in out.iterdir()):
        raise DataError(f"{out}: holds buckets without a manifest; choose another folder, or --restart to remove them")
    if old != job:
        with disk_errors(out):
            work.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(job).encode())
    return work


def _read_job(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return None
    except ValueError:
        return {}  # of no use, and of no job


def _difference(old: dict[str, Any], job: dict[str, Any], work: Path) -> str | None:
    """What keeps the segments of the old job from being a part of the new one."""
    for key in ("version", "tokenizer"):
        if old.get(key) != job[key]:
            return {"version": "version of the format"}.get(key, key)
    tokenized = (work / "tokenized").exists()
    before, now = _flat(old.get("config", {})), _flat(job["config"])
    if not tokenized:
        before.pop("read.skip_damaged", None), now.pop("read.skip_damaged")
    for key in now:
        if before.get(key) != now[key]:
            return f"{key}, {before.get(key)!r}: now it is {now[key]!r}"
    last = max((work / "segments").glob("[0-9]*[0-9]/segment.json"))
    read = len(old["sources"]) if tokenized else json.loads(last.read_bytes())["source"] + 1
    for there, here in itertools.zip_longest(old["sources"][:read], job["sources"][:read]):
        if there != here:
            return f"file {(there or here)[0]}"
    return "number of files" if tokenized and len(old["sources"]) != len(job["sources"]) else None


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Keys as a person writes them: section.key."""
    return {
        f"{name}.{key}" if isinstance(value, dict) else name: inner
        for name, value in config.items()
        for key, inner in (value.items() if isinstance(value, dict) else [(name, value)])
    }


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
