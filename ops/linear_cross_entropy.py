"""Output layer and cross entropy in one: the logits of all tokens are never in memory together.

After Cut Cross-Entropy (Wijmans et al., 2024) and Liger's fused linear cross entropy (Hsu et al., 2024): a block of
rows at a time goes through logits, losses and both gradients.
"""

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import single

# Behind MatMulExt; its gradient is CrossEntropyLossGrad.
ASCEND = AscendBody("CrossEntropyLoss", ("input", "target", "weight", "reduction", "ignore_index"))


class LinearCrossEntropyReference(nn.Cell):
    """x [M, H], weight [V, H] float32, labels [M] int32 -> loss [1], token_losses [M]; differentiable in x, weight."""

    def __init__(self, ignore_index: int) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.matmul = ops.MatMul(transpose_b=True)
        self.log_softmax = ops.LogSoftmax(-1)

    def construct(self, x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        ignored = labels == self.ignore_index
        chosen = ops.masked_fill(labels, ignored, 0).reshape((-1, 1))
        likelihood = ops.gather_elements(self.log_softmax(self.matmul(x, weight)), 1, chosen).reshape((-1,))
        losses = ops.masked_fill(-likelihood, ignored, 0.0)
        return losses.sum().reshape((1,)), ops.stop_gradient(losses)


def linear_cross_entropy_native(ignore_index: int, grad: bool, weight_grad: bool) -> ops.Custom:
    """The native kernel: (x [M, H], w [V, H], labels [M]) -> loss [1], token losses [M].

    With `grad` it also makes dx and, with `weight_grad`, dw for a loss gradient of 1: the backward pass only multiplies
    them by the one it gets, in place and only where it is not 1.
    """
    attrs, inputs = {"ignore_index": ignore_index}, [("x", "f32"), ("w", "f32"), ("labels", "i32")]
    outputs = [("loss", "f32"), ("token_losses", "f32")]
    if not grad:
        return aot_op("LinearCrossEntropy", inputs, outputs, attrs)
    scale = aot_op("ScaleInPlace", [("x", "f32"), ("by", "f32")], [("done", "f32")], {})
    outputs.append(("dx", "f32"))
    if not weight_grad:

        def bprop_input(x, w, labels, out, dout):  # type: ignore[no-untyped-def]
            dx = ops.depend(out[2], scale(out[2], dout[0]))
            return dx, ops.zeros_like(w), ops.zeros_like(labels)

        return _its_own(aot_op("LinearCrossEntropyGradInput", inputs, outputs, attrs, bprop=bprop_input))

    def bprop(x, w, labels, out, dout):  # type: ignore[no-untyped-def]
        dx = ops.depend(out[2], scale(out[2], dout[0]))
        dw = ops.depend(out[3], scale(out[3], dout[0]))
        return dx, dw, ops.zeros_like(labels)

    return _its_own(aot_op("LinearCrossEntropyGrad", inputs, [*outputs, ("dw", "f32")], attrs, bprop=bprop))


def _its_own(op: ops.Custom) -> ops.Custom:
    """An operator that MindSpore does not merge with an equal one: its outputs are scaled in place, once for each."""
    op.add_prim_attr("side_effect_hidden", True)
    return op


class LinearCrossEntropy(nn.Cell):
    """x [M, H] float32, weight [V, H] float32, labels [M] int32 -> loss [1], token_losses [M] float32.

    The loss is the sum over the tokens whose label is not `ignore_index`, and the only output with a gradient. Labels
    are `ignore_index` or in [0, V). In training the forward pass makes the gradients as well; `weight_grad=False`
    leaves out that of a weight which is not trained.
    """

    reference = LinearCrossEntropyReference

    def __init__(self, ignore_index: int = -100, weight_grad: bool = True) -> None:
        super().__init__()
        self.weight_grad = weight_grad
        self.eval_body = choose(
            lambda: linear_cross_entropy_native(ignore_index, False, False),
            lambda: LinearCrossEntropyReference(ignore_index),
        )
        self.train_body = choose(
            lambda: linear_cross_entropy_native(ignore_index, True, weight_grad),
            lambda: LinearCrossEntropyReference(ignore_index),
        )

    def construct(self, x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = single(x), single(weight)
        if not self.weight_grad:
            weight = ops.stop_gradient(weight)
        if self.training:
            out = self.train_body(x, weight, labels)
            return out[0], out[1]
        return self.eval_body(x, weight, labels)
