"""Tokenizer files of Hugging Face directories: template and special ids wherever they are kept."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from weights_files import tokenizer_json

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights import open_model


def tokenizer_of(path, files=None):
    for name, content in (files or {}).items():
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return open_model(path).tokenizer


def test_the_bytes_are_those_of_the_file(hf_dir):
    files = tokenizer_of(hf_dir())
    assert files.tokenizer_json == tokenizer_json()
    assert (files.bos_token_id, files.eos_token_ids, files.pad_token_id, files.add_bos) == (None, [2], None, False)


@pytest.mark.parametrize(
    ("config", "generation", "settings", "expected"),
    [
        (2, None, None, [2]),
        ([2, 5], None, None, [2, 5]),
        (2, {"eos_token_id": [7, 8]}, None, [7, 8]),
        (2, {"eos_token_id": 7}, {"eos_token": "</s>"}, [7, 2]),
        (None, None, {"eos_token": {"content": "<s>", "special": True}}, [1]),
        (None, None, {"eos_token": "not in the vocabulary"}, []),
    ],
)
def test_end_tokens(hf_dir, config, generation, settings, expected):
    files = {"generation_config.json": generation, "tokenizer_config.json": settings}
    path = hf_dir(eos_token_id=config)
    assert tokenizer_of(path, {k: v for k, v in files.items() if v}).eos_token_ids == expected


@pytest.mark.parametrize("bad", ["2", [2, None], -1, 1.5, True, {"id": 2}])
def test_end_tokens_that_are_no_ids(hf_dir, bad):
    with pytest.raises(TokenizerError, match="eos_token_id is .*expected a token id or a list of them"):
        tokenizer_of(hf_dir(eos_token_id=bad))


def test_bos_and_pad(hf_dir):
    settings = {"bos_token": "<s>", "pad_token": "<unk>", "add_bos_token": True}
    files = tokenizer_of(hf_dir(), {"tokenizer_config.json": settings})
    assert (files.bos_token_id, files.pad_token_id, files.add_bos) == (1, 0, True)


def test_add_bos_is_what_the_tokenizers_own_post_processor_does(hf_dir):
    path = hf_dir(bos_token_id=1)
    assert not tokenizer_of(path).add_bos
    tokenizer = Tokenizer.from_buffer(tokenizer_json())
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    assert tokenizer_of(path, {"tokenizer.json": tokenizer.to_str()}).add_bos
    assert not tokenizer_of(path, {"tokenizer_config.json": {"add_bos_token": False}}).add_bos


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": "A"}, "chat_template.jinja": "J 模"}, "J 模"),
        ({"chat_template.json": {"chat_template": "B"}}, "B"),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, "D"),
        ({"tokenizer_config.json": {"chat_template": NAMED[:1]}}, "T"),
        ({"tokenizer_config.json": {"chat_template": []}}, None),
    ],
)
def test_chat_template(hf_dir, files, expected):
    assert tokenizer_of(hf_dir(), files).chat_template == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": "{}"}, "tokenizer.json: is not a tokenizer"),
        ({"tokenizer.json": "nonsense"}, "tokenizer.json: is not a tokenizer"),
        ({"tokenizer_config.json": "["}, "tokenizer_config.json: is not valid JSON"),
        ({"tokenizer_config.json": {"chat_template": 3}}, "chat_template is of type int, expected text"),
        ({"tokenizer_config.json": {"add_bos_token": True}}, "add_bos_token is true, but there is no bos_token"),
        ({"chat_template.jinja": "x" * (1 << 21)}, "chat_template.jinja: cannot be read .longer than 1048576 bytes"),
    ],
)
def test_bad_files_are_named(hf_dir, files, message):
    with pytest.raises(TokenizerError, match=message) as error:
        tokenizer_of(hf_dir(), files)
    assert "\n" not in str(error.value)


def test_an_old_tokenizer_file_is_named(hf_dir):
    path = hf_dir(tokenizer=False)
    (path / "tokenizer.model").touch()
    with pytest.raises(TokenizerError, match="tokenizer.model is not read, convert it with transformers'"):
        tokenizer_of(path)
