"""Model files, one an architecture, found by Hugging Face's `model_type` and imported only when asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindspore import nn

    from mindspeed_ms.config.decoder import DecoderSpec

# model_type: the prefix of its classes, as in Hugging Face; the module is named by the model_type
MODEL_TYPES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def spec_from_hf(config: Mapping[str, Any], where: str = "config.json") -> "DecoderSpec":
    """What `config.json` says, checked. Raises ConfigError for a model_type or a setting that is not supported."""
    return _load(config.get("model_type"), "Config", where).from_hf(config, where).spec(where)


def build_model(spec: "DecoderSpec") -> "nn.Cell":
    """The plain network of a spec, with zeros for weights: token ids [B, T] -> logits [B, T, V]."""
    return _load(spec.model_type, "ForCausalLM", "model")(spec)


def _load(model_type: Any, suffix: str, where: str) -> Any:
    from mindspeed_ms.errors import ConfigError

    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise ConfigError(f"{where}: model_type {model_type!r} is not supported, expected one of {known}")
    module = import_module(f"mindspeed_ms.models.{model_type}")
    return getattr(module, MODEL_TYPES[model_type] + suffix)
