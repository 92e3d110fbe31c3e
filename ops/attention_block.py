"""The attention half of a decoder layer: norm, QKV, rotation, cache write, attention, output, residual."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import aot_op, choose
from mindspeed_ms.ops.arena import Arena, Weight, vector
from mindspeed_ms.ops.linear import LinearReference
from mindspeed_ms.ops.paged_attention import CACHE_INPUTS, PagedAttentionReference
from mindspeed_ms.ops.rms_norm import RMSNormReference
from mindspeed_ms.ops.rotary import RotaryReference

# On Ascend the block is the chain of its parts' primitives, in this order.
ASCEND_CHAIN = (
    "RmsNorm", "QuantBatchMatmul", "ApplyRotaryPosEmb", "ReshapeAndCache", "PagedAttention", "QuantBatchMatmul",
)  # fmt: skip


@dataclass(frozen=True)
class AttentionWeights:
    """Where the block's weights lie in the arena: matrices as seven integers, vectors as offsets (-1: none)."""

    norm: int
    wq: Weight
    wk: Weight
    wv: Weight
    wo: Weight
    biases: Sequence[int] = (-1, -1, -1, -1)  # q, k, v, o
    qk_norm: Sequence[int] = (-1, -1)


@dataclass(frozen=True)
class AttentionShape:
    """The numbers of the block: layer in the cache, epsilon of its norms, softmax scale, heads and head size."""

    layer: int
    eps: float
    scale: float
    heads: int
    kv_heads: int
    head_dim: int


class AttentionBlockReference(nn.Cell):
    """The block composed from the references of its parts."""

    def __init__(self, shape: AttentionShape, weights: AttentionWeights, arena: Arena | None):
        super().__init__()
        self.shape, w = shape, weights
        hidden = w.wq[2]
        self.norm = RMSNormReference(shape.eps)
        self.norm_weight = Tensor(vector(arena, w.norm, hidden))
        self.q, self.k, self.v, self.o = (
            LinearReference(matrix, bias, arena)
            for matrix, bias in zip((w.wq, w.wk, w.wv, w.wo), w.biases, strict=True)
        )
        self.has_qk_norm = w.qk_norm[0] >= 0
        if self.has_qk_norm:
            self.q_norm, self.k_norm = (Tensor(vector(arena, offset, shape.head_dim)) for offset in w.qk_norm)
        self.rope = RotaryReference()
        self.attend = PagedAttentionReference(shape.layer, shape.scale, shape.kv_heads, shape.head_dim)

    def construct(self, x, table, arena, cache, positions, slots, seq_starts, block_tables):
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        h = self.norm(x, self.norm_weight)
        q = self.q(h, arena).reshape((-1, heads, dim))
        k = self.k(h, arena).reshape((-1, kv_heads, dim))
        v = self.v(h, arena).reshape((-1, kv_heads, dim))
        if self.has_qk_norm:
            q, k = self.norm(q, self.q_norm), self.norm(k, self.k_norm)
        q, k = self.rope(q, table), self.rope(k, table)
        y = self.attend(q, k, v, cache, positions, slots, seq_starts, block_tables)
        return x + self.o(y.reshape((-1, heads * dim)), arena)


def attention_block_native(shape: AttentionShape, weights: AttentionWeights) -> ops.Custom:
    """The native kernel, with the inputs of `AttentionBlock`."""
    attrs = {
        "layer": shape.layer,
        "eps": float(shape.eps),
        "scale": float(shape.scale),
        "heads": [shape.heads, shape.kv_heads, shape.head_dim],
        "norm": weights.norm,
        **{name: list(getattr(weights, name)) for name in ("wq", "wk", "wv", "wo", "biases", "qk_norm")},
    }
    inputs = [("x", "f32"), ("table", "f32"), ("arena", "u8"), *CACHE_INPUTS]
    return aot_op("AttentionBlock", inputs, [("y", "f32")], attrs, side_effect=True)


class AttentionBlock(nn.Cell):
    """x + o_proj(attention(rope(qkv(norm(x))))) over the paged cache, which it writes.

    x [T, H] float32, table [T, D] float32 (`RotaryTable`), arena uint8 [A], cache, positions, slots, seq_starts,
    block_tables (`paged_attention`) -> [T, H] float32.
    """

    reference = AttentionBlockReference

    def __init__(self, shape: AttentionShape, weights: AttentionWeights, arena: Arena | None = None):
        super().__init__()
        self.body = choose(
            lambda: attention_block_native(shape, weights), lambda: AttentionBlockReference(shape, weights, arena)
        )

    def construct(self, x, table, arena, cache, positions, slots, seq_starts, block_tables):
        return self.body(x, table, arena, cache, positions, slots, seq_starts, block_tables)
