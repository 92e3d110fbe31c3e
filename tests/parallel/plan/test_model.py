import json
import logging

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.named_models import MODELS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 320,
}


def test_a_file_older_than_grouped_queries_has_as_many_keys_as_queries():
    assert read_model(LLAMA).kv_heads == 4


def test_a_head_may_be_wider_than_its_share():
    assert read_model({**LLAMA, "head_dim": 32}).q_size == 128


def test_a_model_is_read_from_a_file_a_folder_or_by_name(tmp_path):
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    assert read_model(path) == read_model(path.parent)
    assert read_model(path).name == "tiny"
    assert read_model("Llama2-7B").hidden == 4096


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_can_be_read(name):
    assert read_model(name).name == name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "the key 'hidden_size' is missing"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
        ({"num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
        ({"num_key_value_heads": 3}, "not a multiple of 3 key-value heads"),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": "mamba", "conv_kernel": 4}, "'mamba' is not known and has 'conv_kernel'"),
        ({"text_config": {}}, "several modes"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ],
)
def test_a_wrong_key_is_named(change, words):
    with pytest.raises(ConfigError, match="somewhere: ") as error:
        read_model({**LLAMA, **change}, "somewhere")
    assert words in str(error.value)


def test_an_unknown_kind_with_the_keys_of_a_llama_is_taken_for_one_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="mindspeed_ms"):
        assert read_model({**LLAMA, "model_type": "internlm9"}).hidden == 64
    assert "internlm9" in caplog.text


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file.*known: llama2-7b"):
        read_model("llama9-7b")
    broken = tmp_path / "config.json"
    broken.write_text('{"hidden_size": ')
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_model(tmp_path)
    broken.write_text("[1]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_model(broken)
