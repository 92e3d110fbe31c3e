"""TensorBoard event files: scalars by step, in TensorBoard's own format and without its libraries.

A file is a sequence of TFRecords: the length of the record (uint64, little endian), the masked CRC-32C of those eight
bytes, the record, the masked CRC-32C of the record. A record is an `Event` of tensorflow/core/util/event.proto in
protobuf's wire format.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from mindspeed_ms.errors import TrainError
from mindspeed_ms.weights.wire import header, number_field

_VERSION = b"brain.Event:2"  # from 2 on a reader forgets what a START event says is done again
_SESSION_START = 1
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class EventWriter:
    """Appends scalars to a new event file in a folder, which may hold files of earlier parts of the same run.

    first_step: of this part; TensorBoard then forgets what earlier files say of that step and later ones.
    Raises TrainError when the file cannot be written; what was written before stays readable.
    """

    def __init__(self, folder: str | Path, first_step: int | None = None) -> None:
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a folder by the order of their names, so a later one has a later name.
            numbers = [int(found[1]) for path in folder.iterdir() if (found := _NAME.match(path.name))]
            number = max([int(time.time()), *(number + 1 for number in numbers)])
            self.path = folder / f"events.out.tfevents.{number:010d}.mindspeed-ms"
            self._file = open(self.path, "xb", buffering=0)
        except OSError as error:
            raise TrainError(
                f"{folder}: no event file can be made there ({error.strerror}); give a folder that can be written"
            ) from None
        self._size = 0
        self._write(_event(time.time(), 0, _bytes(3, _VERSION)))
        if first_step is not None:
            self._write(_event(time.time(), first_step, _bytes(7, number_field(1, _SESSION_START))))

    def scalars(self, step: int, values: Mapping[str, float], wall_time: float | None = None) -> None:
        """Record values by tag at a step; they are kept as float32, infinities and NaN included. Raises TrainError."""
        summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_event(time.time() if wall_time is None else wall_time, step, _bytes(5, summary)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, event: bytes) -> None:
        data = _record(event)
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.truncate(self._size)  # a torn record would hide all that come after it
            self._file.seek(self._size)
            raise TrainError(
                f"{self.path}: cannot be written ({error.strerror}); make room and resume the run"
            ) from None
        self._size += len(data)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """The checksum that a record carries: a CRC of data that hold a CRC would be weak, so it is rotated and shifted."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli, RFC 3720) of data."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


_TABLE = _table()


def _event(wall_time: float, step: int, what: bytes) -> bytes:
    return _key(1, 1) + struct.pack("<d", wall_time) + number_field(2, step) + what


def _key(field: int, wire_type: int) -> bytes:
    return bytes([field << 3 | wire_type])


def _bytes(field: int, data: bytes) -> bytes:
    return header(field, len(data)) + data


def _float(field: int, value: float) -> bytes:
    try:
        return _key(field, 5) + struct.pack("<f", value)
    except OverflowError:  # a number that float32 cannot hold
        return _key(field, 5) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))
