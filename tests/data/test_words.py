"""Tokenizing piece by piece gives what the library gives for whole texts, wherever it is done at all."""

import itertools
import json
import re

import numpy as np
import pytest
from data_tokenizers import LLAMA3, TEXT, byte_level, library_tokenizer, sentence_piece, word_piece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from mindspeed_ms.data import words
from mindspeed_ms.data.words import WordEncoder, can_cut

GGUF_LLAMA3 = LLAMA3.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]")


def composed():
    tok = byte_level(LLAMA3.replace("{1,3}", ""))
    tok.normalizer = normalizers.NFC()
    tok.add_tokens([AddedToken("<tool>", special=False, normalized=False), AddedToken("fox", normalized=True)])
    return tok


def without_some_bytes():
    """As a GGUF file's tokenizer is made when a byte has no token."""
    tok = byte_level(LLAMA3)
    steps = [*tok.pre_tokenizer, pre_tokenizers.Split(__import__("tokenizers").Regex("[Ġb]"), "removed")]
    tok.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tok


CUT = {
    "gpt-2": byte_level(),
    "smollm": byte_level(digits=True),
    "llama 3": byte_level(LLAMA3),
    "qwen 2": composed(),
    "gguf": byte_level(GGUF_LLAMA3),
    "some bytes removed": without_some_bytes(),
    "bert": word_piece(),
}
PARTS = [
    "The",
    "dog",
    "你好",
    "😀",
    "'s",
    "'LL",
    "don't",
    "1",
    "2024",
    ".",
    "!?",
    "<tool>",
    "fox",
    "é",
    "e\u0301",
    "\u0301",
]
SPACES = [" ", " ", "\n", "  ", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028", ""]
PIECED = st.lists(st.sampled_from(PARTS) | st.sampled_from(SPACES), max_size=12).map("".join)


def ids_of(tok):
    return lambda texts: [found.ids for found in tok.encode_batch_fast(texts, add_special_tokens=False)]


@pytest.mark.parametrize("name", CUT)
@settings(max_examples=300, deadline=None)
@given(texts=st.lists(PIECED | st.text(max_size=12), max_size=4))
def test_pieces_give_the_tokens_of_the_whole_text(name, texts):
    tok = CUT[name]
    assert can_cut(json.loads(tok.to_str()))
    tokens, lengths = WordEncoder(ids_of(tok), cut=True).encode(texts)
    expected = [tok.encode(text, add_special_tokens=False).ids for text in texts]
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [token for ids in expected for token in ids]


@settings(max_examples=300, deadline=None)
@given(PIECED | st.text(alphabet="ab,. \n\t'"))
def test_a_text_is_cut_where_it_is_certain_and_nowhere_else(text):
    places = r"""(?<=\S)(?= \S)|(?<=\S\n)(?=\S)|(?<=[A-Za-z])(?=[.,;:!?)"](?:\s|\Z))"""
    pieces = words._PIECES.findall(text)
    assert "".join(pieces) == text
    cuts = {match.start() for match in re.finditer(places, text)} - {0, len(text)}
    assert set(itertools.accumulate(map(len, pieces))) - {len(text)} <= cuts
    always = {match.start() for match in re.finditer(r"(?<=\S)(?= \S)|(?<=\S\n)(?=\S)", text)}
    assert always - {0, len(text)} <= set(itertools.accumulate(map(len, pieces)))


def changed(change):
    data = json.loads(byte_level().to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


UNSAFE = {
    "word-start marks": sentence_piece(),
    "a space in front": changed(lambda d: d["pre_tokenizer"].update(add_prefix_space=True)),
    "no cutting into words": changed(lambda d: d["pre_tokenizer"].update(use_regex=False)),
    "another expression": byte_level(r"\w+ \w+|\s+|[^\s\w]+"),
    "a lower-casing normalizer": changed(lambda d: d.update(normalizer={"type": "NFKC"})),
    "dropout": changed(lambda d: d["model"].update(dropout=0.5)),
    "an added token with a space": changed(
        lambda d: d["added_tokens"].append({**d["added_tokens"][0], "id": 340, "content": "quick brown"})
    ),
    "an added token with a mark after a letter": changed(
        lambda d: d["added_tokens"].append({**d["added_tokens"][0], "id": 340, "content": "No."})
    ),
    "an added token that takes the spaces beside it": changed(lambda d: d["added_tokens"][0].update(lstrip=True)),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_other_tokenizers_get_whole_texts(name):
    tok = UNSAFE[name]
    assert not can_cut(json.loads(tok.to_str()))
    if name == "dropout":
        return
    texts = [*TEXT, "", "a quick brown fox\nruns  <|im_end|> on"]
    tokens, lengths = WordEncoder(ids_of(tok), cut=False).encode(texts)
    expected = [tok.encode(text, add_special_tokens=False).ids for text in texts]
    assert [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] == expected


def test_what_is_remembered_is_bounded_and_forgetting_changes_nothing(monkeypatch):
    tok = byte_level()
    texts = [f"word{i} and {i}" for i in range(300)]
    expected = [token for text in texts for token in tok.encode(text).ids]
    monkeypatch.setattr(words, "_MOST_PIECES", 50)
    encoder = WordEncoder(ids_of(tok), cut=True)
    found = np.concatenate([encoder.encode(texts[i : i + 10])[0] for i in range(0, 300, 10)])
    assert found.tolist() == expected
    assert len(encoder._index) < 100


def test_no_texts_and_empty_texts():
    encoder = WordEncoder(ids_of(byte_level()), cut=True)
    assert [part.tolist() for part in encoder.encode([])] == [[], []]
    assert [part.tolist() for part in encoder.encode(["", ""])] == [[], [0, 0]]


def test_text_whose_pieces_do_not_come_again_is_no_longer_cut():
    tokenizer = library_tokenizer()
    asked = []

    def ids_of(texts):
        asked.append(texts)
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    words = WordEncoder(ids_of, cut=True)
    for number in range(40):
        texts = [f"new{number}a new{number}b", f"other{number} word{number}"]
        tokens, lengths = words.encode(texts)
        wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        assert tokens.tolist() == sum(wanted, []) and lengths.tolist() == [len(ids) for ids in wanted]
    assert sum(len(texts) == 2 for texts in asked) > 30, "whole texts"
    assert sum(len(texts) > 2 for texts in asked) > 1, "cutting is tried again"
