"""Training a tokenizer on the documents that a model will be trained on.

- `bpe`: byte-level BPE (GPT-2's cutting, each digit by itself), without normalization, so that every text comes back as
  it was. Its first special token, `<|endoftext|>`, is EOS and padding.
- `wordpiece`: BERT's; lower case without accents, Chinese characters one by one, `[CLS]` and `[SEP]` around a text.

Documents are read and cleaned as `data prepare` does, one chunk after the other; in memory are the distinct words.
WordPiece reads the corpus twice, to know its characters first: left to itself, the library numbers those within words
in an order that changes from run to run, and its merges with them.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import string
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mindspeed_ms.config.data import CleanConfig, PrepareConfig, ReadConfig
from mindspeed_ms.data.clean import read_limit
from mindspeed_ms.data.files import disk_errors, write_atomic
from mindspeed_ms.data.parse import Parser
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.sources import Damaged, Sources, find_sources
from mindspeed_ms.errors import ConfigError, DataError

T = TypeVar("T")
Kind = Literal["bpe", "wordpiece"]
Progress = Callable[[str, int, int | None, str], None]  # phase, done, total, unit

_SPECIAL: dict[str, list[str]] = {
    "bpe": ["<|endoftext|>"],
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "bpe": {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "wordpiece": {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")},
}
_INNER = re.compile(r"(?<=\S)\S")
_MAX_VOCAB = 1 << 24
_PATIENCE = 0.5  # seconds
_SAMPLE = 1000  # documents
_SAMPLE_CHARACTERS = 10_000  # of each


@dataclass(frozen=True)
class TrainedTokenizer:
    """What came of it; `bytes_per_token` is measured on a sample of the documents, at most a thousand."""

    folder: Path
    vocab_size: int  # less than asked for where the corpus has no more to merge
    documents: int
    bytes: int  # of cleaned text in UTF-8
    bytes_per_token: float


def train_tokenizer(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    kind: Kind = "bpe",
    vocab_size: int = 32_000,
    special_tokens: Sequence[str] = (),
    read: ReadConfig | None = None,
    clean: CleanConfig | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> TrainedTokenizer:
    """Train a tokenizer and write it into the new folder `out`, where transformers and `data prepare` find it.

    inputs, cache: as of `prepare`. special_tokens: further ones after the kind's own, such as `<|im_start|>`. The same
    documents and options give the same bytes. Raises DataError, or ConfigError for options.
    """
    out, read = Path(out), read or ReadConfig()
    special = list(dict.fromkeys([*_SPECIAL[kind], *special_tokens]))
    _check(out, kind, vocab_size, special, read)
    sources = find_sources([str(item) for item in inputs], read, cache)
    config = PrepareConfig.parse({"read": read, "clean": clean or CleanConfig()}, where="options")
    documents = _Documents(sources, config, progress or (lambda *_: None))

    def train() -> tuple[Tokenizer, int]:
        tokenizer = (_bpe if kind == "bpe" else _wordpiece)(documents, vocab_size, special)
        encoded = tokenizer.encode_batch_fast(documents.sample, add_special_tokens=False)
        return tokenizer, sum(len(encoding.ids) for encoding in encoded)

    tokenizer, tokens = _interruptible(train, documents)
    if not documents.count:
        raise DataError(f"{inputs[0]}: no document is left after cleaning; there is nothing to train on")
    _write(out, tokenizer, _SETTINGS[kind])
    size = sum(len(text.encode()) for text in documents.sample)
    return TrainedTokenizer(
        out, tokenizer.get_vocab_size(), documents.count, documents.bytes, round(size / max(tokens, 1), 3)
    )


def _interruptible(work: Callable[[], T], documents: _Documents) -> T:
    """The library trains for minutes in one call, and Python heeds a signal in the main thread between calls only."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for; a Rust panic is no Exception
            failure.append(error)
        ended.set()

    ended = threading.Event()  # Python 3.11 takes a thread for ended when join is interrupted
    threading.Thread(target=run, daemon=True).start()
    try:
        while not ended.wait(_PATIENCE):
            pass
    except BaseException:
        documents.stopped = True
        if not ended.wait(_PATIENCE):
            atexit.register(_leave, ended)
        raise
    if failure:
        raise failure[0]
    return result[0]


def _leave(ended: threading.Event) -> None:
    """The end of Python under a thread that is inside of the library would be a crash."""
    if not ended.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)


def _check(out: Path, kind: str, vocab_size: int, special: list[str], read: ReadConfig) -> None:
    fewest = len(special) + (256 if kind == "bpe" else 2)
    if not fewest <= vocab_size <= _MAX_VOCAB:
        bytes_too = "256 bytes and " if kind == "bpe" else ""
        raise ConfigError(
            f"vocab_size: {vocab_size}: expected {fewest} ({bytes_too}{len(special)} special tokens) to {_MAX_VOCAB}"
        )
    if not all(token.strip() for token in special):
        raise ConfigError("special_tokens: one is empty or white space; expected texts such as <|im_start|>")
    if read.ids_key is not None:
        raise ConfigError("read.ids_key: a tokenizer is trained on text; give the key of a text field")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is there already; give a new folder, or remove it")


class _Documents:
    """The cleaned documents, chunk by chunk; keeps count, and a sample that each has the same chance to enter."""

    def __init__(self, sources: Sources, config: PrepareConfig, tell: Progress) -> None:
        self._sources, self._config, self._tell = sources, config, tell
        self.phase = "read"
        self.stopped = False
        self.count = self.bytes = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[list[str]]:
        self.count, self.bytes, self.sample = 0, 0, []
        parser = Parser(self._config, [source.original for source in self._sources])
        chance = random.Random(0)
        total, done = sum(source.size for source in self._sources), 0
        limit = read_limit(self._config.clean)
        for index, source in enumerate(self._sources):
            try:
                for chunk in read_chunks(source, index, self._config.read, limit):
                    if self.stopped:
                        raise DataError("training was interrupted")
                    if chunk.kind == "ids":
                        raise DataError(f"{source.original}: holds token ids; a tokenizer is trained on text")
                    texts = list(self._texts(parser, chunk))
                    for text in texts:
                        self._note(text, chance)
                    yield texts
                    done += chunk.bytes
                    self._tell(self.phase, min(done, total), total, "bytes")
            except Damaged as error:
                if not self._config.read.skip_damaged:
                    raise DataError(f"{error}; with skip_damaged what was read before is kept") from None

    def _texts(self, parser: Parser, chunk: Any) -> Iterator[str]:
        if self._config.read.messages_key is None:
            yield from (text for _, text, _ in parser.texts(chunk))
        else:
            yield from (m["content"] for _, messages in parser.conversations(chunk) for m in messages)

    def _note(self, text: str, chance: random.Random) -> None:
        self.count += 1
        self.bytes += len(text.encode())
        if len(self.sample) < _SAMPLE:
            self.sample.append(text[:_SAMPLE_CHARACTERS])
        elif (place := chance.randrange(self.count)) < _SAMPLE:
            self.sample[place] = text[:_SAMPLE_CHARACTERS]


def _bpe(documents: _Documents, vocab_size: int, special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _wordpiece(documents: _Documents, vocab_size: int, special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # A character may be a token twice, at the start of a word and within one.
    alphabet, inner = _characters(documents, tokenizer.normalizer, (vocab_size - len(special)) // 2)
    within = ["##" + character for character in inner]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *within],  # only this gives them their numbers before the words are looked at
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][: len(special)]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    names = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=names
    )
    return tokenizer


def _characters(documents: _Documents, normalizer: Any, most: int) -> tuple[list[str], list[str]]:
    """The most frequent characters in order, and those of them that may stand within a word."""
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    documents.phase = "count characters"
    for texts in documents:
        for text in texts:
            normal = normalizer.normalize_str(text)
            counts.update(normal)
            inner.update(_INNER.findall(normal))
    documents.phase = "read"
    ranked = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(ranked[:most])
    return alphabet, [c for c in alphabet if c in inner and not _is_word_of_its_own(c)]


def _is_word_of_its_own(character: str) -> bool:
    """Punctuation, as BERT cuts it off."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _write(out: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **settings}
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "tokenizer_config.json", json.dumps(settings, indent=1).encode())
    write_atomic(out / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
