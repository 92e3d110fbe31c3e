"""The linear layer of training, y = x w^T + b, with its gradients."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Initializer, initializer

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# Its gradient is MatMulExt again: dy w, and dy^T x.
ASCEND = AscendBody("MatMulExt", ("input", "other"))


class DenseReference(nn.Cell):
    """x [..., K], w [N, K], optionally b [N] float32 -> [..., N]."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.matmul(x.reshape((-1, x.shape[-1])), weight)
        if bias is not None:
            y = y + bias
        return y.reshape((*x.shape[:-1], weight.shape[0]))


def dense_native(has_bias: bool) -> ops.Custom:
    """The native kernel: (x [..., K], w [N, K], b [N] where `has_bias`) -> [..., N]; gradients only where needed."""
    grad_input = aot_op("DenseGradInput", [("dy", "f32"), ("w", "f32")], [("dx", "f32")], {})
    grad_weight = aot_op("DenseGradWeight", [("dy", "f32"), ("x", "f32")], [("dw", "f32")], {})
    inputs, output = [("x", "f32"), ("w", "f32")], [("y", "f32")]
    if not has_bias:

        def bprop(x, w, out, dout):  # type: ignore[no-untyped-def]
            return grad_input(dout, w), grad_weight(dout, x)

        return aot_op("Dense", inputs, output, {}, bprop=bprop)
    grad_bias = aot_op("DenseGradBias", [("dy", "f32")], [("db", "f32")], {})

    def bprop_biased(x, w, b, out, dout):  # type: ignore[no-untyped-def]
        return grad_input(dout, w), grad_weight(dout, x), grad_bias(dout)

    return aot_op("DenseBias", [*inputs, ("b", "f32")], output, {}, bprop=bprop_biased)


class Dense(nn.Cell):
    """x [..., K] float32 -> x w^T + b, [..., N], with parameters `weight` [N, K] and, if asked for, `bias` [N]."""

    reference = DenseReference

    def __init__(
        self, in_channels: int, out_channels: int, has_bias: bool = False, weight_init: str | Initializer = "zeros"
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        self.weight = Parameter(initializer(weight_init, (out_channels, in_channels), ms.float32))
        if has_bias:
            self.bias = Parameter(initializer("zeros", (out_channels,), ms.float32))
        self.body = choose(lambda: dense_native(has_bias), DenseReference)

    def construct(self, x: Tensor) -> Tensor:
        if self.has_bias:
            return like(self.body(single(x), single(self.weight), single(self.bias)), x)
        return like(self.body(single(x), single(self.weight)), x)
