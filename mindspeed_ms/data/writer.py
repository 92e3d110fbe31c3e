"""The rows of a plan on disk twice, as MindRecord shards and as blocks for memory mapping; the manifest last of all."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindspeed_ms import __version__
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.arrange import Layout
from mindspeed_ms.data.arrange import rows as rows_of
from mindspeed_ms.data.files import describe, disk_errors, sync_folder, verify, write_atomic
from mindspeed_ms.data.manifest import Manifest, Shard, write_manifest
from mindspeed_ms.data.plan import Plan, Totals, load_layouts
from mindspeed_ms.data.segments import Segment
from mindspeed_ms.errors import DataError, MindSpeedError

if TYPE_CHECKING:
    from mindspeed_ms.data.tokenizer import DataTokenizer


def write_set(
    out: Path,
    work: Path,
    segments: list[Segment],
    plan: Plan,
    config: PrepareConfig,
    pad_id: int,
    tell: Callable[[str, int, int | None, str], None],
) -> list[list[Shard]]:
    """Write the shards that an earlier run has not written; returns those of each bucket. Raises DataError."""
    with_loss = config.read.messages_key is not None
    notes = work / "written"
    if not notes.exists():
        _check_room(out, plan, with_loss)
    with disk_errors(work):
        notes.mkdir(exist_ok=True)
    shards: list[list[Shard]] = [[] for _ in plan.buckets]
    written = 0
    tell("write", 0, plan.rows, "rows")
    for segment in segments:
        laid = load_layouts(work / "plan", segment, plan.layouts[segment.number])
        note = notes / f"{segment.number:05d}.json"
        found = _written(out, note, laid)
        if found is None:
            found = []
            for bucket, layout in zip(plan.buckets, laid, strict=True):
                found.append(_write_one(out, work, segment, bucket, layout, pad_id, with_loss))
                tell("write", written + sum(entry.rows for entry in found if entry), plan.rows, "rows")
            write_atomic(note, json.dumps([entry and entry.model_dump(mode="json") for entry in found]).encode())
        for entries, entry in zip(shards, found, strict=True):
            entries += [entry] if entry else []
        written += sum(entry.rows for entry in found if entry)
        tell("write", written, plan.rows, "rows")
    return shards


def widths(length: int, ends: int, with_loss: bool) -> dict[str, int]:
    """Entries of a row, by column in the order of a block."""
    return {"input_ids": length, "document_ends": ends, **({"loss_mask": length} if with_loss else {})}


def finish_set(
    out: Path,
    plan: Plan,
    shards: list[list[Shard]],
    names: list[str],
    corpus: str,
    config: PrepareConfig,
    tokenizer: DataTokenizer,
) -> Manifest:
    """Write the tokenizer and the manifest; corpus: the hash of the input files. Raises DataError."""
    write_atomic(out / "tokenizer.json", tokenizer.json)
    tokens = sum(bucket.tokens for bucket in plan.buckets)
    places = sum(bucket.rows * bucket.length for bucket in plan.buckets)
    values = {
        "made_by": f"mindspeed-ms {__version__}",
        "config": config.model_dump(mode="json"),
        "corpus": corpus,
        "columns": list(widths(1, 1, config.read.messages_key is not None)),
        "tokenizer": {
            "file": describe(out, out / "tokenizer.json").model_dump(),
            "vocab_size": tokenizer.vocab_size,
            "pad_id": tokenizer.pad_id,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
            "identity": tokenizer.identity,
        },
        "documents": plan.documents,
        "tokens": tokens,
        "rows": plan.rows,
        "padding_share": 1 - tokens / places,
        "cleaning": plan.cleaning,
        "sources": [{"name": name, **counts} for name, counts in zip(names, plan.sources, strict=True)],
        "lengths": plan.lengths,
        "buckets": [
            {
                "length": bucket.length,
                "ends": bucket.ends,
                "rows": bucket.rows,
                "documents": bucket.documents,
                "tokens": bucket.tokens,
                "shards": [shard.model_dump(mode="json") for shard in parts],
            }
            for bucket, parts in zip(plan.buckets, shards, strict=True)
        ],
    }
    return write_manifest(out, values)


def _written(out: Path, note: Path, laid: list[Layout]) -> list[Shard | None] | None:
    """The shards that an earlier run has noted, if all of them are there as they were written."""
    try:
        found = [entry and Shard.parse(entry, where=str(note)) for entry in json.loads(note.read_bytes())]
        if [entry.rows if entry else 0 for entry in found] != [len(layout.per_row) for layout in laid]:
            return None
        verify(out, [file for entry in found if entry for file in (entry.mindrecord, entry.index, entry.block)])
    except (OSError, ValueError, TypeError, MindSpeedError):
        return None  # none yet, or something has happened to them: they are written anew
    return found


def _write_one(
    out: Path, work: Path, segment: Segment, bucket: Totals, layout: Layout, pad_id: int, with_loss: bool
) -> Shard | None:
    if not len(layout.per_row):
        return None
    columns = widths(bucket.length, bucket.ends, with_loss)
    loss = segment.array("loss") if with_loss else None
    make = functools.partial(rows_of, layout, bucket.length, bucket.ends, pad_id, segment.array("tokens"), loss)
    most = 4 * bucket.most_rows * sum(columns.values())
    return write_shard_files(out, work / "shard", segment.number, columns, len(layout.per_row), make, most)


def _check_room(out: Path, plan: Plan, with_loss: bool) -> None:
    """Blocks have a known size; MindRecord files, which pack small numbers, are about half as large."""
    rows = ((bucket.rows, widths(bucket.length, bucket.ends, with_loss)) for bucket in plan.buckets)
    needed = sum(6 * count * sum(columns.values()) for count, columns in rows)
    with disk_errors(out):
        free = shutil.disk_usage(out).free
    if free < needed:
        raise DataError(
            f"{out}: the set needs about {needed >> 20} MiB, the disk has {free >> 20} MiB free; make room and run "
            "the same command again"
        )


def bucket_folder(length: int) -> str:
    """The name of a bucket's folder in a set."""
    return f"bucket-{length:05d}"


def write_shard_files(
    out: Path,
    work: Path,
    number: int,
    columns: dict[str, int],
    rows: int,
    pieces: Callable[[], Iterator[dict[str, np.ndarray]]],
    most_bytes: int,
) -> Shard:
    """Write and flush shard `number` of a bucket in the folder `work`, then move its files to their places in `out`.

    columns: entries of a row, by column in order; the first is the bucket's length. pieces: makes the rows anew, int32
    [n, width] by column. most_bytes: of the rows of any shard of this bucket. Raises DataError.
    """
    from mindspeed_ms.data.mindrecord import write_shard

    folder = out / bucket_folder(next(iter(columns.values())))
    record = work / f"{number:05d}.mindrecord"
    block = work / f"{number:05d}.block"
    names = [record.name, f"{record.name}.db", block.name]
    with disk_errors(out):
        folder.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        for name in names:
            (work / name).unlink(missing_ok=True)  # what a killed run left
    write_shard(record, columns, pieces(), most_bytes)
    write_block(block, columns, rows, pieces())
    with disk_errors(out):
        for name in names:
            os.replace(work / name, folder / name)
        sync_folder(folder)
        record, index, block = (folder / name for name in names)
        return Shard(
            rows=rows, mindrecord=describe(out, record), index=describe(out, index), block=describe(out, block)
        )


def write_block(path: Path, columns: dict[str, int], rows: int, pieces: Iterator[dict[str, np.ndarray]]) -> None:
    """Write the columns one after another as raw little-endian int32 [rows, width], flushed. Raises DataError."""
    starts = np.cumsum([0, *(4 * rows * width for width in columns.values())])
    with disk_errors(path), open(path, "wb") as file:
        done = 0
        for piece in pieces:
            for start, (name, width) in zip(starts, columns.items(), strict=False):
                file.seek(int(start) + 4 * done * width)
                file.write(np.ascontiguousarray(piece[name], dtype="<i4").data)
            done += len(next(iter(piece.values())))
        file.flush()
        os.fsync(file.fileno())
