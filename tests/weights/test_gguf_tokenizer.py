"""Tokenizers out of GGUF files: ids equal to those llama.cpp gave (data/tokens.json.gz), refusals by name.

tests/peers/make_token_golden.py wrote the data; tests/peers/test_llama_tokens.py compares 10,000 lines with llama.cpp.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights.gguf_tokenizer import read_tokenizer

KEY = "tokenizer.ggml."


@pytest.fixture(scope="module")
def golden():
    return json.loads(gzip.decompress((Path(__file__).parent / "data" / "tokens.json.gz").read_bytes()))


def metadata(golden, rule):
    given = {KEY + "bos_token_id": 1, KEY + "eos_token_id": 2}
    if rule == "spm":
        spm = golden["spm"]
        given |= {KEY + "model": "llama", KEY + "tokens": spm["tokens"], KEY + "scores": np.array(spm["scores"])}
        return given | {KEY + "token_type": np.array(spm["types"], np.int32)}
    given |= {KEY + "model": "gpt2", KEY + "pre": rule, KEY + "tokens": golden["tokens"]}
    return given | {KEY + "merges": golden["merges"], KEY + "token_type": np.array(golden["types"], np.int32)}


def encode(files, lines, special=False):
    tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
    tokenizer.encode_special_tokens = not special
    return [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]


@pytest.mark.parametrize("rule", ["smollm", "gpt-2", "llama-bpe", "qwen2", "default", "spm"])
def test_ids_equal_llama_cpps(golden, rule):
    found = encode(read_tokenizer(metadata(golden, rule), "x"), golden["lines"])
    wrong = [line for line, ids, right in zip(golden["lines"], found, golden["ids"][rule], strict=True) if ids != right]
    assert not wrong, f"{len(wrong)} lines differ, first {wrong[0]!r}"


def test_special_tokens_in_text_are_read_as_such_only_when_asked_for(golden):
    files = read_tokenizer(metadata(golden, "default"), "x")
    assert encode(files, golden["lines"], special=True) == golden["special_ids"]
    assert encode(files, ["<|im_start|>"], special=True) == [[1]]
    assert 1 not in encode(files, ["<|im_start|>"])[0]


@pytest.mark.parametrize("rule", ["smollm", "qwen2", "spm"])
def test_decoding_gives_the_text_back(golden, rule):
    files = read_tokenizer(metadata(golden, rule), "x")
    tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
    letters = set(golden["tokens"])
    for line in ["Hello  world 12 \n\tx", "naïve 模型 🙂", "a"]:
        if rule == "spm" or not {chr(256 + b) for b in line.encode() if b > 127} - letters:
            ids = tokenizer.encode(line, add_special_tokens=False).ids
            assert tokenizer.decode(ids) == line


def test_special_ids(golden):
    files = read_tokenizer(metadata(golden, "smollm"), "x")
    assert (files.bos_token_id, files.eos_token_ids, files.pad_token_id, files.add_bos) == (1, [2, 0], None, False)
    assert read_tokenizer(metadata(golden, "llama-bpe"), "x").add_bos
    assert read_tokenizer(metadata(golden, "spm"), "x").add_bos
    given = metadata(golden, "llama-bpe") | {KEY + "add_bos_token": False, KEY + "padding_token_id": 7}
    files = read_tokenizer(given, "x")
    assert not files.add_bos and files.pad_token_id == 7 and files.chat_template is None
    assert read_tokenizer(given | {"tokenizer.chat_template": "{{ 1 }}"}, "x").chat_template == "{{ 1 }}"


def test_user_defined_tokens_are_kept_whole_even_in_plain_text(golden):
    given = metadata(golden, "smollm")
    given[KEY + "tokens"] = [*golden["tokens"], "<tool>"]
    given[KEY + "token_type"] = np.array([*golden["types"], 4])
    assert encode(read_tokenizer(given, "x"), ["a<tool>b"])[0][1] == len(golden["tokens"])


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("smollm", {"model": None}, "'tokenizer.ggml.model' is missing"),
        ("smollm", {"model": "bert"}, "tokenizer model 'bert' is not supported, expected 'gpt2' or 'llama'"),
        ("smollm", {"model": 7}, "tokenizer model 7 is not supported"),
        ("smollm", {"pre": "gemma4"}, "pre-tokenizer 'gemma4' is not supported, expected one of default, gpt-2"),
        ("smollm", {"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ("smollm", {"tokens": ["a", "a"]}, "names a token twice"),
        ("smollm", {"tokens": ["a" * 5000]}, "a token of 5000 characters"),
        ("smollm", {"token_type": np.array([1])}, "'tokenizer.ggml.token_type' is no list of"),
        ("smollm", {"merges": None}, "'tokenizer.ggml.merges' is missing"),
        ("smollm", {"merges": ["ab"]}, "merge 'ab' is not two texts"),
        ("smollm", {"merges": ["zq qz"]}, "vocabulary and merges make no tokenizer"),
        ("smollm", {"bos_token_id": 1 << 31}, "bos_token_id' is 2147483648, expected a token id below"),
        ("llama-bpe", {"bos_token_id": None}, "bos_token_id' is missing"),
        ("spm", {"scores": None}, "'tokenizer.ggml.scores' is no list of"),
        (
            "spm",
            {"tokens": ["a"], "token_type": np.array([1]), "scores": np.zeros(1)},
            "byte token '<0x00>' is missing",
        ),
    ],
)
def test_bad_metadata_is_one_clear_line(golden, rule, changes, message):
    given = metadata(golden, rule) | {KEY + key: value for key, value in changes.items()}
    with pytest.raises(TokenizerError, match=message) as error:
        read_tokenizer({key: value for key, value in given.items() if value is not None}, "file.gguf")
    assert "\n" not in str(error.value) and str(error.value).startswith("file.gguf: ")
