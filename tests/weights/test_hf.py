"""Hugging Face and quantized directories: read without a second copy, contradictions named."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weights_files import CONFIG, hf_shapes, random_weights

from mindspeed_ms.errors import TokenizerError, WeightsError
from mindspeed_ms.weights import open_model

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_every_tensor_comes_back_as_it_was_saved(hf_dir, model_type, shards):
    config = {**CONFIG, "model_type": model_type}
    weights = random_weights(config)
    source = open_model(hf_dir(weights=weights, shards=shards, model_type=model_type))
    assert source.kind == "hf" and source.scheme is None and set(source.names()) == set(weights)
    for name in source.names():
        assert source.shape(name) == weights[name].shape
        np.testing.assert_array_equal(source.get(name), weights[name])


def test_float16_stays_float16_and_is_a_view(hf_dir):
    source = open_model(hf_dir(weights=random_weights(CONFIG, np.float16)))
    array = source.get("model.embed_tokens.weight")
    assert array.dtype == np.float16 and not array.flags.owndata


def test_opening_reads_no_weights(hf_dir):
    path = hf_dir(vocab_size=40000)
    open_model(path)  # imports are not what is measured
    tracemalloc.start()
    source = open_model(path)
    source.get("model.embed_tokens.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20 < (path / "model.safetensors").stat().st_size / 10


def test_tied_models_need_no_output_matrix_and_may_have_one(hf_dir):
    config = {**CONFIG, "tie_word_embeddings": True}
    both = random_weights(CONFIG)
    for name, weights in (("without", random_weights(config)), ("with", both)):
        source = open_model(hf_dir(name, weights=weights, tie_word_embeddings=True))
        assert "lm_head.weight" not in source.names() and source.spec.tie_word_embeddings


def test_missing_kv_heads_and_head_dim_take_their_defaults(hf_dir):
    weights = random_weights({**CONFIG, "num_attention_heads": 2, "num_key_value_heads": 2})
    source = open_model(hf_dir(weights=weights, num_attention_heads=2, num_key_value_heads=None, head_dim=None))
    assert (source.spec.num_key_value_heads, source.spec.head_dim) == (2, 32)


def test_old_rotary_buffers_are_passed_over(hf_dir):
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, np.float32)}
    assert len(open_model(hf_dir(weights=random_weights(CONFIG) | buffer)).names()) == len(hf_shapes(CONFIG))


def test_generation_settings(hf_dir):
    path = hf_dir()
    assert open_model(path).generation == {}
    given = {"temperature": 0.6, "top_k": 20, "do_sample": True, "top_p": None}
    (path / "generation_config.json").write_text(json.dumps(given))
    assert open_model(path).generation == {"temperature": 0.6, "top_k": 20}
    (path / "generation_config.json").write_text(json.dumps({"top_k": -1, "min_p": 0.1}))
    assert open_model(path).generation == {"top_k": 0, "min_p": 0.1}
    (path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(WeightsError, match="generation_config.json: temperature is 'hot', expected a number"):
        open_model(path).generation  # noqa: B018


# ---- what goes wrong ----


def refused(path, message, error=WeightsError):
    with pytest.raises(error, match=message) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def test_no_such_model(tmp_path):
    refused(tmp_path / "gone", "gone: no such model, expected a Hugging Face directory or a GGUF file")


def test_not_a_model_file(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path / "notes.txt", "notes.txt: does not start with GGUF")


def test_empty_directory(tmp_path):
    refused(tmp_path, "config.json: no such file")
    (tmp_path / "model.gguf").touch()
    refused(tmp_path, "has no config.json; give the file itself: model.gguf")


def test_a_bundle_is_not_exported_or_quantized_again(tmp_path):
    (tmp_path / "bundle.json").touch()
    refused(tmp_path, "is a bundle already, expected the model that it was made from")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ("\udcff", "is not valid JSON"),
        ("[" * 99999, "is not valid JSON"),
    ],
)
def test_broken_config(hf_dir, content, message):
    path = hf_dir()
    (path / "config.json").write_text(content, errors="surrogateescape")
    refused(path, f"config.json: {message}")


def test_no_weights(hf_dir):
    path = hf_dir()
    (path / "model.safetensors").unlink()
    refused(path, f"neither model.safetensors nor {INDEX} is there")
    (path / "pytorch_model.bin").touch()
    refused(path, r"pytorch_model.bin is a pickle, which is not read")


def test_missing_shard(hf_dir):
    path = hf_dir(shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    refused(path, "model-00002-of-00002.safetensors: no such file; a download may be incomplete")


def test_truncated_shard(hf_dir):
    path = hf_dir(shards=2)
    shard = path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    refused(path, "model-00002-of-00002.safetensors: tensor .* the file is truncated")


def test_index_that_names_a_tensor_the_shard_lacks(hf_dir):
    path = hf_dir(shards=1)
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["ghost.weight"] = "model-00001-of-00001.safetensors"
    (path / INDEX).write_text(json.dumps(index))
    refused(path, "tensor 'ghost.weight' is missing, though model.safetensors.index.json names it there")


@pytest.mark.parametrize("weight_map", [None, [], {"x": 3}])
def test_index_without_a_map(hf_dir, weight_map):
    path = hf_dir(shards=1)
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(path, "weight_map is not an object of file names")


@pytest.mark.parametrize("shard", ["../outside.safetensors", "sub/x", "/etc/passwd", "..", "", "a\0b", "..\\x"])
def test_index_that_points_outside_its_directory(hf_dir, shard):
    path = hf_dir(shards=1)
    (path.parent / "outside.safetensors").write_bytes((path / "model-00001-of-00001.safetensors").read_bytes())
    (path / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    refused(path, "is not a plain file name; the index must not point outside its directory")


def test_shard_that_is_a_link_out_of_the_directory(hf_dir):
    path = hf_dir(shards=1)
    shard = path / "model-00001-of-00001.safetensors"
    shard.rename(path.parent / "elsewhere.safetensors")
    shard.symlink_to(path.parent / "elsewhere.safetensors")
    refused(path, "is a link out of the directory")


def test_the_hub_cache_links_into_its_blobs(hf_dir):
    path = hf_dir("models--x/snapshots/abc", shards=1)
    shard = path / "model-00001-of-00001.safetensors"
    (path.parent.parent / "blobs").mkdir()
    shard.rename(path.parent.parent / "blobs" / "0123")
    shard.symlink_to("../../blobs/0123")
    assert open_model(path).names()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe' is not supported, expected one of llama, qwen2, qwen3"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads is 0|head_dim is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 1 << 40}, "hidden_size is 1099511627776"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"vocab_size": 48.5}, "vocab_size is 48.5"),
        ({"head_dim": 33}, "head_dim is 33"),
        ({"head_dim": 16}, "head_dim is 16"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, expected 'silu' or 'swish'"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds other layers"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling of type 'linear' lacks factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": [2]}, r"rope_scaling \[2\] is not an object"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq' is not supported"),
        ({"quantization_config": 3}, "quant_method None is not supported"),
    ],
)
def test_a_config_that_makes_no_model(hf_dir, changes, message):
    refused(hf_dir(weights=random_weights(CONFIG), **changes), f"config.json.*({message})")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 50}, r"'model.embed_tokens.weight' has shape \[48, 64\], but .* makes it \[50, 64\]"),
        ({"intermediate_size": 95}, "'model.layers.0.mlp.gate_proj.weight' has shape"),
        ({"num_key_value_heads": 4}, "'model.layers.0.self_attn.k_proj.weight' has shape"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' and 8 more is missing"),
        ({"num_hidden_layers": 1}, "'model.layers.1.* is not part of a llama model"),
        ({"attention_bias": True}, "'model.layers.0.self_attn.q_proj.bias' and 7 more is missing"),
        ({"model_type": "qwen3"}, "'model.layers.0.self_attn.q_norm.weight' and 3 more is missing"),
    ],
)
def test_a_config_that_contradicts_the_weights(hf_dir, changes, message):
    refused(hf_dir(weights=random_weights(CONFIG), **changes), message)


def test_a_missing_tensor_is_named(hf_dir):
    weights = random_weights(CONFIG)
    del weights["model.norm.weight"]
    refused(hf_dir(weights=weights), "tensor 'model.norm.weight' is missing")


def test_a_tensor_of_a_foreign_type_is_named(hf_dir):
    weights = random_weights(CONFIG)
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.int32)
    refused(hf_dir(weights=weights), "tensor 'model.norm.weight' has dtype I32, expected F32, F16, BF16")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_in_any_file_are_read_or_refused(hf_dir, tmp_path, data):
    path = tmp_path / "fuzz"
    if not path.exists():
        hf_dir("fuzz", shards=2, num_hidden_layers=1)
        (path / "generation_config.json").write_text('{"temperature": 0.5, "eos_token_id": [2, 1]}')
        (path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "chat_template": [{"template": "x"}]}')
    file = data.draw(st.sampled_from(sorted(path.iterdir())))
    good = file.read_bytes()
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(2000, len(content) - 1)))] = data.draw(st.integers(0, 255))
    try:
        file.write_bytes(content)
        source = open_model(path)
        _ = [source.get(name) for name in source.names()], source.generation, source.tokenizer
    except (WeightsError, TokenizerError) as error:
        assert "\n" not in str(error)
    finally:
        file.write_bytes(good)


def test_asking_for_a_name_that_is_not_there(hf_dir):
    source = open_model(hf_dir())
    for ask in (source.get, source.shape):
        with pytest.raises(WeightsError, match="no parameter 'x' in this llama model"):
            ask("x")


def test_no_tokenizer_is_said_when_it_is_asked_for(hf_dir):
    path = hf_dir(tokenizer=False)
    source = open_model(path)
    with pytest.raises(TokenizerError, match="tokenizer.json: no such file, the model has no tokenizer"):
        source.tokenizer  # noqa: B018
