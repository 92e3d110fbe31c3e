"""The tensors of a checkpoint as one safetensors file: written in one pass without a copy, read one at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from mindspeed_ms.errors import CheckpointError

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_PIECE = 16 << 20


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Write and sync a new file; returns its bytes and SHA-256. Raises OSError, and CheckpointError for a dtype.

    Largest items first, as the format's own library does, so that every tensor is aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        array = tensors[name]
        if array.dtype.name not in _DTYPES:
            raise CheckpointError(f"{path}: tensor {name!r} is {array.dtype}, expected one of {', '.join(_DTYPES)}")
        entries[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.sha256()
    with open(path, "xb", buffering=0) as file:
        views = (_bytes(tensors[name]) for name in order)
        for view in (memoryview(len(header).to_bytes(8, "little") + header), *views):
            for start in range(0, len(view), _PIECE):  # in pieces: a piece is hashed while the cache holds it
                piece = view[start : start + _PIECE]
                digest.update(piece)
                _write_all(file.fileno(), piece)
        os.fsync(file.fileno())
    return 8 + len(header) + offset, digest.hexdigest()


class TensorFile(Mapping[str, np.ndarray]):
    """A file's tensors by name, each read when it is asked for. Raises CheckpointError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(path, framework="numpy")
            self._names = list(self._file.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: is no safetensors file ({error}); the checkpoint is damaged") from None

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            array: np.ndarray = self._file.get_tensor(name)
        except SafetensorError:
            raise KeyError(name) from None
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_all(handle: int, data: memoryview) -> None:
    while data:
        data = data[os.write(handle, data) :]
