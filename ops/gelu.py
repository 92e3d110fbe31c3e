"""GELU (Hendrycks and Gimpel, 2016): x times the normal distribution function of x, or its tanh form."""

import math

from mindspore import Tensor, nn, ops

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# Its gradient: GeluGradExt.
ASCEND = AscendBody("GeluExt", ("input", "approximate"))


class GELUReference(nn.Cell):
    """x float32 of any shape -> like x."""

    def __init__(self, approximate: str):
        super().__init__()
        self.tanh = approximate == "tanh"

    def construct(self, x: Tensor) -> Tensor:
        if self.tanh:
            return x * ops.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))
        return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


def gelu_native(approximate: str) -> ops.Custom:
    """The native kernel: x of any shape -> like x."""
    attrs = {"tanh": int(approximate == "tanh")}
    gradient = aot_op("GeluGrad", [("dy", "f32"), ("x", "f32")], [("dx", "f32")], attrs)

    def bprop(x, out, dout):
        return (gradient(dout, x),)

    return aot_op("Gelu", [("x", "f32")], [("y", "f32")], attrs, bprop=bprop)


class GELU(nn.Cell):
    """x float32 of any shape -> GELU(x), float32. `approximate`: "none" (exact) or "tanh". Raises ConfigError."""

    reference = GELUReference

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ConfigError(f"approximate={approximate!r}: expected none or tanh")
        self.body = choose(lambda: gelu_native(approximate), lambda: GELUReference(approximate))

    def construct(self, x: Tensor) -> Tensor:
        return like(self.body(single(x)), x)
