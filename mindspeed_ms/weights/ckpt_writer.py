"""Writes .ckpt files that `mindspore.load_checkpoint` reads; the format stands in ckpt.py."""

from __future__ import annotations

import binascii
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mindspeed_ms.weights.ckpt import DTYPES
from mindspeed_ms.weights.wire import field, header, number_field

_SLICE = 512 << 20  # of MindSpore: more bytes than this are several values
_NAMES = {
    np.dtype(code): name
    for name, code in DTYPES.items()
    if name != "BFloat16"  # its bits are uint16: the caller says when they are meant
}
TEXT = "str"
Entry = tuple[str, str | None, tuple[int, ...], Callable[[], np.ndarray]]


def text_entry(name: str, text: str) -> Entry:
    """A text beside the tensors, as MindSpore's append_dict writes it."""
    return name, TEXT, (0,), lambda: np.frombuffer(text.encode("utf-32-le"), np.uint8)


def write_ckpt(path: Path, entries: Iterable[Entry], *, crc: bool = True) -> int:
    """Write tensors (name, MindSpore's type or None for that of the array, sizes, array when called) into a new file.

    One tensor is in memory at a time. crc: append the CRC-32, which MindSpore compares when it is asked to.
    Returns the bytes written; raises OSError, and ValueError for a type that the format has not.
    """
    checksum, total = 0, 0
    with open(path, "xb") as file:

        def put(data: bytes | memoryview) -> None:
            nonlocal checksum, total
            file.write(data)
            total += len(data)
            if crc:
                checksum = binascii.crc32(data, checksum)

        for name, given, shape, read in entries:
            array = np.ascontiguousarray(read())
            kind = given or _NAMES.get(array.dtype.newbyteorder("<"))
            if kind not in (*DTYPES, TEXT):
                raise ValueError(f"tensor {name!r} is {array.dtype}, which a .ckpt cannot hold")
            if array.dtype.byteorder == ">":
                array = array.astype(array.dtype.newbyteorder("<"))
            content = array.reshape(-1).view(np.uint8).data
            sizes = b"".join(number_field(1, size) for size in shape)
            step = _SLICE // array.dtype.itemsize * array.dtype.itemsize
            for begin in range(0, max(len(content), 1), step):
                piece = content[begin : begin + step]
                head = sizes + field(2, kind.encode()) + header(3, len(piece))
                tag = field(1, name.encode())
                inner = header(2, len(head) + len(piece))
                put(header(1, len(tag) + len(inner) + len(head) + len(piece)) + tag + inner + head)
                put(piece)
        if crc:
            file.write(b"crc_num" + checksum.to_bytes(10, "big"))
            total += 17
        file.flush()
        os.fsync(file.fileno())
    return total
