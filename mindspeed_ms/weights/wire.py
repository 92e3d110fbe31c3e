"""Protobuf's wire format, as much of it as a .ckpt or an event needs: fields of numbers and of bytes, not copied."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Span = tuple[int, int]
_MOST_VARINT = 10  # bytes


def fields(data: mmap.mmap | bytes, span: Span) -> Iterator[tuple[int, int, int | Span]]:
    """(field number, wire type, number or the span of its bytes) of each field between two positions.

    Raises ValueError where the bytes are no such fields, or one ends behind the span.
    """
    at, end = span
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"byte {at} is no field of protobuf")
        if wire == VARINT:
            value, at = _varint(data, at, end)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"byte {at} has wire type {wire}, which is no longer used")
        if size > end - at:
            raise ValueError(f"is truncated: {size} bytes are announced at byte {at}, {end - at} are there")
        yield number, wire, (at, at + size)
        at += size


def varints(data: mmap.mmap | bytes, span: Span) -> list[int]:
    """The numbers of a packed field. Raises ValueError."""
    at, end = span
    found = []
    while at < end:
        value, at = _varint(data, at, end)
        found.append(value)
        if len(found) > 64:
            raise ValueError("holds a list of more than 64 sizes")
    return found


def field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return header(number, len(value)) + value


def header(number: int, size: int) -> bytes:
    """What stands before the bytes of such a field."""
    return varint(number << 3 | BYTES) + varint(size)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MOST_VARINT):
        if at >= end:
            raise ValueError(f"is truncated at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at
    raise ValueError(f"byte {at} is in no number of protobuf")
