"""The header of a GGUF file, read with a check of every length, count and offset before it is believed.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import math
import mmap
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from mindspeed_ms.errors import WeightsError

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.FLOAT64: "<d",
}
_MAX_NAME = 1 << 16


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: its type, its shape with the outermost dimension first, and its bytes' place in the file."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class GGUFHeader:
    """Metadata by key (scalars, str, lists of str, NumPy arrays of numbers) and tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


class _Cursor:
    """A position in the file that never moves past its end."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.at, self.size = data, where, 0, len(data)

    def fail(self, what: str) -> WeightsError:
        return WeightsError(f"{self.where}: {what} (byte {self.at} of {self.size}); the file is damaged or truncated")

    def take(self, count: int, what: str) -> int:
        if count > self.size - self.at:
            raise self.fail(f"{what} asks for {count} bytes, {self.size - self.at} are left")
        start, self.at = self.at, self.at + count
        return start

    def number(self, code: str, what: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code), what))[0]

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.number("<Q", what)
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long, expected at most {limit}")
        start = self.take(length, what)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def count(self, smallest: int, what: str) -> int:
        """A number of items, each of at least `smallest` bytes, that the rest of the file can hold."""
        count = self.number("<Q", what)
        if count > (self.size - self.at) // smallest:
            raise self.fail(f"{what} says {count} items, more than the rest of the file holds")
        return count


def read_header(data: mmap.mmap, where: str) -> GGUFHeader:
    """Read metadata and tensor table of a mapped GGUF file; raises WeightsError for what does not add up."""
    cursor = _Cursor(data, where)
    if data[:4] != b"GGUF":
        raise WeightsError(f"{where}: does not start with GGUF, expected a GGUF file")
    cursor.at = 4
    version = cursor.number("<I", "version")
    if version not in (2, 3):
        raise WeightsError(f"{where}: GGUF version {version} is not supported, expected 2 or 3 in little-endian order")
    tensor_count = cursor.number("<Q", "tensor count")
    kv_count = cursor.count(13, "metadata count")
    if tensor_count > (cursor.size - cursor.at) // 33:  # name length, one letter, dimensions, one size, type, offset
        raise cursor.fail(f"tensor count says {tensor_count} items, more than the rest of the file holds")
    metadata: dict[str, Any] = {}
    for _ in range(kv_count):
        key = cursor.text("metadata key", _MAX_NAME)
        if key in metadata:
            raise WeightsError(f"{where}: metadata key {key!r} appears twice")
        metadata[key] = _value(cursor, key)
    tensors = _tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    return GGUFHeader(metadata, tensors)


def _value_type(cursor: _Cursor, what: str) -> GGUFValueType:
    number = cursor.number("<I", what)
    try:
        return GGUFValueType(number)
    except ValueError:
        raise cursor.fail(f"{what} has value type {number}, which does not exist") from None


def _value(cursor: _Cursor, key: str) -> Any:
    what = f"metadata {key!r}"
    kind = _value_type(cursor, what)
    if kind == GGUFValueType.STRING:
        return cursor.text(what)
    if kind == GGUFValueType.BOOL:
        return bool(cursor.number("<B", what))
    if kind != GGUFValueType.ARRAY:
        return cursor.number(_SCALARS[kind], what)
    item = _value_type(cursor, what)
    if item == GGUFValueType.ARRAY:
        raise cursor.fail(f"{what} is an array of arrays, which GGUF does not allow here")
    if item == GGUFValueType.STRING:
        return [cursor.text(what) for _ in range(cursor.count(8, what))]
    dtype = np.dtype(np.bool_) if item == GGUFValueType.BOOL else np.dtype(_SCALARS[item])
    count = cursor.count(dtype.itemsize, what)
    return np.frombuffer(cursor.data, dtype, count, cursor.take(count * dtype.itemsize, what)).copy()


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> dict[str, GGUFTensor]:
    where = cursor.where
    if type(alignment) is not int or alignment < 8 or alignment > 1 << 20 or alignment & (alignment - 1):
        raise WeightsError(f"{where}: general.alignment {alignment!r} is not a power of two from 8 to 1048576")
    entries: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = cursor.text("tensor name", _MAX_NAME)
        if name in entries:
            raise WeightsError(f"{where}: tensor {name!r} appears twice")
        entries[name] = _tensor(cursor, f"tensor {name!r}", alignment)
    begin = -(-cursor.at // alignment) * alignment
    tensors, position = {}, 0
    for name, (kind, shape, offset, nbytes) in sorted(entries.items(), key=lambda item: item[1][2]):
        if offset < position:
            raise WeightsError(f"{where}: tensor {name!r} at offset {offset} overlaps one that ends at {position}")
        position = offset + nbytes
        if begin + position > cursor.size:
            raise WeightsError(
                f"{where}: tensor {name!r} ends at byte {begin + position}, the file has {cursor.size}; "
                "it is truncated, download it again"
            )
        tensors[name] = GGUFTensor(kind, shape, begin + offset, begin + position)
    return tensors


def _tensor(cursor: _Cursor, what: str, alignment: int) -> tuple[GGMLQuantizationType, tuple[int, ...], int, int]:
    rank = cursor.number("<I", what)
    if not 1 <= rank <= 4:
        raise cursor.fail(f"{what} has {rank} dimensions, expected 1 to 4")
    shape = tuple(cursor.number("<Q", what) for _ in range(rank))  # innermost first
    number, offset = cursor.number("<I", what), cursor.number("<Q", what)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise WeightsError(f"{cursor.where}: {what} has type number {number}, which is not known") from None
    if any(not 1 <= size < 1 << 40 for size in shape):
        raise cursor.fail(f"{what} has an impossible shape {list(shape)}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[0] % block:
        raise cursor.fail(f"{what} has rows of {shape[0]}, not a multiple of {kind.name}'s {block}")
    if offset % alignment:
        raise cursor.fail(f"{what} has offset {offset}, not a multiple of {alignment}")
    return kind, shape[::-1], offset, math.prod(shape) // block * block_bytes
