"""Attention over a paged key-value cache for a ragged batch: prompt chunks and single tokens laid end to end.

The cache is one tensor [L, B, 2, Hkv, D16 * bs] (float32 or float16), D16 = D rounded up to 16, bs positions a block.
Of each block the keys lie as [D16][bs] and the values as [bs][D16]. A token's slot is block * bs + position % bs.
Tokens of one sequence are consecutive positions; `seq_starts` [S + 1] says where each sequence's tokens begin.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose

# Ascend keeps keys and values in two caches [B, bs, Hkv, D]: write them first, then attend.
ASCEND_WRITE = AscendBody("ReshapeAndCache", ("key", "value", "key_cache", "value_cache", "slot_mapping"))
ASCEND = AscendBody(
    "PagedAttention",
    ("query", "key_cache", "value_cache", "block_tables", "context_lens", "antiquant_scale", "antiquant_offset",
     "attn_mask", "q_seq_lens"),
    {"head_num": "Hq", "scale_value": "scale", "kv_head_num": "Hkv", "mask_mode": "MASK_DEFAULT"},
)  # fmt: skip
CACHE_INPUTS = [
    ("cache", "f32|f16"), ("positions", "i32"), ("slots", "i32"), ("seq_starts", "i32"), ("block_tables", "i32"),
]  # fmt: skip


class PagedAttentionReference(nn.Cell):
    """The same from built-in operators, with one copy of its sequence's keys and values a token: for tests."""

    def __init__(self, layer: int, scale: float, kv_heads: int, head_dim: int):
        super().__init__()
        self.layer, self.scale, self.kv_heads, self.head_dim = layer, scale, kv_heads, head_dim
        self.heads = Tensor(np.arange(kv_heads, dtype=np.int32).reshape(1, -1, 1))
        self.dims = Tensor(np.arange(head_dim, dtype=np.int32).reshape(1, 1, -1))
        self.write = ops.ScatterNdUpdate()
        self.write.add_prim_attr("side_effect_mem", True)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)

    def store(self, cache: Tensor, key_at: Tensor, value_at: Tensor, slots: Tensor, bs: int, kv: Tensor) -> Tensor:
        """Writes kv [2, T, Hkv, D] into the cache: one update, since a second one would write to a copy."""
        zero = ops.zeros_like(key_at + self.heads)
        block = (slots // bs).reshape((-1, 1, 1))
        places = (
            ops.stack((zero + self.layer, zero + block, zero, zero + self.heads, zero + key_at), -1),
            ops.stack((zero + self.layer, zero + block, zero + 1, zero + self.heads, zero + value_at), -1),
        )
        return self.write(cache, ops.stack(places), kv.astype(cache.dtype))

    def construct(self, q, k, v, cache, positions, slots, seq_starts, block_tables):
        heads, dim, kv_heads = q.shape[1], self.head_dim, self.kv_heads
        padded = (dim + 15) // 16 * 16
        bs = cache.shape[4] // padded
        offset = (slots % bs).reshape((-1, 1, 1))
        cache = self.store(cache, self.dims * bs + offset, offset * padded + self.dims, slots, bs, ops.stack((k, v)))

        # the blocks of each token's sequence: [T, M]
        tokens, columns = q.shape[0], block_tables.shape[1]
        rows = ops.arange(tokens).reshape((tokens, 1)) >= seq_starts[1:].reshape((1, -1))
        tables = ops.gather(block_tables, rows.astype(ms.int32).sum(-1), 0)
        blocks = ops.gather(cache[self.layer], ops.maximum(tables, 0).reshape((-1,)), 0)
        length = columns * bs
        keys = blocks[:, 0].reshape((tokens, columns, kv_heads, padded, bs)).transpose((0, 2, 1, 4, 3))
        values = blocks[:, 1].reshape((tokens, columns, kv_heads, bs, padded)).transpose((0, 2, 1, 3, 4))
        keys = keys.reshape((tokens * kv_heads, length, padded))[:, :, :dim].astype(ms.float32)
        values = values.reshape((tokens * kv_heads, length, padded))[:, :, :dim].astype(ms.float32)

        # what lies past a token's position may be anything, NaN too: it is replaced, never multiplied by zero
        unseen = ops.arange(length).reshape((1, length)) > positions.reshape((tokens, 1))
        unseen = ops.tile(unseen.reshape((tokens, 1, length)), (1, kv_heads, 1)).reshape((tokens * kv_heads, length, 1))
        values = ops.masked_fill(values, unseen, 0.0)
        scores = self.scores(q.reshape((tokens * kv_heads, heads // kv_heads, dim)), keys) * self.scale
        weights = self.softmax(ops.masked_fill(scores, unseen.reshape((tokens * kv_heads, 1, length)), float("-inf")))
        return self.mix(weights, values).reshape((tokens, heads, dim))


def paged_attention_native(layer: int, scale: float) -> ops.Custom:
    """The native kernel, with the inputs of `PagedAttention`."""
    inputs = [("q", "f32"), ("k", "f32"), ("v", "f32"), *CACHE_INPUTS]
    attrs = {"layer": layer, "scale": float(scale)}
    return aot_op("PagedAttention", inputs, [("y", "f32")], attrs, side_effect=True)


class PagedAttention(nn.Cell):
    """Writes this step's keys and values into the cache, then attends causally over each sequence's blocks.

    q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D] float32, cache (module docstring; written in place), positions [T],
    slots [T], seq_starts [S + 1], block_tables [S, M] int32 (-1: unused) -> [T, Hq, D] float32.
    """

    reference = PagedAttentionReference

    def __init__(self, layer: int, scale: float, kv_heads: int, head_dim: int):
        super().__init__()
        self.body = choose(
            lambda: paged_attention_native(layer, scale),
            lambda: PagedAttentionReference(layer, scale, kv_heads, head_dim),
        )

    def construct(self, q, k, v, cache, positions, slots, seq_starts, block_tables):
        return self.body(q, k, v, cache, positions, slots, seq_starts, block_tables)
