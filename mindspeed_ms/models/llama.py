"""Llama (Touvron et al., 2023; Llama 3, 2024). Parameters are named as in Hugging Face.

Shapes: B batch, T tokens, H hidden, D head size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor, nn, ops

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.config.huggingface import read_config, rope_scaling
from mindspeed_ms.models.layers import RotaryTable, document_starts, head_size, linear
from mindspeed_ms.ops.attention import Attention
from mindspeed_ms.ops.rms_norm import RMSNorm
from mindspeed_ms.ops.rotary import RotaryEmbedding
from mindspeed_ms.ops.swiglu import SwiGLU
from mindspeed_ms.ops.token_embedding import TokenEmbedding


@dataclass
class LlamaConfig:
    """`config.json` of a Llama, with Hugging Face's names and defaults."""

    model_type: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], where: str = "config.json") -> "LlamaConfig":
        """Read config.json; raises ConfigError for settings that are not supported."""
        return read_config(cls, config, where)

    def spec(self, where: str = "config.json") -> DecoderSpec:
        """The checked description of the model; raises ConfigError for numbers that make none."""
        fields = {**vars(self), "rope_scaling": rope_scaling(self.rope_scaling, where)}
        if self.num_key_value_heads is None:
            fields["num_key_value_heads"] = self.num_attention_heads
        if self.head_dim is None:
            fields["head_dim"] = head_size(self.hidden_size, self.num_attention_heads)
        fields["qkv_bias"] = fields["o_bias"] = fields.pop("attention_bias")
        return DecoderSpec.parse(fields, where)


class LlamaAttention(nn.Cell):
    """x [B, T, H], table [B * T, D] of cosines and sines -> [B, T, H]; a token sees those from its start on."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
        self.q_proj = linear(spec.hidden_size, self.heads * self.dim, spec.qkv_bias)
        self.k_proj = linear(spec.hidden_size, self.kv_heads * self.dim, spec.qkv_bias)
        self.v_proj = linear(spec.hidden_size, self.kv_heads * self.dim, spec.qkv_bias)
        self.o_proj = linear(self.heads * self.dim, spec.hidden_size, spec.o_bias)
        self.rotate = RotaryEmbedding()
        self.attend = Attention(self.dim**-0.5)

    def construct(self, x: Tensor, table: Tensor, starts: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        q = self.rotate(self.q_proj(x).reshape((b * t, self.heads, self.dim)), table)
        k = self.rotate(self.k_proj(x).reshape((b * t, self.kv_heads, self.dim)), table)
        v = self.v_proj(x).reshape((b, t, self.kv_heads, self.dim))
        q, k = q.reshape((b, t, self.heads, self.dim)), k.reshape((b, t, self.kv_heads, self.dim))
        return self.o_proj(self.attend(q, k, v, starts).reshape((b, t, self.heads * self.dim)))


class LlamaMLP(nn.Cell):
    """x [B, T, H] -> [B, T, H] through the gated inner layer."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_proj = linear(spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        self.up_proj = linear(spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        self.down_proj = linear(spec.intermediate_size, spec.hidden_size, spec.mlp_bias)
        self.act = SwiGLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x), self.up_proj(x)))


class LlamaBlock(nn.Cell):
    """x [B, T, H] -> [B, T, H]."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = LlamaAttention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = LlamaMLP(spec)

    def construct(self, x: Tensor, table: Tensor, starts: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table, starts)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Cell):
    """ids [B, T] int32 -> hidden states [B, T, H] after the last norm.

    `positions` [B, T] int32 are each token's place in its document: it sees the tokens of that document before it.
    """

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.CellList([LlamaBlock(spec) for _ in range(spec.num_hidden_layers)])
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.rotary_table = RotaryTable(spec.inv_freq())

    def construct(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        table = self.rotary_table(ids, positions)
        starts = document_starts(positions)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, table, starts)
        return self.norm(x)


class LlamaForCausalLM(nn.Cell):
    """ids [B, T] int32, positions as the model's -> logits [B, T, V] float32."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = LlamaModel(spec)
        self.tied = spec.tie_word_embeddings
        if not self.tied:
            self.lm_head = linear(spec.hidden_size, spec.vocab_size, False)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.model(ids, positions)
        if not self.tied:
            return self.lm_head(x)
        b, t, h = x.shape
        return self.matmul(x.reshape((b * t, h)), self.model.embed_tokens.weight).reshape((b, t, -1))
