"""Rows of a prepared set as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import tokenizers

from mindspeed_ms.data.blocks import column_widths
from mindspeed_ms.data.files import locate, verify
from mindspeed_ms.data.manifest import Bucket, Manifest, Shard
from mindspeed_ms.errors import DataError, TokenizerError


@dataclass(frozen=True)
class Part:
    """A stretch of a document; in conversations, whether it belongs to an answer, which is learnt."""

    text: str
    answer: bool | None


@dataclass(frozen=True)
class SampleDocument:
    """One document, or piece of one, in a row."""

    tokens: int
    parts: list[Part]


@dataclass(frozen=True)
class Sample:
    """One row as text, special tokens included."""

    length: int  # of the row, which names its bucket
    row: int  # its number in the bucket, from 0
    tokens: int
    documents: list[SampleDocument]


def draw_samples(folder: Path, manifest: Manifest, samples: int, seed: int) -> list[Sample]:
    """Rows drawn from all rows alike, in the order of the set. Raises DataError, TokenizerError."""
    if not samples or not manifest.rows:
        return []
    # The only file that is needed whole here, so it is always checked.
    verify(folder, [manifest.tokenizer.file])
    tokenizer = _open(folder, manifest)
    random = np.random.default_rng(seed)
    chosen = sorted(random.choice(manifest.rows, min(samples, manifest.rows), replace=False).tolist())
    return [_sample(folder, manifest, tokenizer, number) for number in chosen]


def read_pieces(folder: Path, manifest: Manifest, bucket: Bucket, shard: Shard) -> Iterator[dict[str, np.ndarray]]:
    """The rows of a shard in order: of its block, or of its MindRecord file where there is no block.

    Yields int32 [rows, width] by column. Raises DataError when a file is not as large as the manifest says.
    """
    if not (folder / shard.block.path).exists():
        from mindspeed_ms.data.mindrecord import read_rows

        yield from read_rows(locate(folder, shard.mindrecord), manifest.columns)
        return
    if not shard.rows:  # an empty file cannot be mapped
        return
    path, start = locate(folder, shard.block), 0
    piece: dict[str, np.ndarray] = {}
    for column, width in column_widths(bucket, manifest.columns).items():
        piece[column] = np.memmap(path, "<i4", "r", offset=start, shape=(shard.rows, width))
        start += piece[column].nbytes
    yield piece


def split_documents(row: dict[str, np.ndarray], where: str) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """The documents of a row: their token ids and, in conversations, their loss mask. Raises DataError."""
    ids, mask = row["input_ids"], row.get("loss_mask")
    ends = row["document_ends"].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    if (ends < starts).any() or ends[-1] > len(ids):
        raise DataError(f"{where}: its document_ends are {ends.tolist()[:8]}, not ascending: it is damaged")
    spans = [(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True) if end > start]
    return [(ids[start:end], None if mask is None else mask[start:end]) for start, end in spans]


def _sample(folder: Path, manifest: Manifest, tokenizer: tokenizers.Tokenizer, number: int) -> Sample:
    """The row of this number among all rows of the set."""
    for bucket in manifest.buckets:
        if number < bucket.rows:
            break
        number -= bucket.rows
    left = number
    for shard in bucket.shards:
        if left < shard.rows:
            break
        left -= shard.rows
    where = f"{folder / shard.block.path}: row {left}"
    documents = split_documents(_row(folder, manifest, bucket, shard, left), where)
    for ids, _ in documents:
        if ids.min() < 0 or ids.max() >= manifest.tokenizer.vocab_size:
            raise DataError(
                f"{where}: a token id is outside the vocabulary of {manifest.tokenizer.vocab_size}: damaged"
            )
    return Sample(
        length=bucket.length,
        row=number,
        tokens=sum(len(ids) for ids, _ in documents),
        documents=[SampleDocument(len(ids), _parts(tokenizer, ids, mask)) for ids, mask in documents],
    )


def _row(folder: Path, manifest: Manifest, bucket: Bucket, shard: Shard, number: int) -> dict[str, np.ndarray]:
    for piece in read_pieces(folder, manifest, bucket, shard):
        rows = len(piece["input_ids"])
        if number < rows:
            return {column: array[number] for column, array in piece.items()}
        number -= rows
    raise DataError(f"{folder / shard.mindrecord.path}: fewer rows than the manifest's {shard.rows}: it is damaged")


def _parts(tokenizer: tokenizers.Tokenizer, ids: np.ndarray, mask: np.ndarray | None) -> list[Part]:
    """A document's text, cut where answers begin and end."""
    if mask is None:
        return [Part(tokenizer.decode(ids.tolist(), skip_special_tokens=False), None)]
    cuts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
    return [
        Part(tokenizer.decode(ids[start:end].tolist(), skip_special_tokens=False), bool(mask[start]))
        for start, end in pairwise(cuts)
    ]


def _open(folder: Path, manifest: Manifest) -> tokenizers.Tokenizer:
    path = folder / manifest.tokenizer.file.path
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception for whatever it dislikes in the file
        line = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise TokenizerError(f"{path}: {line}: expected a Hugging Face tokenizer file") from error
