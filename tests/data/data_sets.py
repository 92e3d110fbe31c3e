"""Prepared sets made without preparing anything: rows of drawn documents, written as the format says and no way else.

The blocks are right to the byte. The MindRecord files are stand-ins, unless `mindrecord=True`.
"""

import hashlib
from pathlib import Path

import numpy as np
import tokenizers

from mindspeed_ms.data.files import describe
from mindspeed_ms.data.manifest import Manifest, write_manifest
from mindspeed_ms.data.tokenizer import open_tokenizer

VOCAB_SIZE, PAD_ID, EOS_ID = 1000, 0, 1


def make_rows(
    length: int, rows: int, ends: int, rng: np.random.Generator, loss_mask: bool = False
) -> dict[str, np.ndarray]:
    """Rows of one to `ends` documents, each closed by EOS, and padding; int32, columns as in a set."""
    columns = {
        "input_ids": np.full((rows, length), PAD_ID, np.int32),
        "document_ends": np.zeros((rows, ends), np.int32),
    }
    if loss_mask:
        columns["loss_mask"] = np.zeros((rows, length), np.int32)
    for row in range(rows):
        tokens = int(rng.integers(1, length + 1)) if row % 3 else length
        documents = int(rng.integers(1, min(ends, tokens) + 1))
        cuts = np.append(np.sort(rng.choice(tokens - 1, documents - 1, replace=False) + 1), tokens)
        columns["input_ids"][row, :tokens] = rng.integers(2, VOCAB_SIZE, tokens)
        columns["input_ids"][row, cuts - 1] = EOS_ID
        columns["document_ends"][row] = np.append(cuts, np.full(ends - documents, tokens))
        if loss_mask:
            columns["loss_mask"][row, :tokens] = rng.integers(0, 2, tokens)
    return columns


def make_set(
    folder: Path,
    buckets: dict[int, int],
    loss_mask: bool = False,
    seed: int = 0,
    shards: int = 2,
    mindrecord: bool = False,
) -> Manifest:
    """Write a set with `buckets` {length: rows}, each bucket in up to `shards` shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    written = [
        _make_bucket(folder, length, rows, rng, loss_mask, shards, mindrecord)
        for length, rows in sorted(buckets.items())
    ]
    tokens = sum(bucket["tokens"] for bucket in written)
    places = sum(bucket["length"] * bucket["rows"] for bucket in written)
    documents = sum(bucket["documents"] for bucket in written)
    return write_manifest(
        folder,
        {
            "made_by": "tests/data/data_sets.py",
            "config": {
                "read": {"messages_key": "messages"} if loss_mask else {},
                "arrange": {"boundaries": sorted(buckets), "join": True},
            },
            "corpus": hashlib.sha256(b"drawn.txt").hexdigest(),
            "columns": ["input_ids", "document_ends", *(["loss_mask"] if loss_mask else [])],
            "tokenizer": _write_tokenizer(folder),
            "documents": documents,
            "tokens": tokens,
            "rows": sum(buckets.values()),
            "padding_share": 1 - tokens / places if places else 0.0,
            "cleaning": {"documents_read": documents},
            "sources": [{"name": "drawn.txt", "documents": documents, "tokens": tokens, "bytes": 6 * tokens}],
            "lengths": _histogram(folder, written, loss_mask),
            "buckets": written,
        },
    )


def read_columns(folder: Path, manifest: Manifest, length: int) -> dict[str, np.ndarray]:
    """All rows of a bucket in the order of its shards, read with plain NumPy."""
    bucket = next(bucket for bucket in manifest.buckets if bucket.length == length)
    widths = [bucket.length, bucket.ends, *([bucket.length] if "loss_mask" in manifest.columns else [])]
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in manifest.columns}
    for shard in bucket.shards:
        flat = np.fromfile(folder / shard.block.path, "<i4")
        for name, width in zip(manifest.columns, widths, strict=True):
            pieces[name].append(flat[: shard.rows * width].reshape(shard.rows, width))
            flat = flat[shard.rows * width :]
    return {name: np.concatenate(arrays) for name, arrays in pieces.items()}


def _make_bucket(folder, length, rows, rng, loss_mask, shards, mindrecord):
    ends = max(1, length // 4)
    name = f"bucket-{length:05}"
    (folder / name).mkdir(exist_ok=True)
    columns = make_rows(length, rows, ends, rng, loss_mask)
    entries = []
    for number, piece in enumerate(np.array_split(np.arange(rows), max(1, min(shards, rows)))):
        part = {column: array[piece] for column, array in columns.items()}
        path = folder / name / f"{number:05}"
        block, record = path.with_suffix(".block"), path.with_suffix(".mindrecord")
        index = record.with_suffix(".mindrecord.db")
        block.write_bytes(b"".join(array.astype("<i4").tobytes() for array in part.values()))
        if mindrecord:
            from mindspeed_ms.data.mindrecord import write_shard

            widths = {column: array.shape[1] for column, array in part.items()}
            write_shard(record, widths, [part], most_bytes=4 * rows * sum(widths.values()))
        else:
            record.write_bytes(b"stand-in of " + hashlib.sha256(block.read_bytes()).digest())
            index.write_bytes(b"its index")
        files = {"mindrecord": record, "index": index, "block": block}
        entries.append(
            {"rows": len(piece), **{kind: describe(folder, file).model_dump() for kind, file in files.items()}}
        )
    firsts = np.insert(columns["document_ends"], 0, 0, axis=1)
    return {
        "length": length,
        "ends": ends,
        "rows": rows,
        "documents": int((np.diff(firsts) > 0).sum()),
        "tokens": int(columns["document_ends"][:, -1].sum()),
        "shards": entries,
    }


def _write_tokenizer(folder: Path) -> dict:
    """Words w2, w3, ... w999 by number, beside <pad> and <eos>."""
    vocabulary = {"<pad>": PAD_ID, "<eos>": EOS_ID, **{f"w{number}": number for number in range(2, VOCAB_SIZE)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    opened = open_tokenizer(path)
    path.write_bytes(opened.json)  # the form in which a set keeps it
    file = describe(folder, path).model_dump()
    numbers = {"vocab_size": VOCAB_SIZE, "pad_id": PAD_ID, "bos_id": None, "eos_id": EOS_ID}
    return {"file": file, "identity": opened.identity, **numbers}


def _histogram(folder: Path, buckets: list[dict], loss_mask: bool) -> list[dict]:
    """Documents by length, in bins that double."""
    lengths: list[int] = []
    for bucket in buckets:
        width, rows = bucket["ends"], 0
        for shard in bucket["shards"]:
            rows = shard["rows"]
            flat = np.fromfile(folder / shard["block"]["path"], "<i4")[rows * bucket["length"] :][: rows * width]
            firsts = np.insert(flat.reshape(rows, width), 0, 0, axis=1)
            lengths += [int(length) for length in np.diff(firsts).ravel() if length]
    bins, upto = [], 1
    while lengths and (not bins or upto // 2 < max(lengths)):
        inside = [length for length in lengths if upto // 2 < length <= upto]
        bins.append({"upto": upto, "documents": len(inside), "tokens": sum(inside)})
        upto *= 2
    return bins
