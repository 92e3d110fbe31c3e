"""One chunk of raw records to one chunk of tokens: parse, clean, hash, tokenize. What a worker process runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tokenizers
import xxhash

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.parse import Parser
from mindspeed_ms.data.tokenizer import DataTokenizer
from mindspeed_ms.data.types import RawChunk, TokenChunk
from mindspeed_ms.data.words import WordEncoder, can_cut
from mindspeed_ms.errors import ConfigError, DataError, RequestError
from mindspeed_ms.text.chat import Answers, ChatTemplate, Stopped
from mindspeed_ms.text.tokenizer import Tokenizer


def word_encoder(tokenizer: DataTokenizer, parse: bool) -> WordEncoder:
    """Tokenizes many documents at once; `parse`: the special tokens in a text count as such."""
    data, named = json.loads(tokenizer.json), Tokenizer(tokenizer)
    if parse:
        library = tokenizers.Tokenizer.from_buffer(tokenizer.json)
        return WordEncoder(
            lambda texts: (found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)),
            can_cut(data),
        )
    special = set(named.special.values())  # their secret names stand in no text
    data["added_tokens"] = [token for token in data.get("added_tokens", []) if token["content"] not in special]
    return WordEncoder(named.encode_batch, can_cut(data))


@dataclass(slots=True)
class _Documents:
    """What was kept of a chunk, column by column."""

    numbers: list[int] = field(default_factory=list)  # of the records, from 1
    texts: list[str] = field(default_factory=list)  # to tokenize, and to look for near duplicates
    sizes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # of all documents, end to end
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    loss: np.ndarray | None = None  # as `tokens`

    def add(self, number: int, text: str, data: bytes, size: int) -> None:
        self.numbers.append(number)
        self.texts.append(text)
        self.sizes.append(size)
        self.digests.append(xxhash.xxh3_128_digest(data))

    def drop_empty(self) -> int:
        """Documents of no tokens go; returns how many."""
        kept = np.flatnonzero(self.lengths)
        dropped = len(self.lengths) - len(kept)
        if dropped:
            for name in ("numbers", "texts", "sizes", "digests"):
                column = getattr(self, name)
                setattr(self, name, [column[i] for i in kept])
            self.lengths = self.lengths[kept]
        return dropped

    def frame(self, bos: list[int], eos: list[int]) -> None:
        """Begin each document with BOS and end it with EOS; none, or one of each."""
        if bos or eos:
            ends = np.cumsum(self.lengths)
            starts = ends - self.lengths
            # Where two documents meet, the one's EOS comes before the other's BOS.
            places = np.concatenate([np.repeat(ends, len(eos)), np.repeat(starts, len(bos))])
            values = np.repeat(np.array([*eos, *bos], np.int32), len(ends))
            self.tokens = np.insert(self.tokens, places, values)
            self.lengths = self.lengths + len(bos) + len(eos)


class Encoder:
    """Makes TokenChunks of RawChunks; one for each worker.

    source_names: names of the files by their index, for errors. Raises ConfigError when the options ask for a BOS or a
    chat template that the tokenizer does not have, TokenizerError when the tokenizer is damaged.
    """

    def __init__(self, tokenizer: DataTokenizer, config: PrepareConfig, source_names: list[str]) -> None:
        self._tokenizer, self._config, self._names = tokenizer, config, source_names
        self._parser = Parser(config, source_names)
        self._words = word_encoder(tokenizer, parse=config.tokenize.special_tokens == "parse")
        bos = tokenizer.add_bos if config.tokenize.bos is None else config.tokenize.bos
        if bos and tokenizer.bos_id is None:
            raise ConfigError("tokenize.bos is true, but the tokenizer has no BOS token; leave the option out")
        self._bos = [tokenizer.bos_id] if bos and tokenizer.bos_id is not None else []
        self._eos = [tokenizer.eos_id] if config.tokenize.eos and tokenizer.eos_id is not None else []
        self._chat: ChatTemplate | None = None
        if config.read.messages_key is not None:
            if tokenizer.chat_template is None:
                raise ConfigError(
                    "read.messages_key is set, but the tokenizer has no chat template; give the folder of a chat model"
                )
            named = Tokenizer(tokenizer)
            self._chat = ChatTemplate(tokenizer.chat_template, named, tokenizer.bos_id, tokenizer.eos_id)
        if config.clean.near_duplicates is not None:
            from mindspeed_ms.data.minhash import require

            require()

    def close(self) -> None:
        """End the process that renders chat templates, if there is one."""
        if self._chat is not None:
            self._chat.close()

    def __call__(self, chunk: RawChunk) -> TokenChunk:
        return self.encode(chunk)

    def encode(self, chunk: RawChunk) -> TokenChunk:
        """The documents of a chunk that are kept, in order.

        Raises DataError naming the file and the record, counted from 1, of what cannot be used.
        """
        counts = self._parser.cleaner.counts
        counts["documents_read"] += len(chunk.records) + chunk.overlong
        counts["too_long"] += chunk.overlong
        plain = chunk.kind != "ids" and self._chat is None and self._config.read.ids_key is None
        if self._chat is not None:
            documents = self._conversations(chunk, self._chat)
        else:
            documents = self._texts(chunk) if plain else self._ids(chunk)
        counts["empty"] += documents.drop_empty()
        self._check_ids(chunk, documents)
        # Conversations and documents that are tokenized already bring their own.
        if plain:
            documents.frame(self._bos, self._eos)
        return self._pack(chunk, documents)

    def _texts(self, chunk: RawChunk) -> _Documents:
        documents = _Documents()
        for number, text, data in self._parser.texts(chunk):
            documents.add(number, text, data, len(data))
        documents.tokens, documents.lengths = self._words.encode(documents.texts)
        return documents

    def _ids(self, chunk: RawChunk) -> _Documents:
        """Documents that are tokenized already are taken as they are, BOS and EOS included."""
        documents = _Documents()
        wide = self._config.clean.near_duplicates is not None
        arrays = []
        for number, ids in self._parser.ids(chunk):
            arrays.append(ids)
            text = " ".join(map(str, ids.tolist())) if wide else ""
            documents.add(number, text, ids.astype("<i4").tobytes(), 4 * len(ids))
        documents.tokens = np.concatenate([np.empty(0, np.int64), *arrays])
        documents.lengths = np.array([len(ids) for ids in arrays], np.int64)
        return documents

    def _conversations(self, chunk: RawChunk, chat: ChatTemplate) -> _Documents:
        documents = _Documents()
        counts = self._parser.cleaner.counts
        rendered = []
        for number, messages in self._parser.conversations(chunk):
            found = self._render(chat, messages, f"{self._names[chunk.source]}: record {number}")
            if found is None:
                counts["refused_by_template"] += 1
                continue
            if not found[1]:
                counts["no_answer"] += 1
                continue
            contents = [message["content"] for message in messages]
            canonical = json.dumps(messages, sort_keys=True).encode()  # not the rendered text: its secret names vary
            documents.add(number, "\n".join(contents), canonical, sum(len(text.encode()) for text in contents))
            rendered.append(found)
        encoded = chat.encode_answers(rendered)
        documents.lengths = np.array([len(ids) for ids, _ in encoded], np.int64)
        documents.tokens = _joined([ids for ids, _ in encoded], np.int32)
        documents.loss = _joined([mask for _, mask in encoded], np.uint8)
        return documents

    def _render(self, chat: ChatTemplate, messages: list[dict[str, Any]], where: str) -> Answers | None:
        """None: the template refuses the conversation, which is to be dropped then; else DataError."""
        try:
            return chat.answers(messages, date=self._config.tokenize.date)
        except Stopped as error:  # dropped, it would make the set depend on how busy a machine was
            raise DataError(f"{where}: {error}; repair or remove it") from None
        except RequestError as error:
            if self._config.read.bad_conversations == "drop":
                return None
            raise DataError(f"{where}: {error}; repair or remove it, or --bad-conversations drop") from None

    def _pack(self, chunk: RawChunk, documents: _Documents) -> TokenChunk:
        signatures = None
        if self._config.clean.near_duplicates is not None:
            from mindspeed_ms.data.minhash import signatures as make

            signatures = make(documents.texts)
        return TokenChunk(
            source=chunk.source,
            after=chunk.after,
            tokens=documents.tokens.astype(np.int32, copy=False),
            lengths=documents.lengths.astype(np.int32),
            sizes=np.array(documents.sizes, np.int64),
            hashes=np.frombuffer(b"".join(documents.digests), ">u8").astype(np.uint64).reshape(-1, 2),
            loss=documents.loss,
            signatures=signatures,
            bytes=chunk.bytes,
            counts=self._parser.cleaner.take_counts(),
        )

    def _check_ids(self, chunk: RawChunk, documents: _Documents) -> None:
        size, tokens = self._tokenizer.vocab_size, documents.tokens
        if not len(tokens) or (tokens.min() >= 0 and tokens.max() < size):
            return
        at = int(np.argmax((tokens < 0) | (tokens >= size)))
        document = int(np.searchsorted(np.cumsum(documents.lengths), at, side="right"))
        raise DataError(
            f"{self._names[chunk.source]}: record {documents.numbers[document]}: token id {int(tokens[at])} is outside "
            f"the vocabulary of {size}; prepare with the tokenizer that belongs to the model or to these ids"
        )


def _joined(parts: Sequence[Any], dtype: type) -> np.ndarray:
    found: np.ndarray = np.concatenate([np.empty(0, dtype), *(np.asarray(part, dtype) for part in parts)])
    return found
