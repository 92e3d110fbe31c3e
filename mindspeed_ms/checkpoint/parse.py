"""Reading a manifest that may be damaged or hostile: nothing is believed, nothing large made before a check."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn

from mindspeed_ms.checkpoint.codec import CODECS, takes_base
from mindspeed_ms.checkpoint.manifest import (
    BIN,
    FORMAT,
    ITEM_BYTES,
    MOST_AXES,
    MOST_CHUNK,
    PAGE,
    VERSION,
    Chunk,
    Entry,
    Manifest,
    chunk_count,
)
from mindspeed_ms.checkpoint.records import OtherCheckpoint
from mindspeed_ms.errors import CheckpointError

_MOST = 1 << 60
_DIGEST = re.compile(r"[0-9a-f]{16}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class _Wrong(Exception):
    """A value is not what the format says."""


def parse_line(data: bytes, path: str) -> tuple[dict[str, Any], str]:
    """The JSON object of a file of two lines, and its SHA-256. Raises CheckpointError."""
    line, _, rest = data.partition(b"\n")
    digest = hashlib.sha256(line).hexdigest()
    if rest != digest.encode() + b"\n":
        raise CheckpointError(f"{path}: its SHA-256 is not that of its content; the checkpoint is damaged")
    try:
        values = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError, _Wrong):
        raise CheckpointError(f"{path}: is not JSON; the checkpoint is damaged") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: is no JSON object; the checkpoint is damaged")
    return values, digest


def parse(data: bytes, path: str, step: int) -> Manifest:
    """The manifest of a step. Raises CheckpointError, and OtherCheckpoint for another version of the format."""
    values, digest = parse_line(data, path)
    if values.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is not the manifest of a checkpoint; the checkpoint is damaged")
    if values.get("version") != VERSION:
        raise OtherCheckpoint(
            f"{path}: version is {str(values.get('version'))[:40]}, this program reads {VERSION}; "
            "use the version of mindspeed-ms that wrote it"
        )
    if values.get("step") != step:
        raise CheckpointError(
            f"{path}: step is {str(values.get('step'))[:40]}, its name says {step}; rename it back, or it is damaged"
        )
    try:
        return _manifest(values, step, digest)
    except _Wrong as wrong:
        raise CheckpointError(f"{path}: {wrong}; the checkpoint is damaged") from None


def _manifest(values: dict[str, Any], step: int, digest: str) -> Manifest:
    chunk_bytes = _whole(values.get("chunk_bytes"), "chunk_bytes", 8, MOST_CHUNK)
    if chunk_bytes % 8:
        _wrong("chunk_bytes", chunk_bytes, "a multiple of 8")
    world = _whole(values.get("world"), "world", 1, 1 << 24)
    files = parse_files(values.get("files"), step)
    names = sorted(files)
    previous = values.get("previous")
    if previous is not None:
        before = _object(previous, "previous")
        text = _text(before.get("sha256"), "previous.sha256")
        if not _SHA256.fullmatch(text):
            _wrong("previous.sha256", text, "64 hexadecimal digits")
        previous = (_whole(before.get("step"), "previous.step", 0, step - 1), text)
    identity = _object(values.get("identity"), "identity")
    for key, value in identity.items():
        _text(value, f"identity.{key}")
    states = _object(values.get("rank_states"), "rank_states")
    rank_states = {}
    for rank, state in states.items():
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 9 and 0 < int(rank) < world):
            _wrong("rank_states", rank, f"a rank from 1 to {world - 1}")
        rank_states[int(rank)] = _object(state, f"rank_states.{rank}")
    manifest = Manifest(
        step=step,
        time=_number(values.get("time"), "time"),
        previous=previous,
        base=_whole(values.get("base"), "base", 0, step),
        since_base=_whole(values.get("since_base"), "since_base", 0, _MOST),
        world=world,
        metric=None if values.get("metric") is None else _number(values["metric"], "metric"),
        identity=identity,
        state=_object(values.get("state"), "state"),
        rank_states=rank_states,
        files=files,
        tensors=parse_entries(values.get("tensors"), names, files, chunk_bytes, world),
        chunk_bytes=chunk_bytes,
        digest=digest,
    )
    _require_apart(manifest)
    return manifest


def parse_part(
    values: dict[str, Any], path: str, step: int, rank: int, world: int
) -> tuple[bool, int, tuple[Entry, ...], dict[str, int], dict[str, Any]]:
    """What a rank wrote: whether it is a base, its bytes, entries, files, the rank's state. Raises CheckpointError."""
    try:
        chunk_bytes = _whole(values.get("chunk_bytes"), "chunk_bytes", 8, MOST_CHUNK)
        files = parse_files(values.get("files"), step)
        entries = parse_entries(values.get("tensors"), sorted(files), files, chunk_bytes, world)
        for entry in entries:
            _whole(entry.rank, "rank", rank, rank)
        nbytes = _whole(values.get("bytes"), "bytes", 0, _MOST)
        return values.get("base") is True, nbytes, entries, files, _object(values.get("state"), "state")
    except _Wrong as wrong:
        raise CheckpointError(f"{path}: {wrong}; the part is damaged") from None


def parse_files(value: Any, step: int) -> dict[str, int]:
    files = _object(value, "files")
    for name, size in files.items():
        found = BIN.fullmatch(name)
        if not found or int(found[1]) > step:
            _wrong("files", name, f"a name step-STEP.RANK.TOKEN.bin of a step to {step}")
        _whole(size, f"files.{name}", 1, _MOST)
    return files


def parse_entries(
    value: Any, names: list[str], files: dict[str, int], chunk_bytes: int, world: int
) -> tuple[Entry, ...]:
    if not isinstance(value, list):
        _wrong("tensors", value, "a list")
    entries, seen = [], set()
    for item in value:
        entry = _entry(_object(item, "a tensor"), names, files, chunk_bytes, world)
        if (entry.name, entry.rank) in seen:
            _wrong("tensors", entry.name, "each tensor once a rank")
        seen.add((entry.name, entry.rank))
        entries.append(entry)
    return tuple(entries)


def _entry(values: dict[str, Any], names: list[str], files: dict[str, int], chunk_bytes: int, world: int) -> Entry:
    name = _text(values.get("name"), "a tensor's name")
    where = f"tensor {name[:80]!r}"
    dtype = values.get("dtype")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        _wrong(f"{where}: dtype", dtype, f"one of {', '.join(ITEM_BYTES)}")
    shape = _shape(values.get("shape"), where)
    layout = values.get("layout")
    if layout is not None:
        layout = _object(layout, f"{where}: layout")
        whole, offset = _shape(layout.get("shape"), where), _shape(layout.get("offset"), where)
        inside = len(whole) == len(offset) == len(shape) and all(
            start + length <= end for start, length, end in zip(offset, shape, whole, strict=True)
        )
        if not inside:
            _wrong(f"{where}: layout", layout, f"a global shape that holds {list(shape)} at its offset")
    nbytes = ITEM_BYTES[dtype]
    for length in shape:
        nbytes *= length
    chunks = values.get("chunks")
    if nbytes > _MOST or not isinstance(chunks, list) or len(chunks) != chunk_count(nbytes, chunk_bytes):
        found = len(chunks) if isinstance(chunks, list) else chunks
        _wrong(f"{where}: chunks", found, f"{chunk_count(nbytes, chunk_bytes)} for {nbytes} bytes")
    read = tuple(
        _chunk(chunk, names, files, min(chunk_bytes, nbytes - index * chunk_bytes), f"{where}: chunk {index}")
        for index, chunk in enumerate(chunks)
    )
    return Entry(name, _whole(values.get("rank"), f"{where}: rank", 0, world - 1), dtype, shape, layout, read)


def _chunk(
    value: Any, names: list[str], files: dict[str, int], nbytes: int, where: str, *, inner: bool = False
) -> Chunk:
    if not isinstance(value, list) or len(value) not in (6, 7):
        _wrong(where, value, "a list of 6 values or 7")
    number, offset, stored, used, codec, digest = value[:6]
    if not names:
        _wrong(where, number, "a file of the list, which is empty")
    file = names[_whole(number, f"{where}: file", 0, len(names) - 1)]
    _whole(used, f"{where}: used", 1, nbytes)
    _whole(stored, f"{where}: stored", used, used + 2 * PAGE)
    _whole(offset, f"{where}: offset", 0, files[file] - stored)
    if codec not in CODECS:
        _wrong(f"{where}: codec", codec, f"one of {', '.join(CODECS)}")
    if codec == "raw" and used != nbytes:
        _wrong(f"{where}: used", used, str(nbytes))
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        _wrong(f"{where}: checksum", digest, "16 hexadecimal digits")
    if takes_base(codec) != (len(value) == 7) or (inner and takes_base(codec)):
        _wrong(f"{where}: base", len(value), f"what {codec} takes")
    base = _chunk(value[6], names, files, nbytes, f"{where}: base", inner=True) if len(value) == 7 else None
    return Chunk(file, offset, stored, used, codec, digest, base)


def _require_apart(manifest: Manifest) -> None:
    """Chunks of one file are the same or do not overlap; each file is used."""
    spans: dict[str, set[tuple[int, int, int, str, str]]] = {name: set() for name in manifest.files}
    for entry in manifest.tensors:
        for chunk in entry.chunks:
            for part in (chunk, chunk.base):
                if part is not None:
                    spans[part.file].add((part.offset, part.stored, part.used, part.codec, part.digest))
    for name, found in spans.items():
        if not found:
            _wrong("files", name, "only files that a chunk lies in")
        end = 0
        for offset, stored, *_ in sorted(found):
            if offset < end:
                _wrong(f"files.{name}", offset, f"chunks that do not overlap: one ends at {end}")
            end = offset + stored


def _refuse(name: str) -> NoReturn:
    raise _Wrong(name)


def _wrong(what: str, value: Any, expected: str) -> NoReturn:
    shown = str(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a huge number"
    shown = shown[:80].encode("unicode_escape").decode()
    raise _Wrong(f"{what[:200].encode('unicode_escape').decode()} is {shown}, expected {expected}")


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        _wrong(what, value, f"a whole number from {least} to {most}")
    return int(value)


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not -(2**1000) < value < 2**1000 or not math.isfinite(value):
        _wrong(what, value, "a finite number")
    return float(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        _wrong(what, value, "text")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _wrong(what, value, "an object")
    return value


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_AXES:
        _wrong(f"{where}: shape", value, f"a list of at most {MOST_AXES} lengths")
    return tuple(_whole(length, f"{where}: shape", 0, _MOST) for length in value)
