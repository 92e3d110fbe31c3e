"""From files to RawChunks: about 1 MiB of records each, cut by the content alone, wherever reading began.

A chunk ends with the record that brings it to 1 MiB, with its 8192nd record or with the file. What is too long to be a
document is not held in memory: it is counted and passed over. When a file turns out to be damaged, everything before
comes first, then Damaged is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.sources import Damaged, SourceFile, check_unchanged
from mindspeed_ms.data.streams import Stream
from mindspeed_ms.data.types import Position, RawChunk

CHUNK_BYTES = 1 << 20
CHUNK_RECORDS = 8192
START = Position()

_LINE_END = re.compile(rb"\n")
# A line of at most 64 blanks ends a paragraph; bounded, so that one across two reads is found with little look-back.
_EMPTY_LINE = re.compile(rb"\n[ \t\r]{0,64}\n")
_LONGEST_END = 66
_LEADING = re.compile(rb"\A(?:[ \t\r]*\n)+")


class Rows(NamedTuple):
    """Consecutive records of a table or a file of token ids."""

    first: int  # number in the file
    records: Iterable[bytes | np.ndarray | None]  # None: too long to be read
    consumed: np.ndarray  # int64 [records + 1]: bytes of the file before each, and after the last


def read_chunks(
    source: SourceFile, index: int, read: ReadConfig, clean_max_bytes: int, start: Position = START
) -> Iterator[RawChunk]:
    """The chunks of a file from `start` on, which is the beginning or a chunk's `after`.

    `index` becomes the chunks' `source`; records of more than `clean_max_bytes` bytes are only counted. Raises Damaged,
    DataError when a table lacks its column or the file is not what it was when it was found, ConfigError when a library
    is absent or the encoding unknown.
    """
    check_unchanged(source)
    try:
        yield from _chunks(source, index, read, clean_max_bytes, start)
    except Damaged:
        check_unchanged(source)  # then this is why
        raise
    check_unchanged(source)


def _chunks(
    source: SourceFile, index: int, read: ReadConfig, clean_max_bytes: int, start: Position
) -> Iterator[RawChunk]:
    if source.kind in ("txt", "jsonl", "json"):
        yield from _text_chunks(source, index, read, clean_max_bytes, start)
        return
    from mindspeed_ms.data import megatron, tables

    kind: Literal["text", "json", "ids"] = "ids" if read.ids_key else "json" if read.messages_key else "text"
    if source.kind == "megatron":
        kind, rows = "ids", megatron.read_rows(source.path.with_suffix(""), start.record, clean_max_bytes)
    else:
        rows = tables.read_rows(source, read, start.record)
    yield from _cut(rows, source, index, kind, clean_max_bytes, start.record)


def _cut(
    slices: Iterator[Rows], source: SourceFile, index: int, kind: Literal["text", "json", "ids"], limit: int, first: int
) -> Iterator[RawChunk]:
    """Chunks of records that come one by one."""
    records: list = []
    numbers: list[int] = []
    number, size, consumed, damage, before = first, 0, 0, None, -1

    def chunk() -> RawChunk:
        gaps = None if _consecutive(numbers, first) else numbers
        after = Position(number)
        overlong = number - first - len(records)
        return RawChunk(index, first, kind, records, overlong, gaps, consumed - before, after)

    try:
        for rows in slices:
            for k, record in enumerate(rows.records):
                if rows.first + k < number:
                    continue  # before the start
                before = int(rows.consumed[k]) if before < 0 else before
                length = (
                    limit + 1 if record is None else record.nbytes if isinstance(record, np.ndarray) else len(record)
                )
                if length <= limit:
                    records.append(record)
                    numbers.append(number)
                number, size, consumed = number + 1, size + length, int(rows.consumed[k + 1])
                if size >= CHUNK_BYTES or number - first >= CHUNK_RECORDS:
                    yield chunk()
                    records, numbers, first, size, before = [], [], number, 0, consumed
    except Damaged as error:
        damage = error
    if number > first:
        yield chunk()
    if damage:
        raise damage


def _text_chunks(source: SourceFile, index: int, read: ReadConfig, limit: int, start: Position) -> Iterator[RawChunk]:
    encoding = read.encoding if source.kind == "txt" else "utf-8"
    by = read.txt_by if source.kind == "txt" else "json"
    if by == "file":
        if start.record == 0:
            yield _whole(Stream(source.path, encoding), source, index, limit)
        return
    stream = Stream(source.path, encoding, source.kind == "json", start.offset)
    kind: Literal["text", "json"] = "json" if by == "json" else "text"
    record, consumed = start.record, stream.consumed()
    while (window := _take(stream, limit, _EMPTY_LINE if by == "paragraph" else _LINE_END)) is not None:
        found = _select(window, by, record, limit)
        before, consumed = consumed, stream.consumed()
        after = Position(record + found.counted, stream.offset)
        overlong = found.overlong
        yield RawChunk(index, record, kind, found.records, overlong, found.numbers, consumed - before, after)
        record = after.record
    if stream.damage:
        raise stream.damage


def _whole(stream: Stream, source: SourceFile, index: int, limit: int) -> RawChunk:
    stream.grow(limit + 1)
    if stream.damage:
        raise stream.damage
    records = [stream.data] if len(stream.data) <= limit else []
    return RawChunk(index, 0, "text", records, 1 - len(records), None, source.size, Position(1))


class _Window(NamedTuple):
    content: bytes
    pieces: list[bytes]  # of the content, between ends of record
    cut_off: bool  # a record that is too long came last and was passed over


def _take(stream: Stream, limit: int, end: re.Pattern[bytes]) -> _Window | None:
    """What makes the next chunk; None at the end."""
    stream.grow(CHUNK_BYTES)
    at = CHUNK_BYTES - 1
    while not (found := end.search(stream.data, at)) and not stream.ended:
        if len(stream.data) > CHUNK_BYTES + limit + _LONGEST_END:
            break
        at = max(at, len(stream.data) - _LONGEST_END)
        stream.grow(2 * len(stream.data))
    content = stream.data[: found.end()] if found else stream.data
    split = bytes.split(content, b"\n", CHUNK_RECORDS) if end is _LINE_END else end.split(content, CHUNK_RECORDS)
    rest = split.pop()
    if len(split) == CHUNK_RECORDS:
        stream.drop(len(content) - len(rest))
        return _Window(content, split, False)
    stream.drop(len(content))
    if found or stream.ended:
        if rest and not stream.damage:  # what damage cut off is not a document
            split.append(rest)
        return _Window(content, split, False) if split else None
    _skip(stream, end, content[-_LONGEST_END:])
    return _Window(content, split, True) if split or not stream.damage else None


def _skip(stream: Stream, end: re.Pattern[bytes], tail: bytes) -> None:
    """Drop what is left of a record, with its end, given the last bytes that were dropped."""
    while True:
        stream.grow(CHUNK_BYTES)
        if found := end.search(tail + stream.data):
            stream.drop(found.end() - len(tail))
            return
        tail = (tail + stream.data)[-_LONGEST_END:]
        stream.drop(len(stream.data))
        if stream.ended:
            return


class _Selected(NamedTuple):
    records: list[bytes]
    numbers: list[int] | None  # of the records, if these have gaps
    counted: int  # records, overlong ones included
    overlong: int


def _select(window: _Window, by: str, first: int, limit: int) -> _Selected:
    pieces, numbers = window.pieces, None
    if by == "paragraph":
        pieces = [piece if len(piece) > limit else _LEADING.sub(b"", piece).rstrip() for piece in pieces]
        pieces = [piece for piece in pieces if piece and not piece.isspace()]
    records = pieces
    # Most chunks have nothing of all this, and a look at each piece costs.
    long = sum(len(piece) > limit for piece in pieces) if len(window.content) > limit else 0
    blank = by == "json" and (b"" in pieces or any(map(bytes.isspace, pieces)))
    if long or blank:
        numbers = [
            first + k
            for k, piece in enumerate(pieces)
            if len(piece) <= limit and not (blank and (not piece or piece.isspace()))
        ]
        records = [pieces[number - first] for number in numbers]
        numbers = None if _consecutive(numbers, first) else numbers
    if by == "line" and b"\r" in window.content:
        records = [piece.removesuffix(b"\r") for piece in records]
    return _Selected(records, numbers, len(pieces) + window.cut_off, long + window.cut_off)


def _consecutive(numbers: list[int], first: int) -> bool:
    return not numbers or (numbers[0] == first and numbers[-1] - first == len(numbers) - 1)
