"""Layer normalisation (Ba, Kiros and Hinton, 2016)."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# Its gradient: LayerNormGrad.
ASCEND = AscendBody(
    "LayerNorm",
    ("input_x", "gamma", "beta"),
    {"begin_norm_axis": "-1", "begin_params_axis": "-1", "epsilon": "eps"},
)


class LayerNormReference(nn.Cell):
    """x [..., H], weight [H], bias [H] float32 -> (x - mean) / sqrt(variance + eps) * weight + bias."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.rsqrt = ops.Rsqrt()

    def normal(self, x: Tensor) -> Tensor:
        x = x - self.mean(x, -1)
        return x * self.rsqrt(self.mean(x * x, -1) + self.eps)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.normal(x) * weight + bias


class PlainLayerNormReference(LayerNormReference):
    """The same without a bias: (x [..., H], weight [H])."""

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.normal(x) * weight


def layer_norm_native(eps: float, has_bias: bool) -> ops.Custom:
    """The native kernel: (x [..., H], weight [H]), and bias [H] if any -> like x; its gradient forms the mean again."""
    attrs = {"eps": float(eps), "bias": int(has_bias)}
    ends = [("b", "f32")] if has_bias else []
    gradients = aot_op(
        "LayerNormGrad",
        [("dy", "f32"), ("x", "f32"), ("w", "f32")],
        [("dx", "f32"), ("dw", "f32"), *(("db", "f32") for _ in ends)],
        attrs,
    )

    def bprop(x, w, b, out, dout):
        return gradients(dout, x, w)

    def plain_bprop(x, w, out, dout):
        return gradients(dout, x, w)

    inputs = [("x", "f32"), ("w", "f32"), *ends]
    return aot_op("LayerNorm", inputs, [("y", "f32")], attrs, bprop=bprop if has_bias else plain_bprop)


class LayerNorm(nn.Cell):
    """Normalises the last axis: x [..., H] float32 -> [..., H] float32; parameters `weight` [H], `bias` [H] if any."""

    reference = LayerNormReference

    def __init__(self, hidden_size: int, eps: float = 1e-5, has_bias: bool = True):
        super().__init__()
        self.has_bias = has_bias
        self.weight = Parameter(initializer("ones", (hidden_size,), ms.float32))
        if has_bias:
            self.bias = Parameter(initializer("zeros", (hidden_size,), ms.float32))
        reference = LayerNormReference if has_bias else PlainLayerNormReference
        self.body = choose(lambda: layer_norm_native(eps, has_bias), lambda: reference(eps))

    def construct(self, x: Tensor) -> Tensor:
        if self.has_bias:
            return like(self.body(single(x), single(self.weight), single(self.bias)), x)
        return like(self.body(single(x), single(self.weight)), x)
