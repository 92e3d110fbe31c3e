"""A safetensors file read by view: the header is checked to the byte before any offset in it is trusted.

Layout: 8 bytes little-endian header length N, N bytes of JSON, then the data. Tensors cover the data without holes.
"""

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.paths import open_regular

MAX_HEADER = 100_000_000
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


class SafetensorsFile:
    """One memory-mapped safetensors file.

    `tensors` maps a name to (dtype, shape, start, stop), byte positions from the start of the file; `metadata` is the
    texts that the file has beside them.
    Raises WeightsError when the file cannot be read, is truncated, or its header lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        self.tensors, self.metadata = _read_header(self._map, str(path))

    def dtype(self, name: str) -> str:
        return self.tensors[name][0]

    def get(self, name: str) -> np.ndarray:
        """The tensor as a read-only view; bfloat16 becomes a float32 copy."""
        array = self.stored(name)
        return widen_bfloat16(array) if self.tensors[name][0] == "BF16" else array

    def stored(self, name: str) -> np.ndarray:
        """As `get`, but bfloat16 stays its 16 bits, as uint16."""
        dtype, shape, start, _ = self.tensors[name]
        array = np.frombuffer(self._map, DTYPES[dtype], math.prod(shape), start).reshape(shape)
        return array if array.flags.aligned else array.copy()


def map_file(path: Path) -> mmap.mmap:
    """Map a file read-only; raises WeightsError when it is absent, unreadable or empty."""
    try:
        with open_regular(path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; a download may be incomplete") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise WeightsError(f"{path}: is empty; download it again") from None


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """uint16 bit patterns of bfloat16 -> float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


Tensors = dict[str, tuple[str, tuple[int, ...], int, int]]


def _read_header(data: mmap.mmap, where: str) -> tuple[Tensors, dict[str, str]]:
    size = len(data)
    length = int.from_bytes(data[:8], "little")
    if size < 8 or length > min(size - 8, MAX_HEADER):
        raise WeightsError(f"{where}: header length {length} in a file of {size} bytes; truncated or no safetensors")
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):  # ValueError covers bad JSON, bad UTF-8, duplicates and absurd integers
        raise WeightsError(f"{where}: the header is not valid JSON; the file is damaged or no safetensors") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{where}: the header is no JSON object; the file is damaged or no safetensors")
    given = header.pop("__metadata__", None)
    texts = {key: text for key, text in given.items() if isinstance(text, str)} if isinstance(given, dict) else {}
    begin = 8 + length
    tensors = {name: _entry(name, entry, size - begin, where) for name, entry in header.items()}
    position = 0
    for name, (_, _, start, stop) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if start != position:
            raise WeightsError(
                f"{where}: tensor {name!r} starts at byte {start} of the data, expected {position}: "
                f"it {'overlaps another' if start < position else 'leaves a hole'}"
            )
        position = stop
    if position != size - begin:
        raise WeightsError(f"{where}: {size - begin} bytes of data, but the tensors cover {position}")
    placed = {n: (dtype, shape, begin + start, begin + stop) for n, (dtype, shape, start, stop) in tensors.items()}
    return placed, texts


def _entry(name: str, entry: Any, room: int, where: str) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{where}: tensor {name[:200]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WeightsError(f"{where}: dtype {dtype!r} is not supported, expected one of {', '.join(DTYPES)}")
    if not _sizes(shape) or len(shape) > 8:
        raise WeightsError(f"{where}: shape {str(shape)[:100]} is not a list of at most 8 sizes")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(f"{where}: data_offsets {str(offsets)[:100]} is not [start, stop]")
    if offsets[1] > room:
        raise WeightsError(f"{where}: ends at byte {offsets[1]} of {room}; the file is truncated, download it again")
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != expected:
        raise WeightsError(f"{where}: {offsets[1] - offsets[0]} bytes, but {dtype} {shape} takes {expected}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result
