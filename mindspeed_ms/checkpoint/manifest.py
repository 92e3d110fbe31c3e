"""The manifest of a commit: what it says, and how it is written. docs/checkpoint-format.md describes it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspeed_ms.checkpoint.records import OtherCheckpoint
from mindspeed_ms.errors import CheckpointError

FORMAT, VERSION = "mindspeed-ms-checkpoint", 1
CHUNK_BYTES = 4 << 20
PAGE = 4096
MOST_BYTES = 256 << 20
"""Of a manifest."""
MOST_AXES, MOST_CHUNK = 32, 64 << 20

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
NAME = re.compile(r"step-(\d{8,18})\.json", re.ASCII)
BIN = re.compile(r"step-(\d{8,18})\.(\d{1,9})\.([0-9a-f]{8})\.bin", re.ASCII)


def manifest_name(step: int) -> str:
    return f"step-{step:08d}.json"


def bin_name(step: int, rank: int, token: str) -> str:
    return f"step-{step:08d}.{rank}.{token}.bin"


@dataclass(frozen=True)
class Chunk:
    """Where the bytes of a chunk lie. `base`: what they are a difference to."""

    file: str
    offset: int
    stored: int
    """Bytes that the checksum covers, the zeros behind included."""
    used: int
    codec: str
    digest: str
    """xxh3_64 of the stored bytes, hexadecimal."""
    base: Chunk | None = None


@dataclass(frozen=True)
class Entry:
    """A tensor, or a rank's part of one."""

    name: str
    rank: int
    dtype: str
    shape: tuple[int, ...]
    layout: dict[str, list[int]] | None
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return item_count(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """A commit. `since_base` counts the commits since the last base: 0 for a base."""

    step: int
    time: float
    previous: tuple[int, str] | None
    base: int
    since_base: int
    world: int
    metric: float | None
    identity: dict[str, str]
    state: dict[str, Any]
    rank_states: dict[int, dict[str, Any]]
    files: dict[str, int]
    tensors: tuple[Entry, ...]
    chunk_bytes: int = CHUNK_BYTES
    digest: str = field(default="", compare=False)
    """SHA-256 of the first line, of a manifest that was written or read."""

    @property
    def raw_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.tensors)

    @property
    def own_bytes(self) -> int:
        """In the files that were written for this commit."""
        return sum(size for name, size in self.files.items() if int(name.split("-")[1].split(".")[0]) == self.step)

    def require_identity(self, identity: Mapping[str, str], path: str) -> None:
        """Raises OtherCheckpoint where a key that both have is another."""
        for key, value in identity.items():
            if self.identity.get(key, value) != value:
                raise OtherCheckpoint(
                    f"{path}: is a commit of another model: {key} is {self.identity[key]!r}, this run's is {value!r}; "
                    "choose another folder"
                )


def item_count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    return -(-nbytes // chunk_bytes)


def named_files(entries: tuple[Entry, ...]) -> set[str]:
    """The files that a commit's chunks lie in."""
    found = set()
    for entry in entries:
        for chunk in entry.chunks:
            found.add(chunk.file)
            if chunk.base is not None:
                found.add(chunk.base.file)
    return found


def dump_line(values: Mapping[str, Any]) -> tuple[bytes, str]:
    """JSON in one line and its SHA-256 in a second; returns both lines and the SHA-256."""
    line = json.dumps(values, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    digest = hashlib.sha256(line).hexdigest()
    return line + b"\n" + digest.encode() + b"\n", digest


def dump(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the SHA-256. Raises CheckpointError where the state is not what JSON holds."""
    previous = manifest.previous and {"step": manifest.previous[0], "sha256": manifest.previous[1]}
    values = {
        "format": FORMAT,
        "version": VERSION,
        "step": manifest.step,
        "time": manifest.time,
        "previous": previous,
        "base": manifest.base,
        "since_base": manifest.since_base,
        "world": manifest.world,
        "metric": manifest.metric,
        "identity": manifest.identity,
        "state": manifest.state,
        "rank_states": {str(rank): state for rank, state in manifest.rank_states.items()},
        "chunk_bytes": manifest.chunk_bytes,
        "files": manifest.files,
        "tensors": dump_entries(manifest.tensors, sorted(manifest.files)),
    }
    try:
        data, digest = dump_line(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the state of step {manifest.step} is not what JSON holds ({error})") from None
    if len(data) > MOST_BYTES:
        raise CheckpointError(f"the manifest of step {manifest.step} has {len(data)} bytes, at most {MOST_BYTES} fit")
    return data, digest


def dump_entries(entries: tuple[Entry, ...], names: list[str]) -> list[dict[str, Any]]:
    number = {name: index for index, name in enumerate(names)}

    def record(chunk: Chunk) -> list[Any]:
        values = [number[chunk.file], chunk.offset, chunk.stored, chunk.used, chunk.codec, chunk.digest]
        return values if chunk.base is None else [*values, record(chunk.base)]

    return [
        {
            "name": entry.name,
            "rank": entry.rank,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "layout": entry.layout,
            "chunks": [record(chunk) for chunk in entry.chunks],
        }
        for entry in entries
    ]
