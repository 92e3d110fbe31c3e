"""From the `config.json` of Hugging Face to a ModelShape, for the model types whose parameters are known here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.log import get_logger
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.named_models import MODELS
from mindspeed_ms.paths import read_regular

_LOG = get_logger(__name__)
_MAX_BYTES = 4 << 20
_MAX_SIZE = 1 << 24  # far above any published model: a lying file must not ask for absurd loops


def read(source: str | Path | Mapping[str, Any], where: str | None = None) -> ModelShape:
    """See `model.read_model`."""
    if isinstance(source, Mapping):
        return parse(source, where or "model")
    name = str(source).lower()
    path = Path(source)
    if name in MODELS and not path.exists():
        return parse(MODELS[name], where or str(source), name=name)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise ConfigError(
            f"{where or source}: no such file, folder with a config.json or known model; known: {', '.join(MODELS)}"
        )
    return parse(_load(path), where or str(path), name=_name(path))


def parse(config: Mapping[str, Any], where: str, name: str = "") -> ModelShape:
    """The shape in the content of a `config.json`. Raises ConfigError that names the key that is wrong."""
    if isinstance(config.get("text_config"), Mapping):
        raise ConfigError(f"{where}: a model of several modes (text_config); give the configuration of its text part")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: model_type is {kind!r}; expected one of {', '.join(_READERS)}")
    reader = _READERS.get(kind)
    if reader is None:
        other = [key for key in config if "expert" in key or "lora_rank" in key or "conv" in key or "ssm" in key]
        if other:
            raise ConfigError(
                f"{where}: model_type {kind!r} is not known and has {other[0]!r}, so its size cannot be told; "
                f"known: {', '.join(_READERS)}"
            )
        _LOG.warning("%s: model_type %r is not known; it is taken for a Llama of these sizes", where, kind)
        reader = _llama
    shape = reader(_Keys(config, where), name or str(config.get("_name_or_path") or kind))
    _check(shape, where)
    return shape


class _Keys:
    """The keys of one configuration, read as whole numbers and flags with errors that name them."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; null and absent take the default, and without one are an error."""
        value = self.config.get(key)
        if value is None:
            if default is None:
                raise ConfigError(f"{self.where}: the key {key!r} is missing; expected a whole number")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_SIZE:
            raise ConfigError(f"{self.where}: {key} is {value!r}; expected a whole number from {least} to {_MAX_SIZE}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; null and absent take the default."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {key} is {value!r}; expected true or false")
        return value


def _llama(keys: _Keys, name: str) -> ModelShape:
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if keys.config.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{keys.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads} and there is no "
            "head_dim; give head_dim"
        )
    bias = keys.flag("attention_bias")
    return ModelShape(
        name=name,
        layers=keys.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        # Files older than grouped-query attention have no such key: every head has keys of its own.
        kv_heads=keys.size("num_key_value_heads", heads),
        head_dim=keys.size("head_dim", hidden // heads),
        ffn=keys.size("intermediate_size"),
        vocab=keys.size("vocab_size"),
        tied=keys.flag("tie_word_embeddings"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=keys.flag("mlp_bias"),
    )


def _qwen2(keys: _Keys, name: str) -> ModelShape:
    return replace(_llama(keys, name), qkv_bias=True, o_bias=False)


def _qwen3(keys: _Keys, name: str) -> ModelShape:
    return replace(_llama(keys, name), qk_norm=True, head_dim=keys.size("head_dim", 128))


def _experts(keys: _Keys, shape: ModelShape, **more: Any) -> ModelShape:
    """A Qwen model with experts in each layer that `decoder_sparse_step` and `mlp_only_layers` leave."""
    step = keys.size("decoder_sparse_step", 1)
    only = keys.config.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(layer) is int for layer in only):
        raise ConfigError(f"{keys.where}: mlp_only_layers is {only!r}; expected a list of layer numbers")
    return replace(
        shape,
        experts=keys.size("num_experts"),
        top_k=keys.size("num_experts_per_tok"),
        expert_ffn=keys.size("moe_intermediate_size"),
        dense_at=tuple(layer for layer in range(shape.layers) if layer in only or (layer + 1) % step),
        **more,
    )


def _qwen2_moe(keys: _Keys, name: str) -> ModelShape:
    return _experts(keys, _qwen2(keys, name), shared_ffn=keys.size("shared_expert_intermediate_size"), shared_gate=True)


def _qwen3_moe(keys: _Keys, name: str) -> ModelShape:
    return _experts(keys, _qwen3(keys, name))


def _mixtral(keys: _Keys, name: str) -> ModelShape:
    shape = _llama(keys, name)
    return replace(
        shape,
        experts=keys.size("num_local_experts"),
        top_k=keys.size("num_experts_per_tok"),
        expert_ffn=shape.ffn,
    )


def _deepseek(keys: _Keys, name: str) -> ModelShape:
    nope, rope = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    heads = keys.size("num_attention_heads")
    expert_ffn, layers = keys.size("moe_intermediate_size"), keys.size("num_hidden_layers")
    freq, first = keys.size("moe_layer_freq", 1), keys.size("first_k_dense_replace", 0, least=0)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=keys.size("hidden_size"),
        heads=heads,
        kv_heads=heads,  # each head expands keys and values of its own from the shared latent
        head_dim=nope + rope,
        ffn=keys.size("intermediate_size"),
        vocab=keys.size("vocab_size"),
        tied=keys.flag("tie_word_embeddings"),
        experts=keys.size("n_routed_experts"),
        top_k=keys.size("num_experts_per_tok"),
        expert_ffn=expert_ffn,
        shared_ffn=expert_ffn * keys.size("n_shared_experts", 0, least=0),
        dense_layers=first,
        dense_at=tuple(layer for layer in range(first, layers) if layer % freq),
        q_lora_rank=keys.size("q_lora_rank", 0),
        kv_lora_rank=keys.size("kv_lora_rank"),
        rope_dim=rope,
        v_head_dim=keys.size("v_head_dim"),
    )


def _gpt2(keys: _Keys, name: str) -> ModelShape:
    hidden, heads = keys.size("n_embd"), keys.size("n_head")
    if hidden % heads:
        raise ConfigError(f"{keys.where}: n_embd {hidden} is not a multiple of n_head {heads}")
    return ModelShape(
        name=name,
        layers=keys.size("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=keys.size("n_inner", 4 * hidden),
        vocab=keys.size("vocab_size"),
        gated=False,
        tied=keys.flag("tie_word_embeddings", True),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        norm_bias=True,
        positions=keys.size("n_positions", 1024),
    )


_READERS: dict[str, Callable[[_Keys, str], ModelShape]] = {
    "llama": _llama,
    "mistral": _llama,
    "baichuan": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
}


def _check(shape: ModelShape, where: str) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(
            f"{where}: {shape.heads} attention heads are not a multiple of {shape.kv_heads} key-value heads"
        )
    if shape.experts and shape.top_k > shape.experts:
        raise ConfigError(f"{where}: a token visits {shape.top_k} experts, of which a layer has only {shape.experts}")


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(read_regular(path, _MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a text file: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object of keys to values, got {type(content).__name__}")
    return content


def _name(path: Path) -> str:
    """`config.json` says nothing: its folder names the model."""
    return (
        path.resolve().parent.name
        if path.name == "config.json"
        else path.name.removesuffix(".json").removesuffix(".config")
    )
