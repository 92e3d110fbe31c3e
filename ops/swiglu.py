"""SwiGLU, the gated activation of Llama-like models (Shazeer, 2020): silu(gate) * up."""

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# The primitive takes [gate, up] joined along `dim`; its gradient: SwigluGrad.
ASCEND = AscendBody("Swiglu", ("input", "dim"))


class SwiGLUReference(nn.Cell):
    """gate, up float32 of one shape -> gate * sigmoid(gate) * up."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate * self.sigmoid(gate) * up


def swiglu_native() -> ops.Custom:
    """The native kernel: (gate, up) of one shape -> like gate; its gradient forms the sigmoid again."""
    inputs = [("dy", "f32"), ("gate", "f32"), ("up", "f32")]
    gradients = aot_op("SwigluGrad", inputs, [("dgate", "f32"), ("dup", "f32")], {})

    def bprop(gate, up, out, dout):
        return gradients(dout, gate, up)

    return aot_op("Swiglu", [("gate", "f32"), ("up", "f32")], [("y", "f32")], {}, bprop=bprop)


class SwiGLU(nn.Cell):
    """gate [..., F], up [..., F] float32 -> silu(gate) * up, float32."""

    reference = SwiGLUReference

    def __init__(self) -> None:
        super().__init__()
        self.body = choose(swiglu_native, SwiGLUReference)

    def construct(self, gate: Tensor, up: Tensor) -> Tensor:
        return like(self.body(single(gate), single(up)), gate)
