"""What travels between the stages of preparing a set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np


class Position(NamedTuple):
    """Where in a file reading goes on: after so many records, at this byte (files that can be sought; else 0)."""

    record: int = 0
    offset: int = 0


@dataclass(slots=True)
class RawChunk:
    """Consecutive records of one file, as read; cut by content alone, so that every run cuts alike."""

    source: int  # index of the file
    first: int  # number of its first record in the file, from 0
    kind: Literal["text", "json", "ids"]
    records: list[bytes] | list[np.ndarray]  # documents in UTF-8, JSON objects, or int64 token ids
    overlong: int  # records among these that were too long to read; not in `records`
    numbers: list[int] | None  # number of each record in the file where they are not consecutive, else None
    bytes: int  # read of the file for these, as a measure of progress
    after: Position  # where the next chunk starts


@dataclass(slots=True)
class TokenChunk:
    """The documents that were kept of one RawChunk, tokenized."""

    source: int
    after: Position
    tokens: np.ndarray  # int32 [sum of lengths]
    lengths: np.ndarray  # int32 [documents]
    sizes: np.ndarray  # int64 [documents]: bytes of text
    hashes: np.ndarray  # uint64 [documents, 2]: xxh3-128 of the cleaned document
    loss: np.ndarray | None  # uint8 [sum of lengths], conversations only
    signatures: np.ndarray | None  # uint32 [documents, permutations], when near duplicates are looked for
    bytes: int  # read of the file
    counts: dict[str, int] = field(default_factory=dict)  # what cleaning did, by rule
