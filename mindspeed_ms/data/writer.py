"""The rows of one bucket in one segment, on disk twice: as a MindRecord shard, and as a block for memory mapping."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from mindspeed_ms.data.files import describe, disk_errors, sync_folder
from mindspeed_ms.data.manifest import Shard


def bucket_folder(length: int) -> str:
    """The name of a bucket's folder in a set."""
    return f"bucket-{length:05d}"


def write_shard_files(
    out: Path,
    work: Path,
    number: int,
    widths: dict[str, int],
    rows: int,
    pieces: Callable[[], Iterator[dict[str, np.ndarray]]],
    most_bytes: int,
) -> Shard:
    """Write and flush shard `number` of a bucket in the folder `work`, then move its files to their places in `out`.

    widths: entries of a row, by column in order; the first is the bucket's length. pieces: makes the rows anew, int32
    [n, width] by column. most_bytes: of the rows of any shard of this bucket. Raises DataError.
    """
    from mindspeed_ms.data.mindrecord import write_shard

    folder = out / bucket_folder(next(iter(widths.values())))
    record = work / f"{number:05d}.mindrecord"
    block = work / f"{number:05d}.block"
    names = [record.name, f"{record.name}.db", block.name]
    with disk_errors(out):
        folder.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        for name in names:
            (work / name).unlink(missing_ok=True)  # what a killed run left
    write_shard(record, widths, pieces(), most_bytes)
    write_block(block, widths, rows, pieces())
    with disk_errors(out):
        for name in names:
            os.replace(work / name, folder / name)
        sync_folder(folder)
        record, index, block = (folder / name for name in names)
        return Shard(
            rows=rows, mindrecord=describe(out, record), index=describe(out, index), block=describe(out, block)
        )


def write_block(path: Path, widths: dict[str, int], rows: int, pieces: Iterator[dict[str, np.ndarray]]) -> None:
    """Write the columns one after another as raw little-endian int32 [rows, width], flushed. Raises DataError."""
    starts = np.cumsum([0, *(4 * rows * width for width in widths.values())])
    with disk_errors(path), open(path, "wb") as file:
        done = 0
        for piece in pieces:
            for start, (name, width) in zip(starts, widths.items(), strict=False):
                file.seek(int(start) + 4 * done * width)
                file.write(np.ascontiguousarray(piece[name], dtype="<i4").data)
            done += len(next(iter(piece.values())))
        file.flush()
        os.fsync(file.fileno())
