"""What the `config.json` files of Hugging Face share: reading known fields, rope settings old and new, refusals."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from mindspeed_ms.config.decoder import RopeScaling
from mindspeed_ms.errors import ConfigError

Dataclass = TypeVar("Dataclass")

# Settings that change the computation in a way no model file here follows, with the values that switch them off.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1, 1.0),
    "attention_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1, 1.0),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}


def read_config(cls: type[Dataclass], config: Mapping[str, Any], where: str) -> Dataclass:
    """Fill a model file's configuration from `config.json`; keys it does not know are left, as Hugging Face does.

    A null or absent key takes the default. Raises ConfigError for a setting that would change the computation.
    """
    for key, neutral in _NEUTRAL.items():
        value = config.get(key)
        if value is not None and value not in neutral:
            wanted = " or ".join(map(repr, neutral)) if neutral else "none"
            raise ConfigError(f"{where}: {key} {value!r} is not supported, expected {wanted}")
    layer_types = config.get("layer_types") or ["full_attention"]
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise ConfigError(f"{where}: layer_types holds other layers than 'full_attention', which are not supported")
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    known = {key: value for key, value in config.items() if key in names and value is not None}
    if isinstance(config.get("rope_parameters"), Mapping):  # transformers 5 keeps theta and scaling together
        parameters = dict(config["rope_parameters"])
        theta = parameters.pop("rope_theta", None)
        if theta is not None:
            known["rope_theta"] = theta
        known["rope_scaling"] = parameters
    return cls(**known)


def rope_scaling(config: Mapping[str, Any] | None, where: str = "config.json") -> RopeScaling | None:
    """Turn a `rope_scaling` entry into ours, or None when it leaves the frequencies as they are.

    Raises ConfigError for a type that is not supported, by name.
    """
    if not config:
        return None
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: rope_scaling {config!r} is not an object; expected null or rope_type and factor")
    kind = config.get("rope_type", config.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ConfigError(f"{where}: rope_scaling type {kind!r} is not supported, expected default, linear or llama3")
    part = config.get("partial_rotary_factor")
    if part not in (None, 1, 1.0):
        raise ConfigError(f"{where}: partial_rotary_factor {part!r} is not supported, expected 1")
    if kind == "default":
        return None
    wanted = ["factor"]
    if kind == "llama3":
        wanted += ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
    missing = [key for key in wanted if config.get(key) is None]
    if missing:
        raise ConfigError(f"{where}: rope_scaling of type {kind!r} lacks {missing[0]}")
    return RopeScaling.parse({"type": kind, **{key: config[key] for key in wanted}}, where=f"{where}: rope_scaling")
