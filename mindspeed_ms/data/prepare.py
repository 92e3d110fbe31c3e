"""From files of text to a set of rows of fixed length: the whole of `data prepare`.

Four stages, each of which leaves complete pieces behind that a killed run goes on from: tokenize (segments), find
copies and lay out (plan), write (shards), and the manifest, last of all. What is written depends on the input files,
the tokenizer and the configuration alone; not on workers, engine, kills or time.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from mindspeed_ms import __version__
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import job
from mindspeed_ms.data.arrange import rows as rows_of
from mindspeed_ms.data.encode import Encoder
from mindspeed_ms.data.files import describe, disk_errors, write_atomic
from mindspeed_ms.data.manifest import Manifest, Shard, write_manifest
from mindspeed_ms.data.plan import Plan, load_layouts, load_plan, make_plan
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.segments import Segment, SegmentStore
from mindspeed_ms.data.sources import Damaged, SourceFile, find_sources
from mindspeed_ms.data.tokenizer import DataTokenizer, open_tokenizer
from mindspeed_ms.data.types import Position, RawChunk, TokenChunk
from mindspeed_ms.data.writer import write_shard_files
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.log import get_logger

Progress = Callable[[str, int, int | None, str], None]  # phase, done, total, unit

_log = get_logger(__name__)


class _Map(Protocol):
    def map(self, chunks: Iterator[RawChunk]) -> Iterator[TokenChunk]: ...


def prepare(
    inputs: Sequence[str | Path],
    out: str | Path,
    tokenizer: str | Path,
    config: PrepareConfig | None = None,
    *,
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    cache: Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Prepare a set in the folder `out`; the same call goes on after a kill, and does nothing where the set is there.

    inputs: files, folders and URLs, see data/sources.py. workers: processes that tokenize, all cores by default.
    engine: "local", or "ray" with the cluster at `ray_address` (None: one that is started here). cache: where remote
    inputs are kept. restart: remove what is in `out`, a set or half of one, and begin anew.
    Raises DataError, ConfigError or TokenizerError; what was done before the error is gone on from.
    """
    out, config, tell = Path(out), config or PrepareConfig(), progress or (lambda *_: None)
    opened = open_tokenizer(tokenizer)
    _check(config, opened)
    sources = find_sources([str(item) for item in inputs], config.read, cache)
    inside = [source.original for source in sources if out.resolve() in source.path.resolve().parents]
    around = [item for item in inputs if Path(item).resolve() in [out.resolve(), *out.resolve().parents]]
    if inside or around:
        raise ConfigError(f"out: {out} and the input {(inside or around)[0]} lie in one another; choose another folder")
    if sources.ignored:
        many = len(sources.ignored)
        _log.warning("%d files are of no kind that is read, such as %s; they are ignored", many, sources.ignored[0])
    names = list(dict.fromkeys(source.name for source in sources))
    files = [(source.name, source.size) for source in sources]
    corpus = job.corpus_hash(files)
    with job.locked(out):
        if restart:
            job.clear(out)
        there = job.finished(out, corpus, opened.sha256, config)
        if there is None:
            work = job.begin(out, files, opened.sha256, config)
            pool = functools.partial(make_pool, opened, config, sources, workers, engine, ray_address)
            segments = tokenize(work, sources, names, config, pool, tell)
            plan = _plan(work, segments, config, len(names), tell)
            shards = _write(out, work, segments, plan, config, opened, tell)
            there = _finish(out, plan, shards, names, corpus, config, opened)
        job.tidy(out)
        return there


def _check(config: PrepareConfig, tokenizer: DataTokenizer) -> None:
    longest = config.arrange.longest
    if tokenizer.context is not None and longest > tokenizer.context:
        name = "boundaries" if config.arrange.boundaries else "max_length"
        raise ConfigError(f"{name}: rows of {longest} tokens, the model's context is {tokenizer.context}; shorten them")
    if config.read.messages_key is not None and tokenizer.chat_template is None:
        raise ConfigError("messages_key: the tokenizer has no chat template; give the folder of a chat model")


def make_pool(
    tokenizer: DataTokenizer,
    config: PrepareConfig,
    sources: Sequence[SourceFile],
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
) -> AbstractContextManager[_Map]:
    """Processes or actors that make TokenChunks of RawChunks, in order."""
    factory = functools.partial(Encoder, tokenizer, config, [source.original for source in sources])
    count = workers or os.cpu_count() or 1
    if engine == "ray":
        from mindspeed_ms.data.ray_pool import RayPool

        return RayPool(factory, count, ray_address)
    from mindspeed_ms.data.pool import Pool

    return Pool(factory, count)


def tokenize(
    work: Path,
    sources: Sequence[SourceFile],
    names: list[str],
    config: PrepareConfig,
    pool: Callable[[], AbstractContextManager[_Map]],
    tell: Progress,
) -> list[Segment]:
    """Read, clean and tokenize what is not yet in segments in the folder `work`; returns all segments."""
    done = work / "tokenized"
    store = SegmentStore(work / "segments", config.shard_tokens)
    if done.exists():
        return store.segments
    number = {name: index for index, name in enumerate(names)}
    total = sum(source.size for source in sources)
    read = sum(segment.bytes for segment in store)
    last = store.segments[-1] if store.segments else None
    reader = _Reader(sources, config, last.source if last else 0, last.after if last else Position())
    tell("tokenize", read, total, "bytes")
    with pool() as encoders:
        for chunk in encoders.map(iter(reader)):
            store.count("damaged_files", reader.take_damaged(chunk.source))
            reading = chunk.source
            chunk.source = number[sources[reading].name]
            store.append(chunk, reading)
            read += chunk.bytes
            tell("tokenize", min(read, total), total, "bytes")
    store.count("damaged_files", reader.take_damaged(len(sources)))
    store.finish()
    write_atomic(done, b"")
    return store.segments


class _Reader:
    """All chunks of all files from a position on; damaged files end early, if that is asked for, and are counted."""

    def __init__(self, sources: Sequence[SourceFile], config: PrepareConfig, first: int, start: Position) -> None:
        self._sources, self._config = sources, config
        self._first, self._start = first, start
        self._damaged: list[int] = []

    def __iter__(self) -> Iterator[RawChunk]:
        # A character has four bytes at most, and JSON may escape each of them in six.
        limit = self._config.clean.max_chars * 12 + 65536
        for index in range(self._first, len(self._sources)):
            start = self._start if index == self._first else Position()
            try:
                yield from read_chunks(self._sources[index], index, self._config.read, limit, start)
            except Damaged as error:
                if not self._config.read.skip_damaged:
                    raise DataError(f"{error}; with skip_damaged what was read before is kept") from None
                _log.warning("%s; what was read before is kept", error)
                self._damaged.append(index)

    def take_damaged(self, before: int) -> int:
        """How many damaged files before this one were not yet counted: all of their documents are stored by then."""
        mine = [index for index in self._damaged if index < before]
        self._damaged = [index for index in self._damaged if index >= before]
        return len(mine)


def _plan(work: Path, segments: list[Segment], config: PrepareConfig, sources: int, tell: Progress) -> Plan:
    folder = work / "plan"
    found = load_plan(folder)
    if found is None:
        with disk_errors(folder):
            folder.mkdir(exist_ok=True)
        tell("arrange", 0, len(segments), "segments")
        found = make_plan(
            folder, segments, config, sources, lambda done, total: tell("arrange", done, total, "segments")
        )
    return found


def _write(
    out: Path,
    work: Path,
    segments: list[Segment],
    plan: Plan,
    config: PrepareConfig,
    tokenizer: DataTokenizer,
    tell: Progress,
) -> list[list[Shard]]:
    """The shards of each bucket."""
    shards: list[list[Shard]] = [[] for _ in plan.buckets]
    loss = config.read.messages_key is not None
    widths = [_widths(bucket.length, bucket.ends, loss) for bucket in plan.buckets]
    _check_room(out, work, plan, widths)
    most = 4 * (config.shard_tokens + (1 << 22))  # a segment's tokens; one chunk goes beyond what was asked for
    total, written = plan.rows, 0
    tell("write", 0, total, "rows")
    for segment in segments:
        laid = load_layouts(work / "plan", segment)
        note = work / "written" / f"{segment.number:05d}.json"
        known = json.loads(note.read_text()) if note.exists() else None
        new: list[Any] = []
        for i, (bucket, layout) in enumerate(zip(plan.buckets, laid, strict=True)):
            rows = len(layout.per_row)
            if known is not None:
                entry = known[i] and Shard.parse(known[i], where=str(note))
            elif rows:
                make = functools.partial(
                    rows_of,
                    layout,
                    bucket.length,
                    bucket.ends,
                    tokenizer.pad_id,
                    segment.array("tokens"),
                    segment.array("loss") if loss else None,
                )
                entry = write_shard_files(out, work / "shard", segment.number, widths[i], rows, make, most)
            else:
                entry = None
            new.append(entry and entry.model_dump(mode="json"))
            if entry:
                shards[i].append(entry)
            written += rows
            tell("write", written, total, "rows")
        if known is None:
            with disk_errors(work):
                note.parent.mkdir(exist_ok=True)
            write_atomic(note, json.dumps(new).encode())
    return shards


def _widths(length: int, ends: int, loss: bool) -> dict[str, int]:
    return {"input_ids": length, "document_ends": ends, **({"loss_mask": length} if loss else {})}


def _check_room(out: Path, work: Path, plan: Plan, widths: list[dict[str, int]]) -> None:
    """Blocks have a known size, MindRecord files are about as large at most; what is there already counts."""
    if (work / "written").exists():
        return
    needed = sum(4 * bucket.rows * sum(width.values()) for bucket, width in zip(plan.buckets, widths, strict=True))
    with disk_errors(out):
        free = shutil.disk_usage(out).free
    if free < needed:
        raise DataError(
            f"{out}: the set needs about {2 * needed >> 20} MiB, the disk has {free >> 20} MiB free; make room and run "
            "the same command again"
        )


def _finish(
    out: Path,
    plan: Plan,
    shards: list[list[Shard]],
    names: list[str],
    corpus: str,
    config: PrepareConfig,
    tokenizer: DataTokenizer,
) -> Manifest:
    write_atomic(out / "tokenizer.json", tokenizer.json)
    tokens = sum(bucket.tokens for bucket in plan.buckets)
    places = sum(bucket.rows * bucket.length for bucket in plan.buckets)
    loss = config.read.messages_key is not None
    values = {
        "made_by": f"mindspeed-ms {__version__}",
        "config": config.model_dump(mode="json"),
        "corpus": corpus,
        "columns": list(_widths(1, 1, loss)),
        "tokenizer": {
            "file": describe(out, out / "tokenizer.json").model_dump(),
            "vocab_size": tokenizer.vocab_size,
            "pad_id": tokenizer.pad_id,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
        },
        "documents": plan.documents,
        "tokens": tokens,
        "rows": plan.rows,
        "padding_share": 1 - tokens / places,
        "cleaning": plan.cleaning,
        "sources": [{"name": name, **counts} for name, counts in zip(names, plan.sources, strict=True)],
        "lengths": plan.lengths,
        "buckets": [
            {
                "length": bucket.length,
                "ends": bucket.ends,
                "rows": bucket.rows,
                "documents": bucket.documents,
                "tokens": bucket.tokens,
                "shards": [shard.model_dump(mode="json") for shard in parts],
            }
            for bucket, parts in zip(plan.buckets, shards, strict=True)
        ],
    }
    return write_manifest(out, values)
