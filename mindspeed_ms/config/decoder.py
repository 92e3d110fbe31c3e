"""The shape of one decoder-only language model, whatever file or framework it came from. Imports no MindSpore."""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from mindspeed_ms.config.base import Config

# Bounds far above any published model: they keep a lying configuration from asking for absurd memory.
Size = Annotated[int, Field(strict=True, ge=1, le=1 << 24)]
Number = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


class RopeScaling(Config):
    """How rotary frequencies are stretched: `linear` and `llama3` as in Hugging Face, `factors` as GGUF stores them.

    `factors` divides each of the head_dim / 2 frequencies by its own number.
    """

    type: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: Number = 1.0
    low_freq_factor: Number = 1.0
    high_freq_factor: Number = 4.0
    original_max_position_embeddings: Size = 8192
    factors: list[Number] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "RopeScaling":
        if self.type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor {self.high_freq_factor:g} is not above low_freq_factor {self.low_freq_factor:g}"
            )
        if (self.type == "factors") != (self.factors is not None):
            raise ValueError("factors must be given for type 'factors' and for no other")
        return self


class DecoderSpec(Config):
    """Everything that decides a decoder's computation and the shapes of its weights."""

    model_type: str
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(strict=True, ge=1, le=4096)]
    num_attention_heads: Annotated[int, Field(strict=True, ge=1, le=4096)]
    num_key_value_heads: Annotated[int, Field(strict=True, ge=1, le=4096)]
    head_dim: Annotated[int, Field(strict=True, ge=32, le=256, multiple_of=2)]
    rms_norm_eps: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1e-6
    rope_theta: Number = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] = 2048
    tie_word_embeddings: Flag = False
    qkv_bias: Flag = False
    o_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> "DecoderSpec":
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise ValueError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
        factors = self.rope_scaling.factors if self.rope_scaling else None
        if factors is not None and len(factors) != self.head_dim // 2:
            wanted = self.head_dim // 2
            raise ValueError(f"rope_scaling.factors has {len(factors)} numbers, expected head_dim / 2 = {wanted}")
        return self

    def inv_freq(self) -> np.ndarray:
        """Rotary frequencies in radians a position, scaling applied: float32 [head_dim / 2], computed in float64."""
        freq = float(self.rope_theta) ** (-np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        scaling = self.rope_scaling
        if scaling is not None:
            if scaling.type == "linear":
                freq = freq / scaling.factor
            elif scaling.type == "factors":
                freq = freq / np.asarray(scaling.factors, np.float64)
            elif scaling.type == "llama3":
                freq = _llama3(freq, scaling)
        return freq.astype(np.float32)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by its Hugging Face name, with its shape, in the order of the computation."""
        hidden, inner, dim = self.hidden_size, self.intermediate_size, self.head_dim
        q_size, kv_size = self.num_attention_heads * dim, self.num_key_value_heads * dim
        linears = {
            "self_attn.q_proj": (q_size, hidden, self.qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, self.qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, self.qkv_bias),
            "self_attn.o_proj": (hidden, q_size, self.o_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for index in range(self.num_hidden_layers):
            layer = f"model.layers.{index}"
            shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
            for name, (rows, columns, bias) in linears.items():
                shapes[f"{layer}.{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{layer}.{name}.bias"] = (rows,)
            if self.qk_norm:
                shapes[f"{layer}.self_attn.q_norm.weight"] = (dim,)
                shapes[f"{layer}.self_attn.k_norm.weight"] = (dim,)
            shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def _llama3(freq: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1's rule: long waves are stretched by `factor`, short ones kept, those between mixed smoothly."""
    turns = scaling.original_max_position_embeddings * freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return freq * (keep + (1 - keep) / scaling.factor)
