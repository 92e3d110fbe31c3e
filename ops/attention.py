"""Causal attention with grouped queries on whole sequences (no cache)."""

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose

# BSND layout; sparse_mode 3 is the causal mask aligned to the last key.
ASCEND = AscendBody(
    "FlashAttentionScore",
    ("query", "key", "value", "real_shift", "drop_mask", "padding_mask", "attn_mask", "prefix"),
    {
        "head_num": "Hq",
        "keep_prob": "1.0",
        "scale_value": "scale",
        "pre_tokens": "2147483647",
        "next_tokens": "0",
        "input_layout": "BSND",
        "sparse_mode": "3",
    },
)


class AttentionReference(nn.Cell):
    """q [B, T, Hq, D], k, v [B, S, Hkv, D] float32 -> [B, T, Hq, D]; query t sees the keys up to t + S - T."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def construct(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, t, heads, dim = q.shape
        s, kv_heads = k.shape[1], k.shape[2]
        group = heads // kv_heads
        # the queries that share a key head lie one after the other: [B * Hkv, group * T, D]
        q = q.reshape((b, t, kv_heads, group, dim)).transpose((0, 2, 3, 1, 4)).reshape((b * kv_heads, group * t, dim))
        k = k.transpose((0, 2, 1, 3)).reshape((b * kv_heads, s, dim))
        v = v.transpose((0, 2, 1, 3)).reshape((b * kv_heads, s, dim))
        scores = (self.scores(q, k) * self.scale).reshape((b * kv_heads, group, t, s))
        hidden = ops.arange(s).reshape((1, s)) > ops.arange(t).reshape((t, 1)) + (s - t)
        weights = self.softmax(ops.masked_fill(scores, hidden, float("-inf"))).reshape((b * kv_heads, group * t, s))
        y = self.mix(weights, v).reshape((b, kv_heads, group, t, dim))
        return y.transpose((0, 3, 1, 2, 4)).reshape((b, t, heads, dim))


def attention_native(scale: float) -> ops.Custom:
    """The native kernel: (q, k, v) -> like q."""
    return aot_op("Attention", [("q", "f32"), ("k", "f32"), ("v", "f32")], [("y", "f32")], {"scale": float(scale)})


class Attention(nn.Cell):
    """Causal softmax(q k^T * scale) v with Hq a multiple of Hkv.

    q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, D] float32 -> [B, T, Hq, D] float32; T <= S, and query t sees the
    keys up to t + S - T.
    """

    reference = AttentionReference

    def __init__(self, scale: float):
        super().__init__()
        self.body = choose(lambda: attention_native(scale), lambda: AttentionReference(scale))

    def construct(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.body(q, k, v)
