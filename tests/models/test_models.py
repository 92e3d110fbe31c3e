"""Model files: what a config.json means, which names and shapes it makes, and how the network behaves."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mindspeed_ms.config.decoder import DecoderSpec, RopeScaling
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.models import MODEL_TYPES, build_model, spec_from_hf

# The published configurations, cut to the keys that decide shapes, with the parameter counts their authors state.
LLAMA2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
LLAMA32_1B = {
    "model_type": "llama",
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
QWEN25_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_mrope": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(LLAMA2_7B, 6_738_415_616), (LLAMA32_1B, 1_235_814_400), (QWEN25_7B, 7_615_616_512), (QWEN3_8B, 8_190_735_360)],
    ids=["llama-2-7b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-8b"],
)
def test_published_models_have_the_published_number_of_parameters(config, parameters):
    shapes = spec_from_hf(config).parameter_shapes()
    assert sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()) == parameters


def test_defaults_of_keys_that_old_configurations_lack():
    spec = spec_from_hf(LLAMA2_7B)
    assert (spec.num_key_value_heads, spec.head_dim, spec.rope_theta, spec.rope_scaling) == (32, 128, 10000.0, None)
    assert not spec.tie_word_embeddings and not spec.qkv_bias


def test_biases_follow_the_architecture():
    assert spec_from_hf(QWEN25_7B).qkv_bias and not spec_from_hf(QWEN25_7B).o_bias
    assert spec_from_hf(QWEN3_8B).qk_norm and not spec_from_hf(QWEN3_8B).qkv_bias
    assert spec_from_hf({**LLAMA2_7B, "attention_bias": True, "mlp_bias": True}).o_bias


def test_transformers_5_keeps_theta_beside_the_scaling():
    old = spec_from_hf(LLAMA32_1B)
    new = {key: value for key, value in LLAMA32_1B.items() if not key.startswith("rope_")}
    new["rope_parameters"] = {**LLAMA32_1B["rope_scaling"], "rope_theta": 500000.0}
    assert spec_from_hf(new) == old


def test_mixture_of_experts_is_refused_by_name():
    with pytest.raises(ConfigError, match="'qwen3_moe' is not supported, expected one of llama, qwen2, qwen3"):
        spec_from_hf({**QWEN3_8B, "model_type": "qwen3_moe"})


@pytest.mark.parametrize("config", [LLAMA2_7B, LLAMA32_1B, QWEN25_7B, QWEN3_8B])
@pytest.mark.parametrize("kind", [None, "linear", "llama3"])
def test_frequencies_equal_transformers(config, kind):
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": kind or "default", "rope_theta": float(config.get("rope_theta", 10000.0))}
    rope |= {"factor": 8.0} if kind else {}
    extra = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    rope |= extra if kind == "llama3" else {}
    config = {key: value for key, value in config.items() if not key.startswith("rope_")}
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers before 5 keeps its settings elsewhere")
    peer = transformers.LlamaConfig(**{**config, "model_type": "llama"}, rope_parameters=rope)
    right = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(peer).inv_freq.numpy()
    np.testing.assert_allclose(spec_from_hf({**config, "rope_parameters": rope}).inv_freq(), right, rtol=3e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        {"type": "factors"},
        {"type": "linear", "factors": [1.0]},
        {"type": "linear", "factor": float("nan")},
        {"type": "dynamic"},
    ],
)
def test_rope_scaling_that_makes_no_sense(bad):
    with pytest.raises(ConfigError):
        RopeScaling.parse(bad)


def test_factors_must_be_one_a_frequency():
    fields = {**spec_from_hf(LLAMA2_7B).model_dump(), "rope_scaling": {"type": "factors", "factors": [1.0] * 3}}
    with pytest.raises(ConfigError, match="rope_scaling.factors has 3 numbers, expected head_dim / 2 = 64"):
        DecoderSpec.parse(fields)


def test_a_spec_survives_json():
    for config in (LLAMA2_7B, LLAMA32_1B, QWEN25_7B, QWEN3_8B):
        spec = spec_from_hf(config)
        assert DecoderSpec.model_validate_json(spec.model_dump_json()) == spec


# ---- the networks ----

TINY = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def network(model_type, **changes):
    import mindspore as ms

    spec = spec_from_hf({"model_type": model_type, **TINY, **changes})
    model, rng = build_model(spec), np.random.default_rng(0)
    for _, parameter in model.parameters_and_names():
        scale = 1.0 if parameter.ndim == 1 else 1.5 / parameter.shape[1] ** 0.5
        parameter.set_data(ms.Tensor((rng.standard_normal(parameter.shape) * scale).astype(np.float32)))
    return model, spec


def logits(model, ids):
    import mindspore as ms

    return model(ms.Tensor(np.asarray(ids, np.int32))).asnumpy()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_parameters_are_named_and_shaped_as_in_hugging_face(model_type, tied):
    model, spec = network(model_type, tie_word_embeddings=tied)
    found = {name: tuple(parameter.shape) for name, parameter in model.parameters_and_names()}
    assert found == spec.parameter_shapes()
    assert all(parameter.name == name for name, parameter in model.parameters_and_names())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_token_sees_only_those_before_it(model_type):
    model, _ = network(model_type)
    one, other = logits(model, [[1, 2, 3, 4, 5]]), logits(model, [[1, 2, 3, 9, 9]])
    np.testing.assert_array_equal(one[:, :3], other[:, :3])
    assert np.abs(one[:, 3] - other[:, 3]).max() > 1e-2


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sequences_of_a_batch_do_not_touch(model_type):
    model, _ = network(model_type)
    ids = np.random.default_rng(1).integers(0, 40, (3, 7))
    together = logits(model, ids)
    assert together.shape == (3, 7, 40)
    for row in range(3):
        np.testing.assert_allclose(logits(model, ids[row : row + 1])[0], together[row], atol=1e-5)


def test_graph_and_eager_mode_agree():
    import mindspore as ms

    model, _ = network("qwen3")
    before = ms.get_context("mode")
    try:
        found = {}
        for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
            ms.set_context(mode=mode)
            found[mode] = logits(model, [[3, 1, 4, 1, 5]])
    finally:
        ms.set_context(mode=before)
    np.testing.assert_allclose(found[ms.GRAPH_MODE], found[ms.PYNATIVE_MODE], atol=1e-5)


def test_the_registry_imports_nothing_before_it_is_asked():
    import subprocess

    code = "import sys, mindspeed_ms.models; sys.exit('mindspore' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
