"""The Cells that MindSpore compiles for training: one whole step, or micro-batches and the update after them.

A report [4] float32 holds the loss summed over tokens, the tokens, the norm of the mean gradient before clipping, and
1 where the step was taken: a gradient, a loss or a number of tokens that is not finite, or no tokens, skips it.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindspeed_ms.ops.optimizers import Accumulate, SumSquares


class ScaledLoss(nn.Cell):
    """(scale [1], *batch) -> (scaled loss [1], loss [1], tokens [1]); a network that returns one mean weighs 1."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, scale: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = self.network(*batch)
        if isinstance(result, tuple):
            loss, tokens = result[0].reshape((1,)), result[1].reshape((1,))
        else:
            loss, tokens = result.reshape((1,)), ops.ones((1,), ms.float32)
        loss = loss.astype(ms.float32)
        return loss * scale, loss, tokens.astype(ms.float32)


class Control(nn.Cell):
    """(loss, tokens, gradients, scale, clip) -> (report, squares [N], control [2]), all of sums over a step.

    scale [1]: the loss scale in the gradients. clip [1]: the norm to clip to. control: what an optimizer's operator
    takes, the factor of the gradients and whether to skip.
    """

    def __init__(self, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.squares = SumSquares(count)

    def construct(
        self, loss: Tensor, tokens: Tensor, gradients: tuple[Tensor, ...], scale: Tensor, clip: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        squares = self.squares(gradients)
        mean = 1.0 / (scale * ops.maximum(tokens, 1.0))
        norm = ops.sqrt(squares.sum().reshape((1,))) * mean
        taken = ops.isfinite(norm).logical_and(ops.isfinite(loss)).logical_and(tokens > 0).astype(ms.float32)
        # as PyTorch's clip_grad_norm_
        factor = mean * ops.minimum(clip / (norm + 1e-6), ops.ones_like(norm))
        control = ops.concat((ops.where(taken > 0, factor, ops.zeros_like(factor)), 1.0 - taken))
        return ops.concat((loss, tokens, norm, taken)), squares, control


class Update(nn.Cell):
    """Clips and applies summed gradients: (loss, tokens, gradients, numbers, scale, clip) -> (report, squares [N]).

    numbers: the optimizer's, float64. `group`: the processes that hold the same weights; loss, tokens and gradients
    are summed over them first.
    """

    def __init__(
        self, update: nn.Cell, weights: ParameterTuple, states: Sequence[ParameterTuple], group: str | None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.update, self.weights = update, weights
        self.states = tuple(states) or ((),)
        self.control = Control(len(weights))
        self.reduce = ops.AllReduce(group=group) if group else None
        self.spread = ops.HyperMap()

    def construct(
        self, loss: Tensor, tokens: Tensor, gradients: tuple[Tensor, ...], numbers: Tensor, scale: Tensor, clip: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.reduce is not None:
            gradients = self.spread(self.reduce, gradients)
            loss, tokens = self.reduce(loss), self.reduce(tokens)
        report, squares, control = self.control(loss, tokens, gradients, scale, clip)
        done = self.update(self.weights, *self.states, gradients, numbers, control)
        return ops.depend(report, done), squares


class WholeStep(nn.Cell):
    """(numbers, scale [1], clip [1], *batch) -> (report, squares): a step of one batch in one graph."""

    def __init__(self, loss: ScaledLoss, weights: ParameterTuple, update: Update) -> None:
        super().__init__(auto_prefix=False)
        self.gradient = ops.value_and_grad(loss, None, weights, has_aux=True)
        self.update = update

    def construct(self, numbers: Tensor, scale: Tensor, clip: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        (_, loss, tokens), gradients = self.gradient(scale, *batch)
        return self.update(loss, tokens, gradients, numbers, scale, clip)


class MicroStep(nn.Cell):
    """(keep [1], scale [1], *batch) -> loss [1]: adds a batch's gradients, loss and tokens to the sums of the step.

    keep: 0 for the first micro-batch of a step, 1 for the others.
    """

    def __init__(self, loss: ScaledLoss, weights: ParameterTuple, sums: ParameterTuple, totals: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.gradient = ops.value_and_grad(loss, None, weights, has_aux=True)
        self.accumulate, self.sums, self.totals = Accumulate(len(sums) + 1), sums, totals

    def construct(self, keep: Tensor, scale: Tensor, *batch: Tensor) -> Tensor:
        (_, loss, tokens), gradients = self.gradient(scale, *batch)
        done = self.accumulate((*self.sums, self.totals), (*gradients, ops.concat((loss, tokens))), keep)
        return ops.depend(loss, done)


class ApplyStep(nn.Cell):
    """(numbers, scale [1], clip [1]) -> (report, squares): the update from the sums of the micro-batches."""

    def __init__(self, sums: ParameterTuple, totals: Parameter, update: Update) -> None:
        super().__init__(auto_prefix=False)
        self.sums, self.totals, self.update = sums, totals, update

    def construct(self, numbers: Tensor, scale: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
        return self.update(self.totals[:1], self.totals[1:], self.sums, numbers, scale, clip)


def zeros(name: str, shape: tuple[int, ...]) -> Parameter:
    """A float32 Parameter of zeros that no gradient is taken of."""
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name, requires_grad=False)
