"""MindRecord shards: written once, and read back where a block is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import mindspore.dataset as dataset
import numpy as np
from mindspore.mindrecord import FileWriter

from mindspeed_ms.data.files import disk_errors, sync_file
from mindspeed_ms.errors import DataError

_HEADER = 1 << 18  # MindRecord's own 16 MiB would be most of a small shard
_PAGE = 1 << 20
_LARGEST_PAGE = 1 << 28
_BATCH = 1024


def write_shard(path: Path, widths: dict[str, int], pieces: Iterable[dict[str, np.ndarray]], most_bytes: int) -> None:
    """Write rows as a MindRecord file and its index (`path` + .db), both flushed to the disk.

    widths: entries of each column's rows, all int32. pieces: int32 [rows, width] by column. most_bytes: of the rows of
    any shard of this bucket: MindDataset takes files with the same page size only. Raises DataError.
    """
    page = _page_bytes(4 * sum(widths.values()), most_bytes)
    with disk_errors(path):
        try:
            writer = FileWriter(str(path), shard_num=1)
            writer.set_header_size(_HEADER)
            writer.set_page_size(page)
            writer.add_schema({name: {"type": "int32", "shape": [width]} for name, width in widths.items()}, "tokens")
            for piece in pieces:
                names, columns = list(piece), [list(array) for array in piece.values()]
                writer.write_raw_data([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
            writer.commit()
        except RuntimeError as error:
            line = next((text for text in str(error).splitlines() if text.startswith("[ERROR]")), str(error))
            raise DataError(f"{path}: MindRecord could not be written ({line.strip()}); run the same again") from error
        for file in (path, path.with_name(path.name + ".db")):
            os.chmod(file, 0o666 & ~_umask())  # MindRecord gives it to its owner alone
            sync_file(file)


def read_rows(path: Path, columns: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """The rows of a shard in their order, as int32 [rows, width] by column. Raises DataError."""
    try:
        rows = dataset.MindDataset(str(path), columns_list=columns, shuffle=False, num_parallel_workers=1)
        batches = rows.batch(_BATCH).create_dict_iterator(num_epochs=1, output_numpy=True)
        yield from batches
    except RuntimeError as error:
        line = next((text for text in str(error).splitlines() if text.startswith("[ERROR]")), str(error))
        raise DataError(f"{path}: MindRecord cannot be read ({line.strip()}); prepare the set again") from None


def _page_bytes(row: int, most: int) -> int:
    """A power of two that holds a row, and not so small that the header could not list a shard's pages."""
    page = _PAGE
    while page < max(2 * row, most // 256):
        page *= 2
    if page > _LARGEST_PAGE:
        raise DataError(f"rows of {row} bytes: expected {_LARGEST_PAGE // 2} at most, for MindRecord's pages")
    return page


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
