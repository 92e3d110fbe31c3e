"""Causal attention with grouped queries on whole sequences (no cache), with gradients (Dao, FlashAttention-2, 2023)."""

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# BSND layout; sparse_mode 3 is the causal mask aligned to the last key. Gradient: FlashAttentionScoreGrad. Documents
# within a row are TND with actual_seq_qlen.
ASCEND = AscendBody(
    "FlashAttentionScore",
    ("query", "key", "value", "real_shift", "drop_mask", "padding_mask", "attn_mask", "prefix"),
    {
        "head_num": "Hq",
        "keep_prob": "1.0 - dropout",
        "scale_value": "scale",
        "pre_tokens": "2147483647",
        "next_tokens": "0",
        "input_layout": "BSND",
        "sparse_mode": "3",
    },
)


def scramble(x: Tensor) -> Tensor:
    """The hash "lowbias32" (Wellons, 2018) of int64 values below 2^32; its second factor is taken less 2^32 to fit."""
    x = ((x ^ (x // 65536)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x // 32768)) * (0x846CA68B - 2**32)) & 0xFFFFFFFF
    return x ^ (x // 65536)


def dropped(seed: Tensor, threshold: int, b: int, heads: int, t: int, s: int) -> Tensor:
    """Which probabilities are dropped: seed [2] int32 -> bool [b, heads, t, s], as the native kernel draws them."""
    seed = seed.astype(ms.int64) & 0xFFFFFFFF
    words = []
    for i in (1, 2):
        word = scramble((scramble((seed[0] + 0x9E3779B9 * i) & 0xFFFFFFFF) + seed[1]) & 0xFFFFFFFF)
        word = scramble((word + ops.arange(b).astype(ms.int64).reshape((b, 1, 1, 1))) & 0xFFFFFFFF)
        word = scramble((word + ops.arange(heads).astype(ms.int64).reshape((1, heads, 1, 1))) & 0xFFFFFFFF)
        words.append(scramble((word + ops.arange(t).astype(ms.int64).reshape((1, 1, t, 1))) & 0xFFFFFFFF))
    x = (words[0] + ops.arange(s).astype(ms.int64) * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ (x // 65536)) * 0x7FEB352D) & 0xFFFFFFFF
    x = (((x ^ (x // 32768)) + words[1]) * (0x846CA68B - 2**32)) & 0xFFFFFFFF
    return (x ^ (x // 65536)) // 256 < threshold


class AttentionReference(nn.Cell):
    """q [B, T, Hq, D], k, v [B, S, Hkv, D] float32 -> [B, T, Hq, D]; query t sees the keys up to t + S - T.

    `starts` [B, T] int32 names the first key that a query sees; `seed` [2] int32 draws the dropped probabilities.
    """

    def __init__(self, scale: float, dropout: float = 0.0):
        super().__init__()
        self.scale = scale
        self.keep = 1.0 / (1.0 - dropout)
        self.threshold = round(dropout * 2**24)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def construct(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None = None, seed: Tensor | None = None
    ) -> Tensor:
        b, t, heads, dim = q.shape
        s, kv_heads = k.shape[1], k.shape[2]
        group = heads // kv_heads
        # the queries that share a key head lie one after the other: [B, Hkv, group * T, D]. Batch and heads are not
        # joined: tensor parallelism splits the heads, data parallelism the batch.
        q = q.reshape((b, t, kv_heads, group, dim)).transpose((0, 2, 3, 1, 4)).reshape((b, kv_heads, group * t, dim))
        k, v = k.transpose((0, 2, 1, 3)), v.transpose((0, 2, 1, 3))
        scores = (self.scores(q, k) * self.scale).reshape((b, heads, t, s))
        hidden = ops.arange(s).reshape((1, s)) > ops.arange(t).reshape((t, 1)) + (s - t)
        if starts is not None:
            hidden = ops.logical_or(hidden, ops.arange(s).reshape((1, 1, 1, s)) < starts.reshape((b, 1, t, 1)))
        weights = self.softmax(ops.masked_fill(scores, hidden, float("-inf")))
        if seed is not None:
            weights = ops.masked_fill(weights * self.keep, dropped(seed, self.threshold, b, heads, t, s), 0.0)
        y = self.mix(weights.reshape((b, kv_heads, group * t, s)), v).reshape((b, kv_heads, group, t, dim))
        return y.transpose((0, 3, 1, 2, 4)).reshape((b, t, heads, dim))


def attention_native(scale: float, dropout: float = 0.0) -> ops.Custom:
    """The native kernel: (q, k, v, starts [B, T] or [1] for none, seed [2]) -> like q, and log-sum-exp [B, Hq, T]."""
    attrs: dict[str, object] = {"scale": float(scale), "dropout": float(dropout)}
    heads, extra = [("q", "f32"), ("k", "f32"), ("v", "f32")], [("starts", "i32"), ("seed", "i32")]
    saved, grads = [("y", "f32"), ("lse", "f32")], [("dq", "f32"), ("dk", "f32"), ("dv", "f32")]
    grad = aot_op("FlashAttentionGrad", [("dy", "f32"), *heads, *saved, *extra], grads, attrs)

    def bprop(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, seed: Tensor, out: Any, dout: Any) -> tuple[Tensor, ...]:
        dq, dk, dv = grad(dout[0], q, k, v, out[0], out[1], starts, seed)
        return dq, dk, dv, ops.zeros_like(starts), ops.zeros_like(seed)

    return aot_op("FlashAttention", [*heads, *extra], saved, attrs, bprop=bprop)


class AttentionNative(nn.Cell):
    """The native body, used as AttentionReference is."""

    def __init__(self, scale: float, dropout: float = 0.0):
        super().__init__()
        self.attend = attention_native(scale, dropout)
        self.no_starts, self.no_seed = Tensor([0], ms.int32), Tensor([0, 0], ms.int32)

    def construct(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None = None, seed: Tensor | None = None
    ) -> Tensor:
        first = self.no_starts if starts is None else starts
        return self.attend(q, k, v, first, self.no_seed if seed is None else seed)[0]


class Attention(nn.Cell):
    """Causal softmax(q k^T * scale) v with Hq a multiple of Hkv.

    q [B, T, Hq, D], k [B, S, Hkv, D], v [B, S, Hkv, D] float32 -> [B, T, Hq, D] float32; T <= S, and query t sees the
    keys up to t + S - T. With `starts` [B, T] int32 (and S == T) it sees none before starts[b, t], the first token of
    its document: 0 <= starts[b, t] <= t.

    In training the share `dropout` of the probabilities is dropped, drawn from `seed` [2] int32: each is a function of
    seed, batch row, head, query and key, so that another seed a step is all it needs. Raises ConfigError unless
    0 <= dropout < 1.
    """

    reference = AttentionReference

    def __init__(self, scale: float, dropout: float = 0.0):
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout={dropout!r}: expected a share of at least 0 and below 1")
        # Shares that round to nothing are nothing: the draw has 24 bits.
        self.drops = round(dropout * 2**24) > 0
        self.body = choose(lambda: AttentionNative(scale), lambda: AttentionReference(scale))
        if self.drops:
            self.dropping = choose(lambda: AttentionNative(scale, dropout), lambda: AttentionReference(scale, dropout))

    def construct(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None = None, seed: Tensor | None = None
    ) -> Tensor:
        if self.drops and self.training:
            if seed is None:
                raise ValueError("attention with dropout needs a seed in training")
            return like(self.dropping(single(q), single(k), single(v), starts, seed), q)
        return like(self.body(single(q), single(k), single(v), starts), q)
