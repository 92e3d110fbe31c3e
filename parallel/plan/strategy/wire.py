"""Protobuf's wire format, as much of it as a MINDIR and a strategy file need."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MOST_VARINT = 10  # bytes
_MOST_FIELDS = 1 << 20  # of one message: the nodes of a network of 1,000 layers are fewer

Fields = dict[int, list["int | memoryview"]]


def parse(data: memoryview) -> Fields:
    """Field number -> its values in order: numbers, and the bytes (not copied) of what has a length.

    Raises ValueError where the bytes are no such fields.
    """
    found: Fields = {}
    for count, (number, value) in enumerate(_fields(data)):
        if count >= _MOST_FIELDS:
            raise ValueError(f"has more than {_MOST_FIELDS} fields in one message")
        found.setdefault(number, []).append(value)
    return found


def numbers(values: Iterable[int | memoryview]) -> list[int]:
    """A repeated integer, packed or not, as signed 64-bit numbers. Raises ValueError."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(_signed(value))
            continue
        at = 0
        if len(value) > _MOST_VARINT * _MOST_FIELDS:
            raise ValueError(f"has a list of numbers of {len(value)} bytes")
        while at < len(value):
            number, at = _varint(value, at)
            found.append(_signed(number))
    return found


def text(values: list[int | memoryview] | None) -> str:
    """The last of a field of text; empty where there is none. Raises ValueError when it is no text."""
    return str(blob(values), "utf-8")


def number(values: list[int | memoryview] | None, default: int = 0) -> int:
    """The last of a field of integers. Raises ValueError."""
    if not values:
        return default
    if not isinstance(values[-1], int):
        raise ValueError("a number is written as bytes")
    return _signed(values[-1])


def blob(values: list[int | memoryview] | None) -> memoryview:
    """The last of a field of bytes. Raises ValueError."""
    if not values:
        return memoryview(b"")
    if isinstance(values[-1], int):
        raise ValueError("bytes are written as a number")
    return values[-1]


def messages(values: list[int | memoryview] | None) -> Iterator[Fields]:
    """Each message of a repeated field. Raises ValueError."""
    for value in values or ():
        yield parse(blob([value]))


def put_bytes(field: int, value: bytes) -> bytes:
    return _put_varint(field << 3 | BYTES) + _put_varint(len(value)) + value


def put_number(field: int, value: int) -> bytes:
    """A number, negative ones as protobuf's int32 and int64 have them: in ten bytes."""
    return _put_varint(field << 3 | VARINT) + _put_varint(value & (1 << 64) - 1)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if field == 0:
            raise ValueError(f"byte {at} is no field of protobuf")
        if wire == VARINT:
            value, at = _varint(data, at)
            yield field, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"byte {at} has wire type {wire}, which is no longer used")
        if size > len(data) - at:
            raise ValueError(f"is truncated: {size} bytes are announced at byte {at}, {len(data) - at} are there")
        part = data[at : at + size]
        yield field, part if wire == BYTES else struct.unpack("<Q" if size == 8 else "<I", part)[0]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MOST_VARINT):
        if at >= len(data):
            raise ValueError(f"is truncated at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at
    raise ValueError(f"byte {at} is in no number of protobuf")


def _put_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
