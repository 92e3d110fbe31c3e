"""Tokenizing many times as fast as the library, by asking it about each word only once.

Most tokenizers first cut a text into words and then treat each by itself, so a text may be cut in advance wherever
theirs would be cut anyway, and the tokens of a piece can be remembered. Where that is certain:

- before a single space that stands between two characters that are not white space;
- after a single line feed that does;
- between a word of English letters and a single mark of punctuation with white space after it.

That holds for BERT's words, and for the expressions of GPT-2, Llama 3 and Qwen 2 and their like: none of their matches
goes on over such a place, and the only one that looks ahead, `\\s+(?!\\S)`, begins and ends within white space. Any
other tokenizer, and one whose added tokens could reach over a cut, gets whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np

_MARK = r"""[.,;:!?)"]"""
# A piece ends at such a place or with the text; other white space stays inside, with what follows it.
_PIECES = re.compile(
    rf" ?[A-Za-z]+(?:(?= \S)|(?={_MARK}(?:\s|\Z)))"
    r"|\s*\S+(?:(?= \S)|\n(?=\S)|(?:(?![ \n]\S)\s+\S+)+(?:\n(?=\S)|\s+\Z)?|\s*\Z)|\s+"
)
_OVER_A_CUT = re.compile(rf"\s|[A-Za-z]{_MARK}")
_MOST_PIECES = 200_000  # remembered; with their tokens some 40 MB
_MOST_CHARACTERS = 8 << 20
# Where more of a batch than this is new, cutting costs more than it saves: Chinese writes no spaces between words.
_MOST_NEW = 0.5
_PAUSE = 15

_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]")
_DIGITS = {r"\p{N}", r"\p{N}{1,3}"}
_WORDS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(
        rf"{short}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_OTHERS}"
        for short in _CONTRACTIONS
        for digits in sorted(_DIGITS)
    ),
}


def can_cut(data: dict[str, Any]) -> bool:
    """Whether pieces may be tokenized one by one; data: the content of tokenizer.json."""
    model = data.get("model", {})
    plain = all(
        not (token.get("lstrip") or token.get("rstrip") or token.get("single_word"))
        and not _OVER_A_CUT.search(token["content"])
        for token in data.get("added_tokens", [])
    )
    return plain and not model.get("dropout") and _safe_normalizer(data.get("normalizer")) and _safe_cutter(data)


def _safe_normalizer(normalizer: dict[str, Any] | None) -> bool:
    return normalizer is None or normalizer.get("type") in ("NFC", "BertNormalizer")


def _safe_cutter(data: dict[str, Any]) -> bool:
    cutter = data.get("pre_tokenizer") or {}
    steps = cutter.get("pretokenizers", []) if cutter.get("type") == "Sequence" else [cutter]
    kinds = [step.get("type") for step in steps]
    if kinds == ["BertPreTokenizer"]:
        return True
    if "ByteLevel" not in kinds or kinds.count("ByteLevel") > 1:
        return False
    at = kinds.index("ByteLevel")
    before, byte_level, after = steps[:at], steps[at], steps[at + 1 :]
    if byte_level.get("add_prefix_space", True) or not all(map(_removes_characters, after)):
        return False
    patterns = {_pattern(step) for step in before if step["type"] != "Digits"}
    words = byte_level.get("use_regex", True) or bool(patterns & _WORDS)
    return bool(words) and patterns <= _WORDS | _DIGITS


def _pattern(step: dict[str, Any]) -> str | None:
    """The expression of a step that makes each match a word of its own."""
    plain = step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
    return step["pattern"].get("Regex") if plain else None


def _removes_characters(step: dict[str, Any]) -> bool:
    """Whether a step takes out single characters, wherever they stand."""
    if step["type"] != "Split" or step["behavior"] != "Removed" or step["invert"]:
        return False
    return re.fullmatch(r"\[[^\[\]\\&^-]+\]", step["pattern"].get("Regex", "")) is not None


class WordEncoder:
    """Token ids of many texts.

    ids_of: a tokenizer's ids of each of several texts, nothing added. cut: whether their pieces may be treated one by
    one (see `can_cut`).
    """

    def __init__(self, ids_of: Callable[[list[str]], Iterable[list[int]]], cut: bool) -> None:
        self._ids_of, self._cut = ids_of, cut
        self._pause = 0  # batches that get whole texts, before it is tried again
        self._forget()

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """int32 [tokens] of all texts end to end and int64 [texts], how many of each; no BOS, no EOS."""
        if not self._cut or self._pause:
            self._pause = max(0, self._pause - 1)
            return _flatten(self._ids_of(texts), len(texts))
        if len(self._index) > _MOST_PIECES or self._characters > _MOST_CHARACTERS:
            self._forget()
        pieces = [_PIECES.findall(text) for text in texts]
        count = sum(map(len, pieces))
        slots = np.fromiter(map(self._index.__getitem__, chain.from_iterable(pieces)), np.int64, count)
        if self._learn() > _MOST_NEW * sum(map(len, texts)):
            self._pause = _PAUSE
        lengths = self._lengths[slots]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self._starts[slots] - ends[:-1], lengths) + np.arange(ends[-1])
        bounds = ends[np.concatenate([[0], np.cumsum([len(found) for found in pieces], dtype=np.int64)])]
        return self._tokens[places], np.diff(bounds)

    def _forget(self) -> None:
        self._index = _Index()
        self._characters = 0
        self._tokens = np.empty(0, np.int32)
        self._starts = self._lengths = np.empty(0, np.int64)

    def _learn(self) -> int:
        """The tokens of the pieces that were asked for but not known; returns how many characters these have."""
        new, self._index.new = self._index.new, []
        if new:
            tokens, lengths = _flatten(self._ids_of(new), len(new))
            starts = len(self._tokens) + np.cumsum(lengths) - lengths
            self._tokens = np.concatenate([self._tokens, tokens])
            self._starts = np.concatenate([self._starts, starts])
            self._lengths = np.concatenate([self._lengths, lengths])
        characters = sum(map(len, new))
        self._characters += characters
        return characters


class _Index(dict[str, int]):
    """The number of each piece; one that is asked for the first time gets the next, and is noted in `new`."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self)
        self.new.append(piece)
        return number


def _flatten(ids: Iterable[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    lists = list(ids)
    lengths = np.fromiter(map(len, lists), np.int64, count)
    return np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum())), lengths
