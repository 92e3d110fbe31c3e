"""What config.json says of a new model beside its shape: what its first weights, its training and its users read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspeed_ms.errors import ConfigError


def check_new_model(config: Mapping[str, Any], vocab_size: int, where: str) -> None:
    """Raises ConfigError, which begins with `where`, for a value that a new model cannot be trained or used with."""
    std = config.get("initializer_range")
    if std is not None and (type(std) not in (int, float) or not 0 < std < float("inf")):
        raise ConfigError(f"{where}: initializer_range is {str(std)[:60]!r}; expected a number above 0, such as 0.02")
    for key in ("attention_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "hidden_dropout"):
        if config.get(key) not in (None, 0):
            raise ConfigError(f"{where}: {key} is {str(config[key])[:60]!r}; expected 0: it has no effect in training")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(key)
        for token in value if isinstance(value, list) and key == "eos_token_id" else [value]:
            if token is not None and (type(token) is not int or not 0 <= token < vocab_size):
                expected = f"expected a token from 0 to {vocab_size - 1}"
                raise ConfigError(f"{where}: {key} is {str(value)[:60]!r}; {expected}")
