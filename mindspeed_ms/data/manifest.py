"""manifest.json: everything that is known of a prepared set, and the SHA-256 of every file in it.

The file is JSON; the value of its first key, `checksum`, is the SHA-256 of the whole file with these 64 digits replaced
by zeros. It is written last: a folder without it is no set. Its paths are relative, with `/`, and stay in the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mindspeed_ms.config.base import Config
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.paths import read_regular

NAME = "manifest.json"
FORMAT = "mindspeed-ms-data"
VERSION = 1
MAX_BYTES = 256 << 20
_ZEROS = "0" * 64
_CHECKSUM = re.compile(rb'\A\{\s*"checksum": "([0-9a-f]{64})"')

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FileEntry(Config):
    """One file of the set."""

    path: str
    bytes: Count
    sha256: Sha256

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = value.split("/")
        if not value or "\\" in value or "\0" in value or any(part in ("", ".", "..") for part in parts):
            raise ValueError("expected a relative path that stays in the folder")
        return value


class Shard(Config):
    """Rows of a bucket from one stretch of the corpus: a MindRecord file, its index, and the same rows as a block."""

    rows: Count
    mindrecord: FileEntry
    index: FileEntry
    block: FileEntry


class Bucket(Config):
    """Rows of one length."""

    length: Annotated[int, Field(ge=1, le=1 << 24)]  # tokens of a row, padding included
    ends: Annotated[int, Field(ge=1, le=1 << 24)]  # entries of `document_ends`: most documents in one row
    rows: Count
    documents: Count  # pieces, where documents were split
    tokens: Count  # without padding
    shards: list[Shard]


class TokenizerEntry(Config):
    """The tokenizer that made the ids."""

    file: FileEntry  # tokenizer.json, copied into the set
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)]  # every id is below it
    pad_id: Count
    bos_id: Count | None
    eos_id: Count | None
    identity: Sha256  # of all that decides the ids: the file, these numbers, the chat template


class Source(Config):
    """What came of one input."""

    name: str
    documents: Count
    tokens: Count
    bytes: Count  # of text, as read


class LengthBin(Config):
    """Documents by length, before splitting and joining."""

    upto: Count  # the longest length in this bin; bins ascend
    documents: Count
    tokens: Count


class Manifest(Config):
    """A prepared set."""

    checksum: Sha256
    format: Literal["mindspeed-ms-data"]
    version: int
    made_by: str
    config: PrepareConfig
    corpus: Sha256  # of the names and contents of the input files
    columns: list[str]  # input_ids, document_ends and, for conversations, loss_mask
    tokenizer: TokenizerEntry
    documents: Count  # kept
    tokens: Count  # in rows, without padding
    rows: Count
    padding_share: Annotated[float, Field(ge=0, le=1)]  # padding / (tokens + padding)
    cleaning: dict[str, Count]  # what was counted, by rule (see data/clean.py)
    sources: list[Source]
    lengths: list[LengthBin]
    buckets: list[Bucket]

    def files(self) -> list[FileEntry]:
        """Every file of the set but the manifest."""
        shards = [shard for bucket in self.buckets for shard in bucket.shards]
        return [self.tokenizer.file, *(entry for s in shards for entry in (s.mindrecord, s.index, s.block))]


def write_manifest(folder: Path, values: dict[str, Any]) -> Manifest:
    """Check, checksum and write `values`: all fields but checksum, format and version. Raises DataError."""
    from mindspeed_ms.data.files import write_atomic

    values = {"checksum": _ZEROS, "format": FORMAT, "version": VERSION, **values}
    manifest = Manifest.parse(values, where=str(folder / NAME))
    text = json.dumps(manifest.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    write_atomic(folder / NAME, text.replace(_ZEROS, checksum, 1).encode())
    return manifest.model_copy(update={"checksum": checksum})


def read_manifest(folder: str | Path) -> Manifest:
    """Read and check a set's manifest; its files are not looked at. Raises DataError."""
    path = Path(folder) / NAME
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        unfinished = (Path(folder) / ".work").exists()
        hint = "its preparation did not end: run it again" if unfinished else "prepare it first"
        raise DataError(f"{folder}: no {NAME} in it, so it is no prepared set; {hint}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    found = _CHECKSUM.match(data)
    if not found:
        raise DataError(f"{path}: does not begin with its checksum; it is damaged or no manifest")
    zeroed = data[: found.start(1)] + _ZEROS.encode() + data[found.end(1) :]
    if hashlib.sha256(zeroed).hexdigest().encode() != found[1]:
        raise DataError(f"{path}: its checksum does not fit its content, it was damaged or edited: prepare it again")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    if values.get("format") != FORMAT:
        raise DataError(f"{path}: format is {values.get('format')!r}, expected {FORMAT!r}")
    if values.get("version") != VERSION:
        raise DataError(
            f"{path}: made for version {values.get('version')!r} of the format, this program reads {VERSION}: "
            "prepare the set again or use the version of mindspeed-ms that made it"
        )
    try:
        manifest = Manifest.parse(values, where=str(path))
    except ConfigError as error:
        raise DataError(str(error)) from None
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """What the fields say of one another; sizes are checked before anybody allocates by them."""
    lengths = [bucket.length for bucket in manifest.buckets]
    if lengths != sorted(set(lengths)):
        raise DataError(f"{path}: buckets of lengths {lengths}, expected ascending ones")
    expected = ["input_ids", "document_ends", *(["loss_mask"] if manifest.config.read.messages_key else [])]
    if manifest.columns != expected:
        raise DataError(f"{path}: columns are {manifest.columns}, expected {expected}")
    for bucket in manifest.buckets:
        where = f"{path}: bucket {bucket.length}"
        if bucket.rows != sum(shard.rows for shard in bucket.shards):
            raise DataError(f"{where}: {bucket.rows} rows, its shards have {sum(s.rows for s in bucket.shards)}")
        if not bucket.rows <= bucket.documents <= bucket.tokens <= bucket.rows * bucket.length:
            raise DataError(
                f"{where}: {bucket.documents} documents of {bucket.tokens} tokens do not fit {bucket.rows} rows"
            )
        if not bucket.documents <= bucket.rows * bucket.ends <= bucket.rows * bucket.length:
            raise DataError(f"{where}: {bucket.ends} ends do not fit {bucket.documents} documents")
        width = bucket.length + bucket.ends + (bucket.length if "loss_mask" in manifest.columns else 0)
        for shard in bucket.shards:
            needed = 4 * shard.rows * width
            if shard.block.bytes != needed:
                raise DataError(f"{path}: {shard.block.path} has {shard.block.bytes} bytes, its rows need {needed}")
    for name, total in (("rows", manifest.rows), ("tokens", manifest.tokens)):
        found = sum(getattr(bucket, name) for bucket in manifest.buckets)
        if found != total:
            raise DataError(f"{path}: {name} is {total}, its buckets have {found}")
    if not all(token is None or token < manifest.tokenizer.vocab_size for token in _special(manifest.tokenizer)):
        raise DataError(f"{path}: a special token is outside the vocabulary of {manifest.tokenizer.vocab_size}")
    if sum(bucket.documents for bucket in manifest.buckets) < manifest.documents:
        raise DataError(f"{path}: {manifest.documents} documents, its buckets have fewer pieces than that")
    sums = {
        "tokens of sources": (sum(source.tokens for source in manifest.sources), manifest.tokens),
        "documents of sources": (sum(source.documents for source in manifest.sources), manifest.documents),
        "documents of lengths": (sum(part.documents for part in manifest.lengths), manifest.documents),
    }
    for name, (found, total) in sums.items():
        if found != total:
            raise DataError(f"{path}: {name} are {found} in all, expected {total}")
    places = sum(bucket.rows * bucket.length for bucket in manifest.buckets)
    if abs(manifest.padding_share - (1 - manifest.tokens / places if places else 0)) > 1e-9:
        raise DataError(f"{path}: padding_share is {manifest.padding_share}, its buckets say otherwise")
    paths = [entry.path for entry in manifest.files()]
    if len(set(paths)) != len(paths):
        raise DataError(f"{path}: names a file twice")


def _special(tokenizer: TokenizerEntry) -> list[int | None]:
    return [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
