"""Writing a directory of weights that is either complete or not there: temporary name, fsync, rename."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.paths import partial_path, remove_abandoned

_DTYPES = {"uint8": "U8", "int8": "I8", "float16": "F16", "float32": "F32"}
_SPARE_BYTES = 16 << 20  # a file system with less than this left is as good as full


@contextmanager
def atomic_directory(out: str | Path, nbytes: int) -> Iterator[Path]:
    """Gives a temporary directory that becomes `out` when the block ends well and vanishes when it does not.

    `nbytes` is what will be written. Raises WeightsError when `out` exists, cannot be made, or the disk is too full.
    """
    out = Path(os.path.abspath(out))
    if os.path.lexists(out):
        raise WeightsError(f"{out}: exists already, expected a new path; choose another or remove it first")
    temporary = partial_path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out)
        require_space(out.parent, nbytes)
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process of the same number that was killed
        temporary.mkdir()
        yield temporary
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        os.rename(temporary, out)
        _sync(out.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and os.path.lexists(out):
            raise WeightsError(f"{out}: was made by another process meanwhile; use that, or remove it first") from None
        raise WeightsError(f"{out}: cannot be written: {describe_os_error(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def describe_os_error(error: OSError) -> str:
    """What a failed write means to the user, with what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space or choose another place"
    return f"{error.strerror or error}; choose a place you may write to"


def require_space(folder: str | Path, nbytes: int) -> None:
    """Raises WeightsError when the file system of `folder` has not `nbytes` and a little more left."""
    free = shutil.disk_usage(folder).free
    if free < nbytes + _SPARE_BYTES:
        raise WeightsError(
            f"{folder}: {free / 1e6:.0f} MB free, expected {(nbytes + _SPARE_BYTES) / 1e6:.0f} MB; "
            "free some space or choose another disk"
        )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object) -> None:
    """Indented UTF-8 JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class SafetensorsWriter:
    """One safetensors file written tensor by tensor: no second copy of the model, the header filled in at the end.

    A QuantTensor of X.weight is stored as X.qweight, X.scales and, when asymmetric, X.mins.
    """

    def __init__(self, path: Path, names: int, metadata: dict[str, str] | None = None) -> None:
        """`names`: how many weights will follow at most; the header's room is taken from it."""
        self._entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
        self._room = 4096 + 3 * 320 * names
        self._offset = 0
        self._file = path.open("wb")
        self._file.write(b" " * (8 + self._room))

    def add(self, name: str, value: "np.ndarray | QuantTensor") -> None:
        """Appends one weight: float arrays as they are, quantized ones in their parts."""
        if isinstance(value, QuantTensor):
            stem = name.removesuffix("weight")
            self._append(stem + "qweight", value.q)
            self._append(stem + "scales", value.scales)
            if value.mins is not None:
                self._append(stem + "mins", value.mins)
        else:
            self._append(name, value)

    def _append(self, name: str, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array)
        end = self._offset + data.nbytes
        self._entries[name] = {
            "dtype": _DTYPES[data.dtype.name],
            "shape": list(data.shape),
            "data_offsets": [self._offset, end],
        }
        # not tofile: that hides why a write failed
        self._file.write(data.reshape(-1).view(np.uint8).data)
        self._offset = end

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                header = json.dumps(self._entries, separators=(",", ":")).encode()
                if len(header) > self._room:
                    raise WeightsError(
                        f"{self._file.name}: header of {len(header)} bytes, expected {self._room} at most"
                    )
                self._file.seek(0)
                self._file.write(struct.pack("<Q", self._room) + header)
        finally:
            self._file.close()
