"""Optimizers in place over all tensors of a model in one operator; the norm of gradients; their accumulation.

One operator takes over a thousand inputs at the price of a few: 272 tensors in one cost 0.25 ms a call, in 272 12 ms.
`settings` is a float64 vector from the host (1 - 0.999f would be off by 1e-5); `control` is float32
[gradient scale, skip], made in the graph: every gradient is multiplied by the scale, and where skip is not 0 no bit of
any tensor changes. The output [1] is 1 where the update was made, 0 where it was skipped.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import CustomRegOp, DataType

from mindspeed_ms.ops.aot import AscendBody, choose
from mindspeed_ms.ops.optimizer_references import (
    AccumulateReference,
    AdafactorReference,
    AdamWReference,
    LionReference,
    SGDReference,
    SumSquaresReference,
)

# For gradient descent there is SGD(parameters, gradient, learning_rate, accum, momentum, stat); for Lion and Adafactor
# as published there is nothing, and the reference runs. Each takes one tensor a call.
ASCEND = AscendBody("AdamW", ("var", "m", "v", "max_v", "gradient", "step", "lr", "beta1", "beta2", "decay", "eps"))
_HOST = [("settings", DataType.F64_Default), ("control", DataType.F32_Default)]


def settings(*values: float) -> Tensor:
    """The float64 vector that an update takes, in the order its Cell names."""
    return Tensor(np.array(values, np.float64))


def tensors_native(
    entry: str,
    groups: int,
    count: int,
    attrs: dict[str, object],
    last: Sequence[tuple[str, object]] = _HOST,
    in_place: bool = True,
) -> ops.Custom:
    """An entry point over `groups` groups of `count` float32 tensors, then the inputs of `last`."""
    from mindspeed_ms.ops.native.build import library_path

    # MindSpore keeps one signature a name: another number of tensors needs another name.
    info = CustomRegOp(f"{entry}{groups}x{count}")
    inputs = [*((f"x{g}_{i}", DataType.F32_Default) for g in range(groups) for i in range(count)), *last]
    for index, (name, _) in enumerate(inputs):
        info = info.input(index, name)
    info = info.output(0, "y")
    for name, value in attrs.items():
        info = info.attr(name, "required", "int" if isinstance(value, int) else "listInt", value=value)
    reg = info.dtype_format(*(dtype for _, dtype in inputs), DataType.F32_Default).target("CPU").get_op_info()
    op = ops.Custom(f"{library_path()}:{entry}", None, None, func_type="aot", reg_info=reg)
    if in_place:
        op.add_prim_attr("side_effect_mem", True)
    return op


def _flags(decay: Sequence[bool]) -> list[int]:
    return [int(flag) for flag in decay]


class AdamWUpdate(nn.Cell):
    """AdamW (Loshchilov and Hutter, 2019), or Adam (Kingma and Ba, 2015) where not `decoupled`, as PyTorch does them.

    `decay` says for each tensor whether weight decay applies. construct(params, means, squares, grads, settings,
    control): tuples of float32 tensors; settings = lr, beta1, beta2, eps, weight_decay, step (from 1).
    """

    reference = AdamWReference

    def __init__(self, decay: Sequence[bool], decoupled: bool = True):
        super().__init__()
        attrs = {"decay": _flags(decay), "decoupled": int(decoupled)}
        self.body = choose(
            lambda: tensors_native("AdamW", 4, len(decay), attrs), lambda: AdamWReference(decay, decoupled)
        )
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, params, means, squares, grads, settings: Tensor, control: Tensor) -> Tensor:
        if self.native:
            return self.body(*params, *means, *squares, *grads, settings, control)
        return self.body(params, means, squares, grads, settings, control)


class LionUpdate(nn.Cell):
    """Lion (Chen et al., 2023): the sign of a mean, and one moment.

    construct(params, means, grads, settings, control); settings = lr, beta1, beta2, weight_decay.
    """

    reference = LionReference

    def __init__(self, decay: Sequence[bool]):
        super().__init__()
        self.body = choose(
            lambda: tensors_native("Lion", 3, len(decay), {"decay": _flags(decay)}), lambda: LionReference(decay)
        )
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, params, means, grads, settings: Tensor, control: Tensor) -> Tensor:
        if self.native:
            return self.body(*params, *means, *grads, settings, control)
        return self.body(params, means, grads, settings, control)


class SGDUpdate(nn.Cell):
    """Gradient descent with momentum, dampening and Nesterov's form, as torch.optim.SGD.

    construct(params, buffers, grads, settings, control); settings = lr, momentum, dampening, weight_decay, step (from
    1: the first step fills the buffers). Where not `momentum` the tuple of buffers is empty.
    """

    reference = SGDReference

    def __init__(self, decay: Sequence[bool], momentum: bool = True, nesterov: bool = False):
        super().__init__()
        attrs: dict[str, object] = {"decay": _flags(decay)}
        if momentum:
            attrs["nesterov"] = int(nesterov)
        entry, groups = ("SgdMomentum", 3) if momentum else ("Sgd", 2)
        self.body = choose(
            lambda: tensors_native(entry, groups, len(decay), attrs), lambda: SGDReference(decay, momentum, nesterov)
        )
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, params, buffers, grads, settings: Tensor, control: Tensor) -> Tensor:
        if self.native:
            return self.body(*params, *buffers, *grads, settings, control)
        return self.body(params, buffers, grads, settings, control)


class AdafactorUpdate(nn.Cell):
    """Adafactor (Shazeer and Stern, 2018) as torch.optim.Adafactor: matrices and vectors only.

    construct(params, rows, columns, grads, settings, control): of a matrix [R, C] rows [R] and columns [C], of a vector
    [C] rows [C] (its whole second moment) and columns [1], unused. settings = lr, beta2_decay, eps1, eps2, d,
    weight_decay, step (from 1).
    """

    reference = AdafactorReference

    def __init__(self, decay: Sequence[bool]):
        super().__init__()
        self.body = choose(
            lambda: tensors_native("Adafactor", 4, len(decay), {"decay": _flags(decay)}),
            lambda: AdafactorReference(decay),
        )
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, params, rows, columns, grads, settings: Tensor, control: Tensor) -> Tensor:
        if self.native:
            return self.body(*params, *rows, *columns, *grads, settings, control)
        return self.body(params, rows, columns, grads, settings, control)


class SumSquares(nn.Cell):
    """A tuple of `count` float32 tensors -> float32 [count], sums of squares; not finite where a tensor is not."""

    reference = SumSquaresReference

    def __init__(self, count: int):
        super().__init__()
        self.body = choose(
            lambda: tensors_native("SumSquares", 1, count, {"count": count}, (), in_place=False),
            lambda: SumSquaresReference(count),
        )
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, tensors) -> Tensor:
        if self.native:
            return self.body(*tensors)
        return self.body(tensors)


class Accumulate(nn.Cell):
    """sums = keep * sums + grads in place, for tuples of `count` float32 tensors; keep float32 [1].

    keep = 0 begins anew: what the sums held, NaN included, is gone. Returns [1].
    """

    reference = AccumulateReference

    def __init__(self, count: int):
        super().__init__()
        last = [("keep", DataType.F32_Default)]
        self.body = choose(lambda: tensors_native("Accumulate", 2, count, {}, last), lambda: AccumulateReference(count))
        self.native = not isinstance(self.body, nn.Cell)

    def construct(self, sums, grads, keep: Tensor) -> Tensor:
        if self.native:
            return self.body(*sums, *grads, keep)
        return self.body(sums, grads, keep)
