"""The last norm and the output layer, for the rows of a step whose logits are wanted."""

from dataclasses import dataclass

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import aot_op, choose
from mindspeed_ms.ops.arena import Arena, Weight, vector
from mindspeed_ms.ops.linear import LinearReference
from mindspeed_ms.ops.rms_norm import RMSNormReference

# On Ascend the head is the chain of its parts' primitives, in this order.
ASCEND_CHAIN = ("Gather", "RmsNorm", "MatMulExt")


@dataclass(frozen=True)
class HeadWeights:
    """Where the head's weights lie in the arena: the matrix as seven integers, vectors as offsets (-1: none)."""

    norm: int
    weight: Weight
    bias: int = -1


class LmHeadReference(nn.Cell):
    """The head composed from the references of its parts."""

    def __init__(self, eps: float, weights: HeadWeights, arena: Arena | None):
        super().__init__()
        self.norm = RMSNormReference(eps)
        self.norm_weight = Tensor(vector(arena, weights.norm, weights.weight[2]))
        self.linear = LinearReference(weights.weight, weights.bias, arena)

    def construct(self, x: Tensor, rows: Tensor, arena: Tensor) -> Tensor:
        return self.linear(self.norm(ops.gather(x, rows, 0), self.norm_weight), arena)


def lm_head_native(eps: float, weights: HeadWeights) -> ops.Custom:
    """The native kernel: (x [T, H], rows [R] int32, arena) -> [R, V]."""
    attrs = {"eps": float(eps), "norm": weights.norm, "weight": list(weights.weight), "bias": weights.bias}
    return aot_op("LmHead", [("x", "f32"), ("rows", "i32"), ("arena", "u8")], [("y", "f32")], attrs)


class LmHead(nn.Cell):
    """x [T, H] float32, rows [R] int32, arena uint8 [A] -> logits of those rows, [R, V] float32."""

    reference = LmHeadReference

    def __init__(self, eps: float, weights: HeadWeights, arena: Arena | None = None):
        super().__init__()
        self.body = choose(lambda: lm_head_native(eps, weights), lambda: LmHeadReference(eps, weights, arena))

    def construct(self, x: Tensor, rows: Tensor, arena: Tensor) -> Tensor:
        return self.body(x, rows, arena)
