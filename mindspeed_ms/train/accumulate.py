"""Micro-batches of one step: their gradients are summed up, and the step may pause between two of them."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor

from mindspeed_ms.train.graph import MicroStep, ScaledLoss, zeros

TOTALS = "totals"


class Paused(Exception):
    """A step has stopped between two micro-batches; `done` of them are in its sums.

    The step goes on when it is called again, with the same batches, or after what it was then has been loaded.
    """

    def __init__(self, done: int) -> None:
        super().__init__(f"the step has paused after {done} micro-batches")
        self.done = done


class Accumulation:
    """The sums of a step so far: gradients ("gradient.NAME"), and the loss and the tokens ("totals" [2])."""

    def __init__(self, loss: ScaledLoss, weights: ParameterTuple) -> None:
        self.sums = ParameterTuple([zeros(f"gradient.{w.name}", w.shape) for w in weights])
        self.totals = zeros(TOTALS, (2,))
        self.cell = MicroStep(loss, weights, self.sums, self.totals)

    def named(self) -> dict[str, Parameter]:
        """The sums by name."""
        return {parameter.name: parameter for parameter in (*self.sums, self.totals)}


def fill(parameter: Parameter, array: np.ndarray) -> None:
    """Give a parameter its values: in its own memory, where the device shares it with the host."""
    view = parameter.asnumpy()
    if not np.may_share_memory(view, parameter.asnumpy()):
        parameter.set_data(Tensor(np.ascontiguousarray(array), parameter.dtype))
    elif not np.may_share_memory(view, array):  # else the values were read to where they belong
        view[...] = array
