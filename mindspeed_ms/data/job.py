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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import xxhash

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import manifest as m
from mindspeed_ms.data.files import disk_errors, feed, write_atomic
from mindspeed_ms.data.sources import SourceFile
from mindspeed_ms.errors import DataError
from mindspeed_ms.paths import read_regular

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
        except OSError as error:
            raise DataError(f"{out}: cannot be locked ({error.strerror}); choose a folder on a local disk") from None
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Input:
    """An input file as a job knows it: what it holds counts, not where or how old it is."""

    name: str
    size: int
    mtime_ns: int
    digest: str  # xxh3-128 of its content


def look_at(out: Path, sources: Sequence[SourceFile]) -> list[Input]:
    """Read all input files once for their digests, but for those that an earlier run in `out` has read and that have
    kept size and time since. Raises DataError."""
    old = _read_job(out / WORK / "job.json") or {}
    try:
        known = {(name, size, mtime): digest for name, size, mtime, digest in old.get("sources", [])}
    except (TypeError, ValueError):  # nobody's job: it is refused later on
        known = {}

    def digest(source: SourceFile) -> str:
        return known.get((source.name, source.size, source.mtime_ns)) or _digest(source)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(digest, sources)
        return [Input(s.name, s.size, s.mtime_ns, found) for s, found in zip(sources, digests, strict=True)]


def _digest(source: SourceFile) -> str:
    digest = xxhash.xxh3_128()
    for path in [source.path, *([source.path.with_suffix(".idx")] if source.kind == "megatron" else [])]:
        try:
            feed(digest, path)
        except OSError as error:
            raise DataError(f"{source.original}: cannot be read ({error.strerror or error})") from None
    return digest.hexdigest()


def corpus_hash(inputs: Sequence[Input]) -> str:
    """SHA-256 over the names and contents of the input files."""
    return hashlib.sha256(json.dumps([(item.name, item.digest) for item in inputs]).encode()).hexdigest()


def finished(out: Path, corpus: str, tokenizer: str, config: PrepareConfig) -> m.Manifest | None:
    """The manifest of a set that is already there. Raises DataError when it is another one."""
    if not (out / m.NAME).exists():
        return None
    found = m.read_manifest(out)
    for what, there, wanted in (
        ("corpus", found.corpus, corpus),
        ("tokenizer or chat template", found.tokenizer.identity, tokenizer),
        ("configuration", found.config, config),
    ):
        if there != wanted:
            raise DataError(
                f"{out}: holds a set of another {what}; choose another folder, or --restart to prepare it anew"
            )
    return found


def check_ours(out: Path) -> None:
    """Raises DataError when a folder holds something that is not of a set."""
    begun = any(entry.name in (m.NAME, WORK) or entry.name.startswith("bucket-") for entry in out.iterdir())
    for entry in sorted(out.iterdir()):
        if not _OURS.match(entry.name) or (entry.name == "tokenizer.json" and not begun):
            raise DataError(f"{out}: holds {entry.name!r}, which is not of a set; choose an empty or new folder")


def begin(out: Path, inputs: Sequence[Input], tokenizer: str, config: PrepareConfig) -> Path:
    """The work folder, new or of an earlier run; tokenizer: its identity.

    What an earlier run has done is kept if it was asked for the same, but for files that it had not come to and for
    `skip_damaged`; where it has finished no segment there is nothing to keep. Raises DataError for anything else.
    """
    check_ours(out)
    work = out / WORK
    job = {
        "version": m.VERSION,
        "sources": [list(astuple(item)) for item in inputs],
        "tokenizer": tokenizer,
        "config": config.model_dump(mode="json"),
    }
    path = work / "job.json"
    old = _read_job(path)
    if old is None:
        if any(entry.name.startswith("bucket-") for entry in out.iterdir()):
            raise DataError(f"{out}: holds buckets without a manifest; choose another folder, or --restart")
        _remove(work)  # whatever is in it is of no known job
    elif old != job:
        if not (work / "segments" / f"{0:05d}").exists():
            clear(out)
        elif other := _safe_difference(old, job, work):
            raise DataError(
                f"{out}: holds half a set that was begun with another {other}; give that again, choose another folder, "
                "or --restart to throw it away"
            )
    if old != job:
        with disk_errors(out):
            work.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(job).encode())
    return work


def _read_job(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(read_regular(path, m.MAX_BYTES))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}  # of no use, and of no job


def _safe_difference(old: dict[str, Any], job: dict[str, Any], work: Path) -> str | None:
    try:
        return _difference(old, job, work)
    except (LookupError, TypeError, ValueError, AttributeError):
        return "version of this program"  # or somebody's hand


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
        if there is None or here is None or (there[0], there[3]) != (here[0], here[3]):
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
    """Remove a set or half of one; its manifest first, so that no reader takes the rest for a set, then its job."""
    check_ours(out)
    with disk_errors(out):
        (out / m.NAME).unlink(missing_ok=True)
        (out / "tokenizer.json").unlink(missing_ok=True)
        _remove(out / WORK)
        for entry in out.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def tidy(out: Path) -> None:
    """Remove what a finished preparation no longer needs."""
    with disk_errors(out):
        _remove(out / WORK)
        for partial in out.glob(".*.partial"):
            shutil.rmtree(partial) if partial.is_dir() else partial.unlink()


def _remove(work: Path) -> None:
    """A work folder goes at once, and its job with it: half of one would be taken for another job's."""
    if work.exists():
        gone = work.with_name(f"{WORK}-{os.getpid()}.partial")
        os.rename(work, gone)
        shutil.rmtree(gone)
