"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# Its gradient: RmsNormGrad(dy, x, rstd, gamma), rstd being the second output.
ASCEND = AscendBody("RmsNorm", ("x", "gamma"), {"epsilon": "eps"})


class RMSNormReference(nn.Cell):
    """x [..., H] float32, weight [H] float32 -> x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.rsqrt = ops.Rsqrt()

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * self.rsqrt(self.mean(x * x, -1) + self.eps) * weight


def rms_norm_native(eps: float) -> ops.Custom:
    """The native kernel: (x [..., H], weight [H]) -> like x; its gradient forms the scale of each row again."""
    attrs = {"eps": float(eps)}
    inputs = [("dy", "f32"), ("x", "f32"), ("w", "f32")]
    gradients = aot_op("RmsNormGrad", inputs, [("dx", "f32"), ("dw", "f32")], attrs)

    def bprop(x, w, out, dout):
        return gradients(dout, x, w)

    return aot_op("RmsNorm", [("x", "f32"), ("w", "f32")], [("y", "f32")], attrs, bprop=bprop)


class RMSNorm(nn.Cell):
    """Normalises the last axis: x [..., H] float32 -> [..., H] float32, with a `weight` parameter [H]."""

    reference = RMSNormReference

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = Parameter(Tensor(shape=(hidden_size,), dtype=ms.float32, init=ms.common.initializer.One()))
        self.body = choose(lambda: rms_norm_native(eps), lambda: RMSNormReference(eps))

    def construct(self, x: Tensor) -> Tensor:
        return like(self.body(single(x), single(self.weight)), x)
