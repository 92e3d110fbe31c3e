"""MindSpore's .ckpt files, without MindSpore: protobuf records of a name, sizes, type and bytes, read by memory map.

    message Checkpoint  { repeated Value value = 1; }
    message Value       { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3; }
    message TensorProto { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }

A tensor of more than 512 MiB lies in several values, one after another, of the same tag. After the message there may be
"crc_num" and 10 bytes, big-endian: the CRC-32 of all before it.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.weights.safetensors_file import map_file, widen_bfloat16
from mindspeed_ms.weights.wire import BYTES, Span, fields, varints

DTYPES = {
    "Float32": "<f4",
    "Float16": "<f2",
    "BFloat16": "<u2",
    "Float64": "<f8",
    "Int8": "i1",
    "Int16": "<i2",
    "Int32": "<i4",
    "Int64": "<i8",
    "UInt8": "u1",
    "UInt16": "<u2",
    "UInt32": "<u4",
    "UInt64": "<u8",
    "Bool": "?",
}
_CRC_MARK = b"crc_num"
_CRC_BYTES = len(_CRC_MARK) + 10
_CRC_STEP = 16 << 20
_MOST_NAME = 1000


@dataclass(frozen=True)
class CkptTensor:
    """One entry: MindSpore's name of the type ("Float32", or "str" for a text), sizes, and where its pieces lie."""

    type: str
    shape: tuple[int, ...]
    pieces: tuple[Span, ...]


class CkptFile:
    """One memory-mapped .ckpt file; `tensors` and `texts` by name, in the file's order.

    Raises WeightsError when it cannot be read, is truncated or encrypted, its CRC-32 is wrong or its sizes lie.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        self.tensors: dict[str, CkptTensor] = {}
        self.texts: dict[str, str] = {}
        end = self._checked_end()
        try:
            self._read(end)
        except ValueError as error:
            raise WeightsError(
                f"{path}: {error}; it is no .ckpt of MindSpore, is encrypted, or is damaged: save it again"
            ) from None

    def get(self, name: str) -> np.ndarray:
        """The tensor, read-only, a view of the file where it lies in one piece; bfloat16 becomes float32."""
        array = self.stored(name)
        return widen_bfloat16(array) if self.tensors[name].type == "BFloat16" else array

    def stored(self, name: str) -> np.ndarray:
        """As `get`, but bfloat16 stays its 16 bits, as uint16."""
        tensor = self.tensors[name]
        dtype = np.dtype(DTYPES[tensor.type])
        if len(tensor.pieces) == 1:
            begin, end = tensor.pieces[0]
            array = np.frombuffer(self._map, dtype, (end - begin) // dtype.itemsize, begin).reshape(tensor.shape)
            return array if array.flags.aligned else _frozen(array.copy())
        whole = np.empty(math.prod(tensor.shape) * dtype.itemsize, np.uint8)
        at = 0
        for begin, end in tensor.pieces:
            whole[at : at + end - begin] = np.frombuffer(self._map, np.uint8, end - begin, begin)
            at += end - begin
        return _frozen(whole.view(dtype).reshape(tensor.shape))

    def _checked_end(self) -> int:
        """Where the message ends; a CRC-32 behind it is checked."""
        size = len(self._map)
        end = size - _CRC_BYTES
        if end < 0 or self._map[end : end + len(_CRC_MARK)] != _CRC_MARK:
            return size
        wanted = int.from_bytes(self._map[end + len(_CRC_MARK) :], "big")
        found = 0
        view = memoryview(self._map)
        for begin in range(0, end, _CRC_STEP):
            found = binascii.crc32(view[begin : min(begin + _CRC_STEP, end)], found)
        if found != wanted:
            raise WeightsError(
                f"{self.path}: CRC-32 is {found}, but the file says {wanted}; it is damaged: copy or save it again"
            )
        return end

    def _read(self, end: int) -> None:
        """All records; raises ValueError for what does not add up."""
        name: str | None = None
        parts: list[Span] = []
        kind = ""
        shape: tuple[int, ...] = ()
        for tag, tensor_type, dims, content in self._values(end):
            if tag != name:
                if name is not None:
                    self._add(name, kind, shape, parts)
                name, kind, shape, parts = tag, tensor_type, dims, []
            elif (tensor_type, dims) != (kind, shape):
                raise ValueError(f"the pieces of tensor {tag[:200]!r} differ in type or sizes")
            parts.append(content)
        if name is None:
            raise ValueError("holds no tensor")
        self._add(name, kind, shape, parts)

    def _values(self, end: int) -> Iterator[tuple[str, str, tuple[int, ...], Span]]:
        for number, wire, value in fields(self._map, (0, end)):
            if number != 1 or wire != BYTES:
                raise ValueError(f"holds field {number} of wire type {wire}, expected values only")
            tag, tensor = None, None
            for inner, wire, span in fields(self._map, _span(value)):
                if inner == 1 and wire == BYTES:
                    tag = self._text(_span(span))
                elif inner == 2 and wire == BYTES:
                    tensor = _span(span)
                elif inner == 3:
                    raise ValueError(f"{tag!r} is a map parameter (a hash table), which is not supported")
            if tag is None or tensor is None:
                raise ValueError("holds a value without name or without tensor")
            yield tag, *self._tensor(tag, tensor)

    def _tensor(self, tag: str, span: Span) -> tuple[str, tuple[int, ...], Span]:
        dims: list[int] = []
        kind, content = None, None
        for number, wire, value in fields(self._map, span):
            if number == 1:
                dims += [value] if isinstance(value, int) else varints(self._map, value)
            elif number == 2 and wire == BYTES:
                kind = self._text(_span(value))
            elif number == 3 and wire == BYTES:
                content = _span(value)
        if kind is None or content is None:
            raise ValueError(f"tensor {tag[:200]!r} has no type or no content")
        if len(dims) > 8 or any(not 0 <= size < 1 << 63 for size in dims):
            raise ValueError(f"tensor {tag[:200]!r} has sizes {str(dims)[:100]}, expected at most 8, none negative")
        return kind, tuple(dims), content

    def _text(self, span: Span) -> str:
        if span[1] - span[0] > _MOST_NAME:
            raise ValueError(f"holds a name of {span[1] - span[0]} bytes, expected at most {_MOST_NAME}")
        return self._map[span[0] : span[1]].decode("utf-8")  # UnicodeDecodeError is a ValueError

    def _add(self, name: str, kind: str, shape: tuple[int, ...], parts: list[Span]) -> None:
        if name in self.tensors or name in self.texts:
            raise ValueError(f"tensor {name[:200]!r} is there twice")
        size = sum(end - begin for begin, end in parts)
        if kind == "str":
            data = b"".join(self._map[begin:end] for begin, end in parts)
            self.texts[name] = data.decode("utf-32-le").rstrip("\0")
            return
        if kind not in DTYPES:
            raise ValueError(f"tensor {name[:200]!r} has type {kind[:60]!r}, expected one of {', '.join(DTYPES)}")
        item = np.dtype(DTYPES[kind]).itemsize
        if shape == (0,) and size == item:  # so MindSpore of old wrote a scalar
            shape = ()
        if size != math.prod(shape) * item:
            raise ValueError(
                f"tensor {name[:200]!r} has {size} bytes, but {kind} {list(shape)} takes {math.prod(shape) * item}"
            )
        self.tensors[name] = CkptTensor(kind, shape, tuple(parts))


def _span(value: int | Span) -> Span:
    if isinstance(value, int):
        raise ValueError("holds a number where a message was expected")
    return value


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
