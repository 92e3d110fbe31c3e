"""MindFormers checkpoints in and out. That the names are the package's, scripts/check_mindformers.sh shows."""

import numpy as np
import pytest
import yaml
from weights_files import write_hf

from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.weights import open_model
from mindspeed_ms.weights.ckpt import CkptFile
from mindspeed_ms.weights.ckpt_writer import write_ckpt
from mindspeed_ms.weights.mindformers import CKPT, YAML, MindFormersModel, write_mindformers

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS = {
    "llama": {"rms_norm_eps": 1e-6},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 4}},
    "llama-llama3": {"rope_scaling": LLAMA3},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 64},
    "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True},
}


def exported(tmp_path, kind="llama", **changes):
    source = open_model(write_hf(tmp_path / "hf", **{"hidden_size": 128, **KINDS[kind], **changes}))
    (tmp_path / "mf").mkdir()
    write_mindformers(tmp_path / "mf", source.spec, {"eos_token_id": [2, 3]}, source.get, "it")
    return source, tmp_path / "mf"


def opened(folder):
    return MindFormersModel(folder / CKPT, folder / YAML)


def change(folder, **values):
    """Change keys of model.model_config; None removes one."""
    settings = yaml.safe_load((folder / YAML).read_text())
    section = settings["model"]["model_config"]
    for key, value in values.items():
        section[key] = value
        if value is ...:
            del section[key]
    (folder / YAML).write_text(yaml.safe_dump(settings))


def rewrite(folder, arrays):
    (folder / CKPT).unlink()
    write_ckpt(folder / CKPT, [(name, None, array.shape, lambda a=array: a) for name, array in arrays.items()])


def stored(folder):
    file = CkptFile(folder / CKPT)
    return {name: file.stored(name).copy() for name in file.tensors}


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_out_comes_in_as_it_was(tmp_path, kind):
    source, folder = exported(tmp_path, kind)
    model = opened(folder)
    assert model.spec == source.spec and model.config["eos_token_id"] == 2
    tensors = model.tensors()
    assert set(tensors) == set(source.names())
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.read(), source.get(name))


def test_a_llama_has_the_names_and_keys_of_mindformers(tmp_path):
    _, folder = exported(tmp_path)
    names = set(CkptFile(folder / CKPT).tensors)
    assert {"model.tok_embeddings.embedding_weight", "model.norm_out.weight", "lm_head.weight"} < names
    assert {"model.layers.1.attention.wq.weight", "model.layers.1.feed_forward.w3.weight"} < names
    settings = yaml.safe_load((folder / YAML).read_text())
    assert settings["model"]["arch"]["type"] == "LlamaForCausalLM" and settings["use_legacy"] is True
    assert settings["model"]["model_config"]["rms_norm_eps"] == 1e-6, "YAML 1.1 reads 1e-06 as a text"


def test_a_qwen3_keeps_queries_keys_and_values_of_each_group_together(tmp_path):
    source, folder = exported(tmp_path, "qwen3")
    joined = CkptFile(folder / CKPT).get("decoder.layers.0.self_attention.linear_qkv.weight")
    q, k, v = (source.get(f"model.layers.0.self_attn.{name}_proj.weight") for name in "qkv")
    # 4 heads of 64 on 2 groups: queries 0 and 1, key 0, value 0, then those of the second group
    expected = np.concatenate([q[:128], k[:64], v[:64], q[128:], k[64:], v[64:]])
    np.testing.assert_array_equal(joined, expected)
    gate_up = CkptFile(folder / CKPT).get("decoder.layers.0.mlp.linear_fc1.weight")
    np.testing.assert_array_equal(gate_up[0::2], source.get("model.layers.0.mlp.gate_proj.weight"))
    np.testing.assert_array_equal(gate_up[1::2], source.get("model.layers.0.mlp.up_proj.weight"))


def test_contiguous_layouts_are_taken_apart_as_the_yaml_says(tmp_path):
    source, folder = exported(tmp_path, "qwen3")
    arrays = stored(folder)
    for index in range(2):
        layer, mine = f"decoder.layers.{index}", f"model.layers.{index}"
        parts = [source.get(f"{mine}.self_attn.{name}_proj.weight") for name in "qkv"]
        arrays[f"{layer}.self_attention.linear_qkv.weight"] = np.concatenate(parts)
        parts = [source.get(f"{mine}.mlp.{name}_proj.weight") for name in ("gate", "up")]
        arrays[f"{layer}.mlp.linear_fc1.weight"] = np.concatenate(parts)
    rewrite(folder, arrays)
    change(folder, use_contiguous_weight_layout_attention=True, use_interleaved_weight_layout_mlp=False)
    for name, tensor in opened(folder).tensors().items():
        np.testing.assert_array_equal(tensor.read(), source.get(name))


def test_optimizer_state_and_counters_are_left_aside(tmp_path):
    source, folder = exported(tmp_path)
    arrays = stored(folder)
    more = {f"adam_m.{name}": array for name, array in arrays.items()}
    rewrite(folder, {**arrays, **more, "global_step": np.array(5, np.int32), "scale_sense": np.array(1.0, np.float32)})
    assert set(opened(folder).tensors()) == set(source.names())


def test_half_precision_stays_as_it_is_stored(tmp_path):
    source, folder = exported(tmp_path)
    rewrite(folder, {name: array.astype(np.float16) for name, array in stored(folder).items()})
    tensor = opened(folder).tensors()["model.norm.weight"]
    assert tensor.dtype == "F16" and tensor.read().dtype == np.float16


def test_what_a_yaml_leaves_out_has_the_default_of_mindformers(tmp_path):
    _, folder = exported(tmp_path, rope_theta=10000.0, rms_norm_eps=1e-5)
    change(folder, theta=..., rms_norm_eps=..., extend_method="None", max_position_embedding=None)
    spec = opened(folder).spec
    assert (spec.rope_theta, spec.rms_norm_eps, spec.max_position_embeddings) == (10000.0, 1e-5, 128)


def test_a_missing_intermediate_size_follows_its_rule(tmp_path):
    _, folder = exported(tmp_path, intermediate_size=352)  # 4 * 128 * 2 / 3 = 341, up to a multiple of 32
    change(folder, intermediate_size=None, multiple_of=32)
    assert opened(folder).spec.intermediate_size == 352


def test_ntk_scaling_is_a_larger_theta(tmp_path):
    _, folder = exported(tmp_path)
    change(folder, extend_method="NTK", scaling_factor=2.0)
    assert opened(folder).spec.rope_theta == 20000.0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"new_trick": True}, "model_config.new_trick is not known"),
        ({"moe_config": {"expert_num": 8}}, "expert_num is 8, expected 1"),
        ({"quant_config": {"w": 8}}, "quant_config"),
        ({"extend_method": "YARN", "scaling_factor": {"factor": 2.0}}, "extend_method is 'YARN'"),
        ({"attn_proj_has_bias": True}, "attn_proj_has_bias"),
        ({"num_layers": 3}, "is missing; the YAML"),
        ({"num_layers": 1}, "is not part of the model"),
        ({"vocab_size": 49}, "has shape \\[48, 128\\], but the YAML makes it \\[49, 128\\]"),
        ({"hidden_size": "big"}, "hidden_size|head"),
        ({"qkv_has_bias": True}, "bias' is missing"),
    ],
)
def test_a_setting_that_would_change_the_numbers_is_one_clear_line(tmp_path, values, says):
    _, folder = exported(tmp_path)
    change(folder, **values)
    with pytest.raises((WeightsError, ConfigError), match=says) as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"untie_embeddings_and_output_weights": False}, "put one right"),
        ({"num_heads": 8}, "they are the same setting"),
        ({"qk_layernorm": False}, "qk_layernorm is False"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "'Qwen3MoeForCausalLM' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_a_qwen3_of_another_kind_is_one_clear_line(tmp_path, values, says):
    _, folder = exported(tmp_path, "qwen3")
    change(folder, **values)
    with pytest.raises(WeightsError, match=says):
        opened(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "holds a list"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("model: 3", "has no section model.model_config"),
        ("model: {model_config: {1: 2}}", "has no section model.model_config"),
        ("model: {model_config: {}}", "is not supported, expected LlamaForCausalLM"),
        ("model: {model_config: {num: !!timestamp 2001-99-99}}", "not valid YAML"),
    ],
)
def test_a_bad_yaml_is_one_clear_line(tmp_path, text, says):
    _, folder = exported(tmp_path)
    (folder / YAML).write_text(text)
    with pytest.raises(WeightsError, match=says):
        opened(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"head_dim": 64}, "head_dim 64 has no form"),
        ({"model_type": "qwen3", "rope_scaling": LLAMA3}, "'llama3' has no form in MindFormers' Qwen3"),
    ],
)
def test_a_model_without_a_form_there_is_refused(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        exported(tmp_path, **changes)
