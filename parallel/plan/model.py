"""The shape of a decoder as far as its cost goes: sizes, experts, and how many parameters each piece holds."""

from __future__ import annotations

from dataclasses import dataclass


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
