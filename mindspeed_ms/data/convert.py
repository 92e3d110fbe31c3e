"""Sets to Megatron's and MindFormers' pairs of .bin and .idx files, and such pairs to sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspeed_ms.config.data import CleanConfig, PrepareConfig
from mindspeed_ms.data.blocks import Block, open_blocks
from mindspeed_ms.data.manifest import NAME, Manifest, read_manifest
from mindspeed_ms.data.megatron import MegatronWriter
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import ConfigError, DataError

_TOKENS_AT_ONCE = 1 << 22

Progress = Callable[[str, int, int | None, str], None]  # phase, done, total, unit


@dataclass(frozen=True)
class Conversion:
    """What was written where; `manifest` is that of the set, made or read."""

    out: Path  # a set's folder, or what the pair's two names have in common
    made: str  # "set" or "pair"
    manifest: Manifest
    documents: int  # in what was made
    tokens: int
    split: int  # how many of these there would not be, had no document been split to fit a row
    answers_lost: bool  # a pair has no place for which tokens are learnt


def convert(
    source: str | Path,
    out: str | Path,
    tokenizer: str | Path | None = None,
    config: PrepareConfig | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write a set as a pair, or make a set of a pair: whichever `source` is not.

    source: a set's folder, or a pair by either of its names or what they have in common. out: likewise, and new.
    tokenizer, config, workers: for a pair alone, see `prepare`; its tokenizer has to be given. The documents' ids stay
    as they are, and without a `config` equal documents are all kept. Of a set its documents are written in the order of
    its rows, and what was split stays split. Raises ConfigError, DataError, TokenizerError.
    """
    if (Path(source) / NAME).is_file():
        if tokenizer is not None or config is not None or workers is not None:
            raise ConfigError(f"{source}: is a set, which is written as it is; leave tokenizer, config and workers out")
        return _to_pair(Path(source), _new_prefix(Path(out)), progress or (lambda *_: None))
    if not Path(f"{_prefix(source)}.idx").is_file():
        raise DataError(
            f"{source}: no prepared set and no .bin with its .idx; give the folder of one or a name of the other"
        )
    if tokenizer is None:
        raise ConfigError(f"{source}: holds ids alone; give the tokenizer that made them")
    settings = config or PrepareConfig(clean=CleanConfig(dedup=False))
    pair = f"{_prefix(source)}.bin"
    manifest = prepare([pair], out, tokenizer, settings, workers=workers, progress=progress)
    pieces = sum(bucket.documents for bucket in manifest.buckets)
    split = max(0, pieces - manifest.documents)
    return Conversion(Path(out), "set", manifest, pieces, manifest.tokens, split, answers_lost=False)


def _to_pair(folder: Path, prefix: Path, progress: Progress) -> Conversion:
    for path in (Path(f"{prefix}.bin"), Path(f"{prefix}.idx")):
        if os.path.lexists(path):
            raise ConfigError(f"{path}: is there already; give another name or remove it")
    manifest = read_manifest(folder)
    documents = rows = 0
    with MegatronWriter(prefix, manifest.tokenizer.vocab_size) as writer:
        for blocks in open_blocks(folder, manifest):
            for block in blocks:
                documents += _write_block(writer, block)
                rows += block.rows
                progress("write", rows, manifest.rows, "rows")
    return Conversion(
        out=prefix,
        made="pair",
        manifest=manifest,
        documents=documents,
        tokens=manifest.tokens,
        split=max(0, documents - manifest.documents),
        answers_lost="loss_mask" in manifest.columns,
    )


def _write_block(writer: MegatronWriter, block: Block) -> int:
    """Add a block's documents in the order of its rows; returns how many they are."""
    ids, ends = block.columns["input_ids"], block.columns["document_ends"]
    length = ids.shape[1]
    step, documents = max(1, _TOKENS_AT_ONCE // length), 0
    for start in range(0, block.rows, step):
        last = ends[start : start + step]
        lengths = np.diff(last, axis=1, prepend=0).ravel()
        real = np.arange(length) < last[:, -1:]
        writer.add_documents(ids[start : start + step][real], lengths[lengths > 0])
        documents += int(np.count_nonzero(lengths))
    return documents


def _new_prefix(out: Path) -> Path:
    if (out.exists() and not out.is_file()) or out.name in ("", ".bin", ".idx"):
        raise ConfigError(f"{out}: is no name for a pair of files; give one such as corpus")
    return _prefix(out)


def _prefix(name: str | Path) -> Path:
    path = Path(name)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path
