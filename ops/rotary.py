"""Rotary position embedding (Su et al., 2021), half-split: element i turns with element i + D/2.

The frequencies carry the scaling (default, linear, llama3): they are a vector of the weight arena, computed once from
the configuration, so the kernels know of no scaling. Angles are formed in float64: position 100,000 times a float32
frequency would be off by thousandths.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.arena import Arena, vector
from mindspeed_ms.ops.precision import like, single

# Its gradient: RotaryPositionEmbeddingGrad; ApplyRotaryPosEmb has none.
ASCEND = AscendBody("RotaryPositionEmbedding", ("x", "cos", "sin", "mode"))
ASCEND_QUERY_KEY = AscendBody("ApplyRotaryPosEmb", ("query", "key", "cos", "sin", "position_ids"), {"cos_format": "0"})


class RotaryTableReference(nn.Cell):
    """positions [T] int32 -> [T, D] float32: the cosines of the D/2 angles, then their sines."""

    def __init__(self, inv_freq: Sequence[float] | np.ndarray):
        super().__init__()
        self.inv_freq = Tensor(np.asarray(inv_freq, np.float64)[None])

    def construct(self, positions: Tensor, arena: Tensor) -> Tensor:
        angles = positions.reshape((-1, 1)).astype(ms.float64) * self.inv_freq
        return ops.concat((ops.cos(angles), ops.sin(angles)), -1).astype(ms.float32)


class RotaryReference(nn.Cell):
    """x [T, heads, D], table [T, D] float32 -> x rotated, [T, heads, D]."""

    def construct(self, x: Tensor, table: Tensor) -> Tensor:
        half = x.shape[2] // 2
        cos, sin = table[:, None, :half], table[:, None, half:]
        low, high = x[:, :, :half], x[:, :, half:]
        return ops.concat((low * cos - high * sin, high * cos + low * sin), -1)


def rotary_table_native(inv_freq: int, head_dim: int) -> ops.Custom:
    """The native kernel: (positions [T] int32, arena) -> [T, D] float32."""
    attrs = {"inv_freq": inv_freq, "head_dim": head_dim}

    def bprop(positions, arena, out, dout):
        return ops.zeros_like(positions), ops.zeros_like(arena)

    return aot_op("RopeTable", [("positions", "i32"), ("arena", "u8")], [("table", "f32")], attrs, bprop=bprop)


def rotary_native() -> ops.Custom:
    """The native kernel: (x [T, heads, D], table [T, D]) -> like x; its gradient turns back. The table has none."""
    turn_back = aot_op("RopeGrad", [("dy", "f32"), ("table", "f32")], [("dx", "f32")], {})

    def bprop(x, table, out, dout):
        return turn_back(dout, table), ops.zeros_like(table)

    return aot_op("Rope", [("x", "f32"), ("table", "f32")], [("y", "f32")], {}, bprop=bprop)


class RotaryTable(nn.Cell):
    """Cosines and sines of a step's positions, computed once for all layers.

    positions [T] int32, arena uint8 [A] -> [T, D] float32. `inv_freq` is the offset of the D/2 float32 frequencies.
    """

    reference = RotaryTableReference

    def __init__(self, inv_freq: int, head_dim: int, arena: Arena | None = None):
        super().__init__()
        self.body = choose(
            lambda: rotary_table_native(inv_freq, head_dim),
            lambda: RotaryTableReference(vector(arena, inv_freq, head_dim // 2)),
        )

    def construct(self, positions: Tensor, arena: Tensor) -> Tensor:
        return self.body(positions, arena)


class RotaryEmbedding(nn.Cell):
    """Rotates queries or keys: x [T, heads, D], table [T, D] float32 -> [T, heads, D] float32."""

    reference = RotaryReference

    def __init__(self) -> None:
        super().__init__()
        self.body = choose(rotary_native, RotaryReference)

    def construct(self, x: Tensor, table: Tensor) -> Tensor:
        return like(self.body(single(x), single(table)), x)
