"""The feed-forward half of a decoder layer as one operator: norm, gate and up, SwiGLU, down, residual."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import aot_op, choose
from mindspeed_ms.ops.arena import Arena, Weight, vector
from mindspeed_ms.ops.linear import LinearReference
from mindspeed_ms.ops.rms_norm import RMSNormReference
from mindspeed_ms.ops.swiglu import SwiGLUReference

# On Ascend the block is the chain of its parts' primitives, in this order.
ASCEND_CHAIN = ("RmsNorm", "QuantBatchMatmul", "Swiglu", "QuantBatchMatmul")


@dataclass(frozen=True)
class MlpWeights:
    """Where the block's weights lie in the arena: matrices as seven integers, vectors as offsets (-1: none)."""

    norm: int
    gate: Weight
    up: Weight
    down: Weight
    biases: Sequence[int] = (-1, -1, -1)  # gate, up, down


class MlpBlockReference(nn.Cell):
    """The block composed from the references of its parts."""

    def __init__(self, eps: float, weights: MlpWeights, arena: Arena | None):
        super().__init__()
        self.norm = RMSNormReference(eps)
        self.norm_weight = Tensor(vector(arena, weights.norm, weights.gate[2]))
        self.gate, self.up, self.down = (
            LinearReference(matrix, bias, arena)
            for matrix, bias in zip((weights.gate, weights.up, weights.down), weights.biases, strict=True)
        )
        self.act = SwiGLUReference()

    def construct(self, x: Tensor, arena: Tensor) -> Tensor:
        h = self.norm(x, self.norm_weight)
        return x + self.down(self.act(self.gate(h, arena), self.up(h, arena)), arena)


def mlp_block_native(eps: float, weights: MlpWeights) -> ops.Custom:
    """The native kernel: (x [T, H], arena) -> [T, H]."""
    attrs = {
        "eps": float(eps),
        "norm": weights.norm,
        **{name: list(getattr(weights, name)) for name in ("gate", "up", "down", "biases")},
    }
    return aot_op("MlpBlock", [("x", "f32"), ("arena", "u8")], [("y", "f32")], attrs)


class MlpBlock(nn.Cell):
    """x [T, H] float32, arena uint8 [A] -> x + down(silu(gate(norm(x))) * up(norm(x))), [T, H] float32."""

    reference = MlpBlockReference

    def __init__(self, eps: float, weights: MlpWeights, arena: Arena | None = None):
        super().__init__()
        self.body = choose(lambda: mlp_block_native(eps, weights), lambda: MlpBlockReference(eps, weights, arena))

    def construct(self, x: Tensor, arena: Tensor) -> Tensor:
        return self.body(x, arena)
