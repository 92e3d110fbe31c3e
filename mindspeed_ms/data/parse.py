"""From the raw records of a chunk to cleaned texts and conversations, each with its number for errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.clean import Cleaner
from mindspeed_ms.data.types import RawChunk
from mindspeed_ms.errors import DataError, RequestError
from mindspeed_ms.text.chat import checked_messages

_MAX_KEYS = 12


class Parser:
    """Parses and cleans; `cleaner` counts what is dropped. source_names: names of the files by index, for errors."""

    def __init__(self, config: PrepareConfig, source_names: list[str]) -> None:
        self.cleaner = Cleaner(config.clean)
        self._read, self._names = config.read, source_names

    def texts(self, chunk: RawChunk) -> Iterator[tuple[int, str, bytes]]:
        """Number of each document that is kept, its text and the same in UTF-8; chunk: of kind text or json.

        Raises DataError when a file lacks the key, or for invalid UTF-8 where the options say so.
        """
        file, clean = self._names[chunk.source], self.cleaner.clean
        for number, record in numbered(chunk) if chunk.kind == "text" else self._strings(chunk):
            found = clean(record, file, number)
            if found is not None:
                yield number, *found

    def conversations(self, chunk: RawChunk) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Number of each conversation that is kept, and its messages, contents cleaned; chunk: of kind json.

        Raises DataError when the chunk holds plain text, when a file lacks the key, or for invalid UTF-8.
        """
        file = self._names[chunk.source]
        if chunk.kind != "json":
            raise DataError(f"{file}: holds no JSON; read.messages_key is for files of conversations")
        for number, value in self._values(chunk, self._read.messages_key or ""):
            messages = self._messages(value, file, number)
            if messages is not None:
                yield number, messages

    def ids(self, chunk: RawChunk) -> Iterator[tuple[int, np.ndarray]]:
        """Number of each document that is tokenized already, and its token ids: int64 [tokens], not checked.

        chunk: of kind ids, or json with `read.ids_key`. Raises DataError when it is text or a file lacks the key.
        """
        file, key = self._names[chunk.source], self._read.ids_key
        if chunk.kind == "ids":
            yield from numbered(chunk)
            return
        if chunk.kind != "json" or key is None:
            raise DataError(f"{file}: holds text; read.ids_key is for files of token ids")
        for number, value in self._values(chunk, key):
            if not isinstance(value, list) or not all(type(item) is int for item in value):
                self.cleaner.counts["no_text"] += 1
                continue
            try:
                yield number, np.array(value, np.int64)
            except OverflowError:
                wrong = max(value, key=abs)
                raise DataError(f"{file}: record {number}: token id {wrong} is outside of any vocabulary") from None

    def _strings(self, chunk: RawChunk) -> Iterator[tuple[int, bytes]]:
        file, cleaner = self._names[chunk.source], self.cleaner
        for number, value in self._values(chunk, self._read.text_key):
            if not isinstance(value, str):
                cleaner.counts["no_text"] += 1
                continue
            data = cleaner.encode(value, file, number)
            if data is not None:
                yield number, data

    def _messages(self, value: Any, file: str, number: int) -> list[dict[str, Any]] | None:
        """The cleaned messages of a conversation, None when it is dropped."""
        cleaner = self.cleaner
        try:
            messages = checked_messages(value)
        except RequestError:
            cleaner.counts["no_conversation"] += 1
            return None
        had_nul = had_control = False
        for message in messages:
            data = cleaner.encode(message["content"], file, number)
            if data is None:
                return None
            data, nul, control = cleaner.strip(data)
            had_nul, had_control = had_nul or nul, had_control or control
            message["content"] = data.decode()
        cleaner.counts["nul_bytes_removed"] += had_nul
        cleaner.counts["control_characters_removed"] += had_control
        fits = cleaner.size_fits(sum(len(message["content"].strip()) for message in messages))
        return messages if fits else None

    def _values(self, chunk: RawChunk, key: str) -> Iterator[tuple[int, Any]]:
        """Number of each record and what it has under the key; what is no object or lacks the key is counted."""
        file, cleaner = self._names[chunk.source], self.cleaner
        found, lacking = False, None
        for number, record in numbered(chunk):
            line = cleaner.decode(record, file, number)
            if line is None:
                continue
            value = _parse(line)
            if isinstance(value, dict) and key in value:
                found = True
                yield number, value[key]
                continue
            if isinstance(value, dict):
                lacking = value
                cleaner.counts["no_conversation" if self._read.messages_key else "no_text"] += 1
            else:
                cleaner.counts["bad_json"] += 1
        if chunk.first == 0 and lacking is not None and not found:
            keys = ", ".join(repr(str(name)[:60]) for name in list(lacking)[:_MAX_KEYS]) or "none"
            raise DataError(f"{file}: no record has the key {key!r}; the keys there are: {keys}")


def numbered(chunk: RawChunk) -> Iterator[tuple[int, Any]]:
    """The records and their numbers in the file, from 1."""
    if chunk.numbers is None:
        return enumerate(chunk.records, chunk.first + 1)
    return zip((number + 1 for number in chunk.numbers), chunk.records, strict=True)


def _parse(line: str) -> Any:
    """The value of a line of JSON, None when it is none; raw control characters in its strings are let through."""
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or nested too deep
        return None


_DECODER = json.JSONDecoder(strict=False)
