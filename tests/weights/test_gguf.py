"""GGUF models: values equal the gguf package's own dequantization, rows in Hugging Face's order, variants refused."""

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weights_files import CONFIG, gguf_name, patched, permute, random_weights

from mindspeed_ms.errors import TokenizerError, WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.weights import open_model

Q = gguf.GGMLQuantizationType


def values(found):
    return found.dequantize() if isinstance(found, QuantTensor) else np.asarray(found, np.float32)


def expected(path, name, config):
    """What the gguf package reads, with llama.cpp's row order undone by sorting the rows it came from."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == gguf_name(name))
    array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    for letter, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
        if config["model_type"] == "llama" and f".{letter}_proj." in name:
            array = array[np.argsort(permute(np.arange(array.shape[0]), heads))]
    return array


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_every_value_equals_the_gguf_packages(gguf_file, model_type, kind):
    config = {**CONFIG, "model_type": model_type}
    weights = random_weights(config)
    path = gguf_file(weights=weights, kind=kind, model_type=model_type)
    source = open_model(path)
    assert source.kind == "gguf" and set(source.names()) == set(weights)
    for name in source.names():
        found = source.get(name)
        assert isinstance(found, QuantTensor) == (kind[0] == "Q" and weights[name].ndim == 2)
        assert source.shape(name) == weights[name].shape == tuple(found.shape)
        np.testing.assert_array_equal(values(found), expected(path, name, config), err_msg=name)
        if kind == "F32":
            np.testing.assert_array_equal(found, weights[name])


def test_biases_of_a_llama_are_put_in_order_too(gguf_file):
    rng = np.random.default_rng(3)
    sizes = {"q": 128, "k": 64, "v": 64, "o": 64}
    bias = {
        f"model.layers.{i}.self_attn.{p}_proj.bias": rng.standard_normal(n).astype(np.float32)
        for i in range(2)
        for p, n in sizes.items()
    }
    source = open_model(gguf_file(weights=random_weights(CONFIG) | bias))
    assert source.spec.qkv_bias and source.spec.o_bias
    for name, array in bias.items():
        np.testing.assert_array_equal(source.get(name), array)


def test_the_configuration_is_read(gguf_file):
    spec = open_model(gguf_file(model_type="qwen3", rope_theta=1e6)).spec
    assert spec.model_dump() == {
        "model_type": "qwen3",
        "vocab_size": 48,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": True,
    }


def test_tied_when_there_is_no_output_matrix(gguf_file):
    weights = random_weights({**CONFIG, "tie_word_embeddings": True})
    assert open_model(gguf_file(weights=weights)).spec.tie_word_embeddings


def test_rope_factors_divide_the_frequencies(gguf_file):
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    plain = open_model(gguf_file("plain.gguf")).spec.inv_freq()
    scaled = open_model(gguf_file("scaled.gguf", tensors={"rope_freqs.weight": factors})).spec
    np.testing.assert_allclose(scaled.inv_freq(), plain / factors, rtol=1e-6)
    assert scaled.rope_scaling.type == "factors"


def test_linear_rope_scaling(gguf_file):
    def extra(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    plain = open_model(gguf_file("plain.gguf")).spec.inv_freq()
    np.testing.assert_allclose(open_model(gguf_file("x.gguf", extra=extra)).spec.inv_freq(), plain / 4, rtol=1e-6)


# ---- what goes wrong ----


def refused(path, message):
    with pytest.raises(WeightsError, match=message) as caught:
        open_model(path)
    assert "\n" not in str(caught.value) and path.name in str(caught.value)


def test_unsupported_architecture_is_named(gguf_file):
    refused(gguf_file(model_type="gemma3"), "architecture 'gemma3' is not supported, expected one of llama")


def test_unsupported_tensor_type_is_named(gguf_file):
    def extra(writer):
        writer.add_tensor("blk.0.ffn_up.bias", np.zeros((1, 144), np.uint8), raw_dtype=Q.Q4_K)

    refused(gguf_file("q4k.gguf", extra=extra), "has type Q4_K, which is not supported, expected one of F32, F16")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_count", 8, "llama.expert_count 8 is not supported"),
        ("attention.sliding_window", 4096, "llama.attention.sliding_window 4096 is not supported"),
        ("rope.dimension_count", 16, "llama.rope.dimension_count 16 is not the head size 32"),
    ],
)
def test_variants_with_another_computation_are_refused(gguf_file, key, value, message):
    refused(gguf_file(extra=lambda writer: writer.add_uint32(f"llama.{key}", value)), message)


def test_yarn_is_refused(gguf_file):
    yarn = gguf.RopeScalingType.YARN
    refused(gguf_file(extra=lambda writer: writer.add_rope_scaling_type(yarn)), "'yarn' is not supported")


def test_part_of_a_split_model_is_refused(gguf_file):
    refused(gguf_file(extra=lambda writer: writer.add_uint16("split.count", 2)), "is one part of a split model")


def test_head_counts_a_layer_are_refused(gguf_file, monkeypatch):
    monkeypatch.setattr("weights_files.permute", lambda weight, heads: weight)
    path = gguf_file(num_key_value_heads=[2, 1], weights=random_weights(CONFIG))
    refused(path, "head_count_kv' is .*expected one int")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "head_count is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 34}, "'model.layers.0.self_attn.q_proj.weight' has shape"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' and 8 more is missing"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers is 2147483648"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"intermediate_size": 64}, "'model.layers.0.mlp.gate_proj.weight' has shape"),
    ],
)
def test_metadata_that_contradicts_the_tensors(gguf_file, monkeypatch, changes, message):
    monkeypatch.setattr("weights_files.permute", lambda weight, heads: weight)
    refused(gguf_file(weights=random_weights(CONFIG), **changes), message)


def test_missing_metadata_is_named(gguf_file, tmp_path):
    path = patched(gguf_file(), tmp_path / "x.gguf", b"llama.block_count", b"llama.block_coin!")
    refused(path, "metadata 'llama.block_count' is missing")


def test_truncated_file(gguf_file, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(gguf_file().read_bytes()[:-5000])
    refused(tmp_path / "cut.gguf", "it is truncated, download it again")


def test_no_tokenizer_is_said_when_it_is_asked_for(gguf_file):
    source = open_model(gguf_file(tokenizer=False))
    with pytest.raises(TokenizerError, match="'tokenizer.ggml.model' is missing, the file has no tokenizer"):
        source.tokenizer  # noqa: B018


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_model_with_flipped_header_bytes_is_read_or_refused(gguf_file, tmp_path, data):
    good = tmp_path / "good.gguf"
    if not good.exists():
        gguf_file("good.gguf", kind="Q4_1", num_hidden_layers=1)
    content = bytearray(good.read_bytes())
    end = content.index(b"token_embd.weight") + 3000
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, end))] = data.draw(st.integers(0, 255))
    (tmp_path / "bad.gguf").write_bytes(content)
    try:
        source = open_model(tmp_path / "bad.gguf")
        for name in source.names():
            source.get(name)
        source.tokenizer  # noqa: B018
    except (WeightsError, TokenizerError) as error:
        assert "\n" not in str(error)
