"""Tensors of the protocol to and from NumPy and strings, with every size checked before memory is taken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindspeed_ms.errors import RequestError
from mindspeed_ms.serving.api.protocol import DATA_TYPES

_STRING, _BYTES = DATA_TYPES.index("MS_STRING"), DATA_TYPES.index("MS_BYTES")
_NUMBERS = {
    DATA_TYPES.index("MS_" + name.upper()): np.dtype(name).newbyteorder("<")
    for name in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
}
_CODES = {dtype: code for code, dtype in _NUMBERS.items()}
_MAX_DIMS = 8

Value = np.ndarray[Any, Any] | list[str]


def read(name: str, tensor: Any) -> Value:
    """A tensor as a NumPy array, or as a list of strings (bytes must be UTF-8); RequestError names the item."""
    if tensor.HasField("shm_data"):
        raise RequestError(f"{name}: shared memory: expected the data in the message")
    shape = list(tensor.shape.dims)
    if len(shape) > _MAX_DIMS or any(d < 0 for d in shape):
        raise RequestError(f"{name}: shape {shape[:_MAX_DIMS]}: expected at most {_MAX_DIMS} dimensions, none negative")
    count = math.prod(shape)
    if tensor.dtype in (_STRING, _BYTES):
        if len(tensor.bytes_val) != count:
            raise RequestError(f"{name}: shape {shape} with {len(tensor.bytes_val)} strings: expected {count}")
        try:
            return [value.decode() for value in tensor.bytes_val]
        except UnicodeDecodeError as error:
            raise RequestError(f"{name}: byte {error.start} is not UTF-8: expected UTF-8 text") from error
    dtype = _NUMBERS.get(tensor.dtype)
    if dtype is None:
        raise RequestError(f"{name}: data type {tensor.dtype}: expected one of ms_service.proto's DataType")
    if len(tensor.data) != count * dtype.itemsize:
        need = count * dtype.itemsize
        raise RequestError(f"{name}: {len(tensor.data)} bytes for {dtype} {shape}: expected {need}")
    if math.prod(d or 1 for d in shape) >= 1 << 48:  # NumPy multiplies them so, even where one of them is 0
        raise RequestError(f"{name}: shape {shape}: expected sizes that an array can have")
    return np.frombuffer(tensor.data, dtype).reshape(shape)


def write(tensor: Any, value: str | np.ndarray[Any, Any]) -> None:
    """Fill an empty tensor message."""
    if isinstance(value, str):
        tensor.dtype = _STRING
        tensor.shape.dims.append(1)
        tensor.bytes_val.append(value.encode())
        return
    tensor.dtype = _CODES[value.dtype.newbyteorder("<")]
    tensor.shape.dims.extend(value.shape)
    tensor.data = value.astype(value.dtype.newbyteorder("<"), order="C").tobytes()
