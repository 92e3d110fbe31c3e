"""A GPT-2-like network as a user of MindSpore writes it: nothing in this file knows of mindspeed_ms."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class CausalSelfAttention(nn.Cell):
    def __init__(self, hidden: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Dense(hidden, 3 * hidden)
        self.c_proj = nn.Dense(hidden, hidden)
        self.softmax = nn.Softmax(axis=-1)
        self.future = Tensor(np.triu(np.ones((context, context), np.bool_), 1))

    def construct(self, x):
        b, t, c = x.shape
        q, k, v = ops.split(self.c_attn(x), c, axis=2)
        q = q.reshape(b, t, self.heads, c // self.heads).swapaxes(1, 2)
        k = k.reshape(b, t, self.heads, c // self.heads).swapaxes(1, 2)
        v = v.reshape(b, t, self.heads, c // self.heads).swapaxes(1, 2)
        scores = ops.matmul(q, k.swapaxes(2, 3)) / (c // self.heads) ** 0.5
        scores = ops.masked_fill(scores, self.future[:t, :t], -1e9)
        y = ops.matmul(self.softmax(scores), v)
        return self.c_proj(y.swapaxes(1, 2).reshape(b, t, c))


class Block(nn.Cell):
    def __init__(self, hidden: int, heads: int, context: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.attn = CausalSelfAttention(hidden, heads, context)
        self.ln_2 = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.mlp = nn.SequentialCell(
            nn.Dense(hidden, 4 * hidden),
            nn.GELU(),
            nn.Dense(4 * hidden, hidden),
        )

    def construct(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Cell):
    """input_ids, labels [B, T] int32 -> the mean loss; a label of -100 counts for nothing."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, hidden, embedding_table="normal")
        self.wpe = nn.Embedding(context, hidden, embedding_table="normal")
        self.blocks = nn.CellList([Block(hidden, heads, context) for _ in range(layers)])
        self.ln_f = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.lm_head = nn.Dense(hidden, vocabulary, has_bias=False)
        self.loss = nn.CrossEntropyLoss(ignore_index=-100)

    def construct(self, input_ids, labels):
        x = self.wte(input_ids) + self.wpe(ops.arange(input_ids.shape[1], dtype=ms.int32))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return self.loss(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
