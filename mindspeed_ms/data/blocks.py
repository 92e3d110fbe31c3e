"""The token blocks of a set: its rows as plain arrays, mapped into memory.

A block holds a shard's columns one after another, each little-endian int32 [rows, width], without any header: what is
where follows from the manifest. A missing block is made again of its MindRecord shard, to the byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspeed_ms.data.files import disk_errors, locate, sha256, sync_folder
from mindspeed_ms.data.files import verify as verify_files
from mindspeed_ms.data.manifest import Bucket, Manifest, Shard, read_manifest
from mindspeed_ms.data.writer import write_block
from mindspeed_ms.errors import DataError
from mindspeed_ms.paths import cache_dir, partial_path, remove_abandoned


@dataclass(frozen=True)
class Block:
    """One shard's rows: int32 [rows, width] by column, mapped from its file."""

    rows: int
    columns: dict[str, np.ndarray]


def column_widths(bucket: Bucket, columns: list[str]) -> dict[str, int]:
    """Entries a row of each stored column."""
    return {name: bucket.ends if name == "document_ends" else bucket.length for name in columns}


def open_blocks(folder: str | Path, manifest: Manifest, verify: bool = True) -> list[list[Block]]:
    """Map the blocks of each bucket, in the order of its shards; those that are missing are made first.

    verify: read all of them once and compare their SHA-256. Raises DataError that names the file.
    """
    folder = Path(folder)
    cached = _cached(manifest)
    where: dict[str, Path] = {}
    for bucket in manifest.buckets:
        for shard in bucket.shards:
            where[shard.block.path] = _find(folder, cached, shard) or _rebuild(folder, cached, manifest, bucket, shard)
    if verify:
        entries = [shard.block for bucket in manifest.buckets for shard in bucket.shards]
        with _curable():
            for root in (folder, cached):
                verify_files(root, [entry for entry in entries if where[entry.path] == root])
    blocks = [
        [_map(where[shard.block.path], manifest, bucket, shard) for shard in bucket.shards]
        for bucket in manifest.buckets
    ]
    if verify:
        for bucket, mapped in zip(manifest.buckets, blocks, strict=True):
            for shard, block in zip(bucket.shards, mapped, strict=True):
                _check_ends(folder / shard.block.path, block.columns["document_ends"], bucket.length)
    return blocks


def _check_ends(path: Path, ends: np.ndarray, length: int) -> None:
    """A set may come from anywhere, and whoever made it makes its checksums too."""
    if len(ends) and (ends[:, 0].min() < 1 or ends[:, -1].max() > length or (np.diff(ends, axis=1) < 0).any()):
        raise DataError(f"{path}: document_ends are no ascending ends within {length} tokens; prepare the set again")


def verify_set(folder: str | Path) -> Manifest:
    """Compare all files of a set with its manifest, by size and SHA-256; blocks, which can be rebuilt, may be missing.

    Raises DataError that names the first file that is damaged or missing.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    blocks = {shard.block.path for bucket in manifest.buckets for shard in bucket.shards}
    verify_files(folder, [e for e in manifest.files() if e.path not in blocks or os.path.lexists(folder / e.path)])
    return manifest


def _cached(manifest: Manifest) -> Path:
    """Where blocks of a set go whose own folder cannot be written."""
    return cache_dir() / "blocks" / manifest.checksum


def _find(folder: Path, cached: Path, shard: Shard) -> Path | None:
    """The folder that has a shard's block."""
    return next((root for root in (folder, cached) if os.path.lexists(root / shard.block.path)), None)


@contextlib.contextmanager
def _curable() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}, or delete this file: it is made again of the .mindrecord file beside it") from None


def _map(root: Path, manifest: Manifest, bucket: Bucket, shard: Shard) -> Block:
    with _curable():
        path = locate(root, shard.block)
    flat = np.zeros(0, "<i4")
    if shard.rows:  # nothing cannot be mapped
        try:
            # Copy on write: tensors know no read-only flag, and writing to a read-only page would end the process.
            flat = np.memmap(path, "<i4", "c").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be mapped into memory ({error}); expected a readable file") from None
    columns, first = {}, 0
    for name, width in column_widths(bucket, manifest.columns).items():
        columns[name] = flat[first : first + shard.rows * width].reshape(shard.rows, width)
        first += shard.rows * width
    return Block(shard.rows, columns)


def _rebuild(folder: Path, cached: Path, manifest: Manifest, bucket: Bucket, shard: Shard) -> Path:
    """Make a shard's block in the set's folder, or in the cache where that cannot be written; returns which."""
    record = locate(folder, shard.mindrecord)
    locate(folder, shard.index)
    root = folder if os.access(record.parent, os.W_OK) else cached
    target = root / shard.block.path
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(target.parent):
            if not target.exists():  # else another process has made it meanwhile
                remove_abandoned(target)
                _write(record, target, column_widths(bucket, manifest.columns), shard)
    return root


def _write(record: Path, target: Path, widths: dict[str, int], shard: Shard) -> None:
    from mindspeed_ms.data.mindrecord import read_rows

    partial = partial_path(target)
    try:
        write_block(partial, widths, shard.rows, read_rows(record, list(widths)))
        if sha256(partial) != shard.block.sha256:
            raise DataError(f"{record}: its rows are not those of the manifest; it is damaged: prepare the set again")
        os.replace(partial, target)
        sync_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The ranks of one machine start at once: let one make what is missing, and the others find it."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot: then each makes its own, and one stays
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
