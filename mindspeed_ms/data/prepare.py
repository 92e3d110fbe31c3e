"""From files of text to a set of rows of fixed length: the whole of `data prepare`.

Four stages, each of which leaves complete pieces behind that a killed run goes on from: tokenize (segments), find
copies and lay out (plan), write (shards), and the manifest, last of all. What is written depends on the input files,
the tokenizer and the configuration alone; not on workers, engine, kills or time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import job
from mindspeed_ms.data.clean import read_limit
from mindspeed_ms.data.encode import Encoder
from mindspeed_ms.data.files import disk_errors, write_atomic
from mindspeed_ms.data.manifest import Manifest
from mindspeed_ms.data.plan import Plan, load_plan, make_plan
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.segments import Segment, SegmentStore
from mindspeed_ms.data.sources import Damaged, SourceFile, find_sources
from mindspeed_ms.data.tokenizer import DataTokenizer, open_tokenizer
from mindspeed_ms.data.types import Position, RawChunk, TokenChunk
from mindspeed_ms.data.writer import finish_set, write_set
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
    out, tell = Path(out), progress or (lambda *_: None)
    opened = open_tokenizer(tokenizer)
    config = _settle(config or PrepareConfig(), opened)
    _check(engine, ray_address, workers)
    sources = find_sources([str(item) for item in inputs], config.read, cache)
    _check_apart(out, inputs, [Path(tokenizer), *(source.path for source in sources)])
    if sources.ignored:
        many = len(sources.ignored)
        _log.warning("%d files are of no kind that is read, such as %s; they are ignored", many, sources.ignored[0])
    names = list(dict.fromkeys(source.name for source in sources))
    with job.locked(out):
        files = job.look_at(out, sources)
        corpus = job.corpus_hash(files)
        if restart:
            job.clear(out)
        there = job.finished(out, corpus, opened.identity, config)
        if there is None:
            work = job.begin(out, files, opened.identity, config)
            pool = functools.partial(make_pool, opened, config, sources, workers, engine, ray_address)
            segments = tokenize(work, sources, names, config, pool, tell)
            plan = _plan(work, segments, config, len(names), tell)
            shards = write_set(out, work, segments, plan, config, opened.pad_id, tell)
            there = finish_set(out, plan, shards, names, corpus, config, opened)
        job.tidy(out)
        return there


def _settle(config: PrepareConfig, tokenizer: DataTokenizer) -> PrepareConfig:
    """The configuration with rows that fit the model, where their length was left open. Raises ConfigError."""
    arrange, context = config.arrange, tokenizer.context
    if config.read.messages_key is not None and tokenizer.chat_template is None:
        raise ConfigError("messages_key: the tokenizer has no chat template; give the folder of a chat model")
    if context is None or arrange.longest <= context:
        return config
    if arrange.boundaries or arrange.max_length or context < arrange.multiple_of:
        name = "boundaries" if arrange.boundaries else "max_length"
        raise ConfigError(f"{name}: rows of {arrange.longest} tokens, the model's context is {context}; shorten them")
    fitting = context // arrange.multiple_of * arrange.multiple_of
    return config.model_copy(update={"arrange": arrange.model_copy(update={"max_length": fitting})})


def _check(engine: str, ray_address: str | None, workers: int | None) -> None:
    if engine not in ("local", "ray"):
        raise ConfigError(f"engine is {engine!r}; expected local or ray")
    if ray_address is not None and engine != "ray":
        raise ConfigError(f"ray_address is {ray_address!r}, which has no effect with engine {engine}; leave it out")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; expected 1 or more, or None for one a core")


def _check_apart(out: Path, inputs: Sequence[str | Path], files: Sequence[Path]) -> None:
    """A set is not made among the files that it is made of: it would overwrite them, or read itself."""
    try:
        str(out).encode()  # MindRecord takes no other names
        place = out.resolve()
        around = [item for item in inputs if Path(item).resolve() in [place, *place.parents]]
        inside = [path for path in (*map(Path, inputs), *files) if place in path.resolve().parents]
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise ConfigError(f"out: {out!s:.200}: no path for a set ({error}); choose another folder") from None
    if inside or around:
        raise ConfigError(f"out: {out} and {(inside or around)[0]} lie in one another; choose another folder")


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
    if engine == "ray":
        from mindspeed_ms.data.ray_pool import RayPool

        return RayPool(factory, workers, ray_address)
    from mindspeed_ms.data.pool import Pool

    return Pool(factory, workers or len(os.sched_getaffinity(0)))


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
            store.damaged(reader.take_damaged(chunk.source))
            reading = chunk.source
            chunk.source = number[sources[reading].name]
            store.append(chunk, reading)
            read += chunk.bytes
            tell("tokenize", min(read, total), total, "bytes")
    store.damaged(reader.take_damaged(len(sources)))
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
        limit = read_limit(self._config.clean)
        for index in range(self._first, len(self._sources)):
            start = self._start if index == self._first else Position()
            try:
                yield from read_chunks(self._sources[index], index, self._config.read, limit, start)
            except Damaged as error:
                if not self._config.read.skip_damaged:
                    raise DataError(f"{error}; with skip_damaged what was read before is kept") from None
                _log.warning("%s; what was read before is kept", error)
                self._damaged.append(index)

    def take_damaged(self, before: int) -> list[int]:
        """The damaged files before this one that were not yet taken: all of their documents are stored by then."""
        mine = [index for index in self._damaged if index < before]
        self._damaged = [index for index in self._damaged if index >= before]
        return mine


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
