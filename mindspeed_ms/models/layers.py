"""The few pieces that model files share beside the operators: embedding, linear, rotary table, default head size."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer


class Embedding(nn.Cell):
    """ids [B, T] int32 -> [B, T, H] float32."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (vocab_size, hidden_size), ms.float32))

    def construct(self, ids: Tensor) -> Tensor:
        return ops.gather(self.weight, ids, 0)


class RotaryTable(nn.Cell):
    """ids [B, T] -> [B * T, D] float32: cosines then sines of positions 0..T-1, once a sequence.

    Angles are formed in float64: far into a context float32 would lose the fast frequencies' last digits.
    """

    def __init__(self, inv_freq: np.ndarray) -> None:
        super().__init__()
        self.inv_freq = Tensor(inv_freq.astype(np.float64)[None])

    def construct(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        positions = ops.tile(ops.arange(t), (b,)).reshape((b * t, 1))
        angles = positions.astype(ms.float64) * self.inv_freq
        return ops.concat((ops.cos(angles), ops.sin(angles)), -1).astype(ms.float32)


def linear(inputs: int, outputs: int, bias: bool) -> nn.Dense:
    """x [..., inputs] -> x w^T + b, [..., outputs], with `weight` [outputs, inputs]."""
    return nn.Dense(inputs, outputs, weight_init="zeros", bias_init="zeros", has_bias=bias)


def head_size(hidden_size: int, num_attention_heads: int) -> int:
    """Hugging Face's default head_dim; 0, which no spec accepts, where the numbers make no sense."""
    numbers = (hidden_size, num_attention_heads)
    return hidden_size // num_attention_heads if all(type(n) is int and n > 0 for n in numbers) else 0
