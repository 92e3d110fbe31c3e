"""Small corpora for the tests of reading."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data import readers, streams
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.sources import SourceFile, find_sources
from mindspeed_ms.data.types import Position, RawChunk

LIMIT = 1 << 20


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def source(path: Path, read: ReadConfig | None = None) -> SourceFile:
    (found,) = find_sources([str(path)], read or ReadConfig())
    return found


def chunks(path: Path, limit: int = LIMIT, start: Position = readers.START, **read) -> list[RawChunk]:
    config = ReadConfig(**read)
    return list(read_chunks(source(path, config), 3, config, limit, start))


def records(path: Path, limit: int = LIMIT, **read) -> list:
    return [record for chunk in chunks(path, limit, **read) for record in chunk.records]


def until_damage(path: Path, limit: int = LIMIT, **read) -> tuple[list[RawChunk], str]:
    """What is read before a file turns out to be damaged, and what is said then."""
    config, got = ReadConfig(**read), []
    with pytest.raises(readers.Damaged) as caught:
        for chunk in read_chunks(source(path, config), 0, config, limit):
            got.append(chunk)
    return got, str(caught.value)


def plain(chunk: RawChunk) -> tuple:
    """A chunk as something that can be compared."""
    return (
        chunk.first,
        chunk.kind,
        [record if isinstance(record, bytes) else record.tolist() for record in chunk.records],
        chunk.overlong,
        chunk.numbers,
        chunk.bytes,
        chunk.after,
    )


@contextlib.contextmanager
def small_chunks(size: int = 64, count: int = 5, block: int = 16) -> Iterator[None]:
    """Borders everywhere: chunks of 64 bytes or 5 records, read 16 bytes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_BYTES", size)
        patch.setattr(readers, "CHUNK_RECORDS", count)
        patch.setattr(streams, "_BLOCK", block)
        patch.setattr(streams, "_FED", 7)
        yield
