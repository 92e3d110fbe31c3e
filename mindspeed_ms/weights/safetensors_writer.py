"""Writes a safetensors file one tensor at a time, so that a model larger than the memory can pass through."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspeed_ms.weights.safetensors_file import DTYPES

NAMES = {np.dtype(code): name for name, code in DTYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class Source:
    """A tensor that is written: "F32", "BF16" (its bits, as uint16) and so on, its sizes, and how it is read."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def of_array(array: np.ndarray) -> Source:
    """A tensor that is in memory. Raises KeyError for a type that the format has not."""
    return Source(NAMES[array.dtype], array.shape, lambda: array)


def write_safetensors(path: Path, tensors: Mapping[str, Source], metadata: Mapping[str, str] | None = None) -> int:
    """Write a new file, largest items first as the format's own library does; returns its bytes. Raises OSError."""
    order: Sequence[str] = sorted(tensors, key=lambda name: (-DTYPES[tensors[name].dtype].itemsize, name))
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in order:
            tensor = tensors[name]
            array = np.ascontiguousarray(tensor.read())
            if array.shape != tensor.shape or array.dtype != DTYPES[tensor.dtype]:
                raise ValueError(f"tensor {name!r} is {array.dtype} {array.shape}, expected {tensor.dtype}")
            file.write(array.reshape(-1).view(np.uint8).data)
    return 8 + len(header) + offset
