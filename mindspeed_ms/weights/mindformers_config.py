"""The `model.model_config` section of a MindFormers 1.9.0 YAML, from and to a model's description.

A key that could change what the model computes is understood or refused; one that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.weights.mindformers_keys import CORE, CORE_ALIASES, FIXED, LLAMA, NEUTRAL
from mindspeed_ms.weights.mindformers_names import Family

Values = Mapping[str, Any]

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_CORE_CLASSES = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


def to_section(spec: DecoderSpec, ids: Values, where: str) -> tuple[Family, dict[str, Any]]:
    """The `model` section and the family it is of. `ids`: bos_token_id and so on. Raises ConfigError without a form."""
    first = {key: value[0] if isinstance(value, list) and value else value for key, value in ids.items()}
    named = {key: first[key] for key in _IDS if isinstance(first.get(key), int)}
    if spec.mlp_bias:
        raise ConfigError(f"{where}: mlp_bias has no form in MindFormers; export as hf or safetensors")
    if spec.model_type == "qwen3":
        return "core", _core_section(spec, named, where)
    return "llama", _llama_section(spec, named, where)


def _llama_section(spec: DecoderSpec, ids: Values, where: str) -> dict[str, Any]:
    if spec.head_dim * spec.num_attention_heads != spec.hidden_size:
        raise ConfigError(
            f"{where}: head_dim {spec.head_dim} has no form in MindFormers' Llama, expected hidden_size / heads; "
            "export as hf or safetensors"
        )
    values: dict[str, Any] = {
        "type": "LlamaConfig",
        "batch_size": 1,
        "seq_length": spec.max_position_embeddings,
        "max_position_embedding": spec.max_position_embeddings,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_layers": spec.num_hidden_layers,
        "num_heads": spec.num_attention_heads,
        "n_kv_heads": spec.num_key_value_heads,
        "intermediate_size": spec.intermediate_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "theta": spec.rope_theta,
        "qkv_has_bias": spec.qkv_bias,
        "attn_proj_has_bias": spec.o_bias,
        "qkv_concat": False,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "compute_dtype": "float32",
        "layernorm_compute_type": "float32",
        "softmax_compute_type": "float32",
        "rotary_dtype": "float32",
        "param_init_type": "float32",
        "use_past": False,
        "pad_token_id": -1,  # its default, 0, would hide a token from attention that texts may hold
        **ids,
    }
    scaling = spec.rope_scaling
    if scaling is not None and scaling.type == "linear":
        values |= {"extend_method": "PI", "scaling_factor": float(scaling.factor)}
    elif scaling is not None and scaling.type == "llama3":
        four = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        values |= {"extend_method": "LLAMA3", "scaling_factor": {key: getattr(scaling, key) for key in four}}
    elif scaling is not None and scaling.type != "default":
        raise ConfigError(f"{where}: rope scaling {scaling.type!r} has no form in MindFormers; export as hf")
    return {"arch": {"type": "LlamaForCausalLM"}, "model_config": values}


def _core_section(spec: DecoderSpec, ids: Values, where: str) -> dict[str, Any]:
    if spec.rope_scaling is not None and spec.rope_scaling.type != "default":
        raise ConfigError(
            f"{where}: rope scaling {spec.rope_scaling.type!r} has no form in MindFormers' Qwen3; export as hf"
        )
    if spec.qkv_bias or spec.o_bias:
        raise ConfigError(f"{where}: attention biases have no form in MindFormers' Qwen3; export as hf")
    return {
        "model_config": {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": spec.vocab_size,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "num_hidden_layers": spec.num_hidden_layers,
            "num_attention_heads": spec.num_attention_heads,
            "num_key_value_heads": spec.num_key_value_heads,
            "head_dim": spec.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": spec.max_position_embeddings,
            "seq_length": spec.max_position_embeddings,
            "rms_norm_eps": spec.rms_norm_eps,
            "rope_theta": spec.rope_theta,
            "tie_word_embeddings": spec.tie_word_embeddings,
            "untie_embeddings_and_output_weights": not spec.tie_word_embeddings,
            "attention_bias": False,
            "add_bias_linear": False,
            "qk_layernorm": True,
            "position_embedding_type": "rope",
            "use_contiguous_weight_layout_attention": False,
            "use_interleaved_weight_layout_mlp": True,
            "params_dtype": "float32",
            "compute_dtype": "float32",
            "layernorm_compute_dtype": "float32",
            "softmax_compute_dtype": "float32",
            "rotary_dtype": "float32",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            **ids,
        }
    }


def from_section(model: Any, where: str) -> tuple[Family, dict[str, Any], dict[str, Any]]:
    """Of a YAML's `model` section: its family, a Hugging Face config.json, and the settings with all defaults.

    Raises WeightsError that names the key.
    """
    section = model.get("model_config") if isinstance(model, Mapping) else None
    if not isinstance(section, Mapping) or not all(isinstance(key, str) for key in section):
        raise WeightsError(f"{where}: has no section model.model_config; expected the YAML of a MindFormers model")
    family, model_type = _kind(model, section, where)
    where = f"{where}: model.model_config"
    given = {key: _number(value) for key, value in section.items()}
    if family == "core":
        given = _without_aliases(given, where)
    known = LLAMA if family == "llama" else CORE
    for key, value in given.items():
        _check(key, value, known, where)
    values = {**known, **given}
    config = _llama_config(values, where) if family == "llama" else _core_config(values, model_type, where)
    return family, config | {key: values[key] for key in _IDS if values[key] is not None}, values


def _kind(model: Values, section: Values, where: str) -> tuple[Family, str]:
    arch = model.get("arch")
    names = section.get("architectures")
    found = [arch.get("type")] if isinstance(arch, Mapping) else names if isinstance(names, list) else [names]
    name = found[0] if found else None
    if name in _CORE_CLASSES:
        return "core", _CORE_CLASSES[name]
    if name == "LlamaForCausalLM":
        return "llama", "llama"
    kind = str(section.get("model_type", "")).lower()
    if name is None and kind in _CORE_CLASSES.values():
        return "core", kind
    raise WeightsError(
        f"{where}: model {name or kind or None!r} is not supported, expected LlamaForCausalLM (model.arch.type), or "
        f"{' or '.join(_CORE_CLASSES)} (model.model_config.architectures)"
    )


def _without_aliases(given: dict[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = CORE_ALIASES.get(key, key)
        if found.get(name, value) != value:
            raise WeightsError(f"{where}.{key} is {value!r}, but {name} is {found[name]!r}; they are the same setting")
        found[name] = value
    return found


def _check(key: str, value: Any, known: Values, where: str) -> None:
    if key in known or key in NEUTRAL:
        return
    if key == "moe_config":
        experts = value.get("expert_num", 1) if isinstance(value, Mapping) else value
        if experts in (None, 0, 1):
            return
        raise WeightsError(f"{where}.moe_config.expert_num is {experts!r}, expected 1: experts are not supported")
    if key not in FIXED:
        raise WeightsError(
            f"{where}.{key} is not known, and what it changes would be lost; remove it if it changes nothing"
        )
    if value not in FIXED[key]:
        wanted = " or ".join(repr(item) for item in FIXED[key])
        raise WeightsError(f"{where}.{key} is {str(value)[:80]!r}, which is not supported, expected {wanted}")


def _llama_config(values: Values, where: str) -> dict[str, Any]:
    qkv_bias, o_bias = values["qkv_has_bias"], values["attn_proj_has_bias"]
    if o_bias and not qkv_bias:
        raise WeightsError(f"{where}.attn_proj_has_bias is true and qkv_has_bias is not, which is not supported")
    model_type = "qwen2" if qkv_bias and not o_bias else "llama"
    config = {
        "model_type": model_type,
        "architectures": ["Qwen2ForCausalLM" if model_type == "qwen2" else "LlamaForCausalLM"],
        "vocab_size": values["vocab_size"],
        "hidden_size": values["hidden_size"],
        "intermediate_size": _intermediate(values, where),
        "num_hidden_layers": values["num_layers"],
        "num_attention_heads": values["num_heads"],
        "num_key_value_heads": values["n_kv_heads"] or values["num_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": values["max_position_embedding"] or values["seq_length"],
        "rms_norm_eps": values["rms_norm_eps"],
        "rope_theta": values["theta"],
        "tie_word_embeddings": values["tie_word_embeddings"],
    }
    if model_type == "llama":
        config |= {"attention_bias": bool(o_bias), "mlp_bias": False}
    return config | _rope(values, where)


def _rope(values: Values, where: str) -> dict[str, Any]:
    method, factor = values["extend_method"], values["scaling_factor"]
    if method in ("None", None):
        return {}
    if method in ("PI", "NTK") and isinstance(factor, (int, float)) and factor > 0:
        if method == "NTK":  # MindFormers multiplies theta by it
            return {"rope_theta": values["theta"] * factor}
        return {"rope_scaling": {"rope_type": "linear", "factor": float(factor)}}
    wanted = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    if method == "LLAMA3" and isinstance(factor, Mapping) and set(factor) == wanted:
        return {"rope_scaling": {"rope_type": "llama3", **factor}}
    raise WeightsError(
        f"{where}.extend_method is {method!r} with scaling_factor {str(factor)[:80]}, which is not supported, expected "
        "None, PI or NTK with a number, or LLAMA3 with its four numbers"
    )


def _core_config(values: Values, model_type: str, where: str) -> dict[str, Any]:
    tied, untied = values["tie_word_embeddings"], values.get("untie_embeddings_and_output_weights")
    if untied is not None and untied == tied:
        raise WeightsError(
            f"{where}.untie_embeddings_and_output_weights is {untied}, but tie_word_embeddings is {tied}; put one right"
        )
    bias = values.get("add_qkv_bias", model_type == "qwen2")
    norm = values.get("qk_layernorm", model_type == "qwen3")
    for key, found, wanted in (("add_qkv_bias", bias, "qwen2"), ("qk_layernorm", norm, "qwen3")):
        if bool(found) != (model_type == wanted):
            raise WeightsError(f"{where}.{key} is {found}, expected {model_type == wanted} for {model_type}")
    names = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings"),
    )
    name = "Qwen2ForCausalLM" if model_type == "qwen2" else "Qwen3ForCausalLM"
    config: dict[str, Any] = {"model_type": model_type, "architectures": [name], "hidden_act": "silu"}
    config |= {key: values[key] for key in names}
    if model_type == "qwen3":
        config |= {"head_dim": values["head_dim"], "attention_bias": False}
    return config


def _intermediate(values: Values, where: str) -> int:
    """LlamaConfig's rule where the size is not given."""
    if values["intermediate_size"] is not None:
        size: int = values["intermediate_size"]
        return size
    try:
        size = 4 * values["hidden_size"]
        if values["ffn_dim_multiplier"] is not None:
            size = int((values["ffn_dim_multiplier"] + 0.01) * size)
        size, multiple = int(2 * size / 3), values["multiple_of"]
        return int(multiple * ((size + multiple - 1) // multiple))
    except (TypeError, ZeroDivisionError, OverflowError, ValueError):
        raise WeightsError(
            f"{where}: hidden_size, ffn_dim_multiplier and multiple_of give no intermediate_size; give it"
        ) from None


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-6 as a text; MindFormers' own files write 1.e-6."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
