"""The few pieces that model files share beside the operators: linear, rotary table, starts, default head size."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.dense import Dense


class RotaryTable(nn.Cell):
    """ids [B, T], positions [B, T] int32 or None -> [B * T, D] float32: cosines, then sines, of each position.

    None stands for 0..T-1 in every sequence.

    Angles are formed in float64: far into a context float32 would lose the fast frequencies' last digits.
    """

    def __init__(self, inv_freq: np.ndarray) -> None:
        super().__init__()
        self.inv_freq = Tensor(inv_freq.astype(np.float64)[None])

    def construct(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        b, t = ids.shape
        if positions is None:
            positions = ops.tile(ops.arange(t), (b,))
        angles = positions.reshape((b * t, 1)).astype(ms.float64) * self.inv_freq
        return ops.concat((ops.cos(angles), ops.sin(angles)), -1).astype(ms.float32)


def document_starts(positions: Tensor | None) -> Tensor | None:
    """positions [B, T] in the documents of each row -> [B, T] int32: where the document of each token begins."""
    if positions is None:
        return None
    return ops.arange(positions.shape[1]).astype(ms.int32) - positions


def linear(inputs: int, outputs: int, bias: bool) -> Dense:
    """x [..., inputs] -> x w^T + b, [..., outputs], with `weight` [outputs, inputs], zeros."""
    return Dense(inputs, outputs, has_bias=bias)


def head_size(hidden_size: int, num_attention_heads: int) -> int:
    """Hugging Face's default head_dim; 0, which no spec accepts, where the numbers make no sense."""
    numbers = (hidden_size, num_attention_heads)
    return hidden_size // num_attention_heads if all(type(n) is int and n > 0 for n in numbers) else 0
