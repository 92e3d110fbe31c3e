"""The shape of a decoder as far as its cost goes, and how to read it from a configuration or by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, dense or with experts, with grouped-query or latent attention (MLA)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # of a dense layer
    vocab: int
    gated: bool = True  # gate, up and down; else up and down
    tied: bool = False  # the head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # of the experts that every token visits, together
    dense_layers: int = 0  # the first layers of a model with experts that have none
    # Latent attention of DeepSeek: 0 where the model has none
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    v_head_dim: int = 0
    o_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False  # LayerNorm with weight and bias; else RMSNorm
    positions: int = 0  # learned position vectors (GPT-2); 0: rotary
    shared_gate: bool = False  # a number for each token that scales the shared expert (Qwen2-MoE)
    dense_at: tuple[int, ...] = ()  # further layers without experts, by number

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward part of a layer, counted from 0, is a mixture of experts."""
        return self.experts > 0 and layer >= self.dense_layers and layer not in self.dense_at

    @property
    def q_size(self) -> int:
        """Numbers a token's queries have over all heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers a token's keys have over all heads; for latent attention those of the expanded keys."""
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Numbers that attention gives for a token, the input of the output projection."""
        return self.heads * (self.v_head_dim or self.head_dim)


def read_model(source: str | Path | Mapping[str, Any], where: str | None = None) -> ModelShape:
    """The shape of a model: a known name, a `config.json`, a folder that holds one, or its content as a mapping.

    `where` names the source in errors. Raises ConfigError for a model that is not known or a key that is missing.
    """
    from mindspeed_ms.parallel.plan import model_config  # it builds a ModelShape

    return model_config.read(source, where)
