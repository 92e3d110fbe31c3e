"""Linear layers on weights of the arena: float32, W8A8, W4A8 (integer activations), W8A16, W4A16 (float activations).

With integer activations each group of a token's inputs is quantized when it is needed:
scale = max|x| / 127, q = round_half_even(x * (127 / max|x|)); the products of integers are summed exactly.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.arena import Arena, Weight, matrix, vector
from mindspeed_ms.ops.native.quant import QuantTensor

ASCEND = AscendBody("MatMulExt", ("input", "other"))
ASCEND_QUANTIZE = AscendBody("DynamicQuantExt", ("x", "smooth_scales"))
ASCEND_INT8 = AscendBody(
    "QuantBatchMatmul",
    ("x1", "x2", "scale", "offset", "bias", "pertokenScaleOptional"),
    {"transpose_x1": "False", "transpose_x2": "True", "dtype": "float16"},
)
ASCEND_FLOAT_ACTIVATIONS = AscendBody(
    "WeightQuantBatchMatmul",
    ("x", "weight", "antiquant_scale", "antiquant_offset", "quant_scale", "quant_offset", "bias"),
    {"transpose_x": "False", "transpose_weight": "True", "antiquant_group_size": "group"},
)
_EXACT = 512  # 512 products of int8 sum below 2^24: a float32 matmul adds them without rounding
_FLOOR = 1e-30  # a group of smaller values counts as zero


def act_group(group: int, columns: int) -> int:
    """How many inputs share one activation scale: the weight's own group, or the whole row."""
    return group or columns


class FloatLinear(nn.Cell):
    """x [T, K] float32 -> x w^T + bias, with the weight [N, K] dequantized: float32, W8A16 and W4A16."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray):
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(weight.T)), requires_grad=False)
        self.bias = Tensor(bias)
        self.matmul = ops.MatMul()

    def construct(self, x: Tensor) -> Tensor:
        return self.matmul(x, self.weight) + self.bias


class IntegerLinear(nn.Cell):
    """x [T, K] float32 -> [T, N]: the integer arithmetic of W8A8 and W4A8, exact up to the scales."""

    def __init__(self, weight: QuantTensor, bias: np.ndarray):
        super().__init__()
        rows, columns = weight.shape
        step = min(weight.group or _EXACT, -(-columns // 32) * 32)  # inputs of one exact sum
        sums = -(-columns // step)
        share = min(act_group(weight.group, sums * step), sums * step)
        codes = np.zeros((rows, sums * step), np.float32)
        codes[:, :columns] = weight.codes()
        if weight.bits == 4 and weight.mins is None:
            codes[:, :columns] -= 8
        per_sum = np.ones((1, sums), np.float32) if weight.scales.shape[1] == 1 else 1.0
        pad = np.arange(sums * step)
        self.inputs = Tensor(np.where(pad < columns, pad, 0).astype(np.int32))
        self.mask = Tensor((pad < columns).astype(np.float32))
        self.shares, self.sums, self.step = sums * step // share, sums, step
        self.codes = Parameter(Tensor(codes.reshape(rows, sums, step).transpose(1, 2, 0).copy()), requires_grad=False)
        self.scales = Tensor((weight.scales.astype(np.float32) * per_sum).T[:, None].copy())
        self.mins = None if weight.mins is None else Tensor(weight.mins.astype(np.float32).T[:, None].copy())
        self.bias = Tensor(bias)
        self.matmul = ops.BatchMatMul()
        self.rint = ops.Rint()

    def construct(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        x = (ops.gather(x, self.inputs, 1) * self.mask).reshape((tokens, self.shares, -1))
        peak = ops.abs(x).max(-1, keepdims=True)
        zero = (peak <= _FLOOR).astype(ms.float32)
        q = self.rint(x * ((1 - zero) * 127 / (peak + zero)))
        scale = (ops.zeros_like(q) + peak / 127 * (1 - zero)).reshape((tokens, self.sums, self.step))[:, :, :1]
        scale = scale.transpose((1, 0, 2))  # [sums, T, 1]
        q = q.reshape((tokens, self.sums, self.step)).transpose((1, 0, 2))
        y = self.matmul(q, self.codes) * (scale * self.scales)
        if self.mins is not None:
            y = y + q.sum(-1, keepdims=True) * scale * self.mins
        return y.sum(0) + self.bias


class LinearReference(nn.Cell):
    """The body `weight` asks for: integer arithmetic when it is quantized and `act` is 1, else float."""

    def __init__(self, weight: Weight, bias: int, arena: Arena | None):
        super().__init__()
        found = matrix(arena, weight)
        offset = np.zeros(weight[1], np.float32) if bias < 0 else vector(arena, bias, weight[1])
        if isinstance(found, QuantTensor):
            self.body = IntegerLinear(found, offset) if weight[6] else FloatLinear(found.dequantize(), offset)
        else:
            self.body = FloatLinear(found, offset)

    def construct(self, x: Tensor, arena: Tensor) -> Tensor:
        return self.body(x)


def linear_native(weight: Weight, bias: int) -> ops.Custom:
    """The native kernel: (x [T, K], arena) -> [T, N]."""
    attrs = {"weight": list(weight), "bias": bias}
    return aot_op("Linear", [("x", "f32"), ("arena", "u8")], [("y", "f32")], attrs)


class Linear(nn.Cell):
    """x [T, K] float32, arena uint8 [A] -> x w^T + bias, [T, N] float32.

    `weight` is the seven integers of the matrix in the arena, `bias` the offset of N float32 values or -1. The
    reference body needs the `arena` itself, to read the weights when it is built.
    """

    reference = LinearReference

    def __init__(self, weight: Weight, bias: int = -1, arena: Arena | None = None):
        super().__init__()
        self.body = choose(lambda: linear_native(weight, bias), lambda: LinearReference(weight, bias, arena))

    def construct(self, x: Tensor, arena: Tensor) -> Tensor:
        return self.body(x, arena)
