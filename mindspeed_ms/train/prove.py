"""Whether two Cells compute the same: both are run on random input with random parameters, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

TOLERANCE = 5e-5  # of outputs, as a share of the largest value; MindSpore's own tanh is wrong by half of it
GRADIENT_TOLERANCE = 1e-3  # equal functions have equal gradients, but for rounding, unless one of them stops some
_SCALES = (1.0, 4.0, 1e-3)  # of the input: a wrong epsilon shows at the small one, another activation at the large one

Arrays = tuple[np.ndarray, ...]


@contextmanager
def eagerly(network: nn.Cell) -> Iterator[None]:
    """Run Cells one by one, without dropout, and leave mode and flags as they were."""
    mode = ms.get_context("mode")
    flags = [(cell, cell.training) for _, cell in network.cells_and_names()]
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network.set_train(False)
    try:
        yield
    finally:
        for cell, training in flags:
            cell.add_flags(training=training)
        ms.set_context(mode=mode)


def record_inputs(network: nn.Cell, cells: Sequence[nn.Cell], example: Sequence[Tensor]) -> dict[int, Arrays]:
    """Run a network once; returns what each Cell was called with first, by the Cell's id.

    A Cell that was given anything but tensors is left out.
    """
    seen: dict[int, Any] = {}

    def remember(cell: nn.Cell, inputs: Any) -> None:
        tensors = inputs if isinstance(inputs, tuple) else (inputs,)
        if id(cell) not in seen:
            plain = all(isinstance(value, Tensor) for value in tensors)
            seen[id(cell)] = tuple(value.asnumpy().copy() for value in tensors) if plain else None

    handles = [cell.register_forward_pre_hook(remember) for cell in cells]
    try:
        network(*example)
    finally:
        for handle in handles:
            handle.remove()
    return {number: inputs for number, inputs in seen.items() if inputs is not None}


def difference(old: nn.Cell, new: nn.Cell, example: Arrays) -> float:
    """The largest difference of outputs, relative to the largest value of `old`; inf where gradients differ.

    `new` holds the Parameters of `old`; they get random values meanwhile. Floating inputs are drawn with the shapes of
    `example`, in several sizes; others are taken as they are.
    """
    generator = np.random.default_rng(0)
    worst = 0.0
    with _random_parameters(old, generator) as parameters:
        for scale in _SCALES:
            inputs = [_draw(array, scale, generator) for array in example]
            one, other = old(*inputs).asnumpy(), new(*inputs).asnumpy()
            worst = max(worst, _apart(one, other, np.abs(one).max(initial=0.0)))
            if not worst <= TOLERANCE:
                return worst
            if scale != _SCALES[0]:  # gradients of equal functions differ for reasons that no size has a part in
                continue
            before, after = _gradients(old, inputs, parameters), _gradients(new, inputs, parameters)
            # Some are zero but for rounding, such as that of the keys' bias.
            floor = 1e-2 * max((np.abs(one).max(initial=0.0) for one in before), default=0.0)
            for one, other in zip(before, after, strict=True):
                if not _apart(one, other, max(np.abs(one).max(initial=0.0), floor)) <= GRADIENT_TOLERANCE:
                    return float("inf")
    return worst


def _apart(one: np.ndarray, other: np.ndarray, size: float) -> float:
    if one.shape != other.shape:
        return float("inf")
    error = np.abs(one.astype(np.float64) - other).max(initial=0.0)
    apart = float(error / size) if size else float(error)
    return apart if np.isfinite(apart) else float("inf")


def is_random(cell: nn.Cell, example: Arrays) -> bool:
    """Whether a Cell gives other outputs for the same input while it trains, as dropout does."""
    inputs = [Tensor(array) for array in example]
    flags = [(inner, inner.training) for _, inner in cell.cells_and_names()]
    cell.set_train(True)
    try:
        first, second = cell(*inputs), cell(*inputs)
    finally:
        for inner, training in flags:
            inner.add_flags(training=training)
    return isinstance(first, Tensor) and not np.array_equal(first.asnumpy(), second.asnumpy())


def run(cell: nn.Cell, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The output of a Cell in float64, or None when it is no tensor."""
    output = cell(*(Tensor(array) for array in inputs))
    return output.asnumpy().astype(np.float64) if isinstance(output, Tensor) else None


def _gradients(cell: nn.Cell, inputs: list[Tensor], parameters: list[Parameter]) -> list[np.ndarray]:
    """The gradients of the output's product with a fixed random tensor, by floating inputs and by Parameters."""
    places = tuple(number for number, value in enumerate(inputs) if value.dtype == ms.float32)
    if not places and not parameters:
        return []
    probe = Tensor(np.random.default_rng(1).normal(size=cell(*inputs).shape).astype(np.float32))

    def product(*values: Tensor) -> Tensor:
        return (cell(*values) * probe).sum()

    weights = ms.ParameterTuple(parameters) if parameters else None
    return [value.asnumpy() for value in _flat(ms.grad(product, places or None, weights)(*inputs))]


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for item in value:
            yield from _flat(item)


def _draw(array: np.ndarray, scale: float, generator: np.random.Generator) -> Tensor:
    if array.dtype != np.float32:
        return Tensor(array)
    return Tensor((generator.normal(size=array.shape) * scale).astype(np.float32))


@contextmanager
def _random_parameters(cell: nn.Cell, generator: np.random.Generator) -> Iterator[list[Parameter]]:
    """Give all Parameters of a Cell values that hide nothing (zeros would), and then their own again."""
    parameters = list(cell.get_parameters())
    before = [(parameter.asnumpy().copy(), parameter.requires_grad) for parameter in parameters]
    try:
        for parameter in parameters:
            spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
            parameter.set_data(Tensor((generator.normal(size=parameter.shape) * spread).astype(np.float32)))
            parameter.requires_grad = True
        yield parameters
    finally:
        for parameter, (value, requires_grad) in zip(parameters, before, strict=True):
            parameter.set_data(Tensor(value))
            parameter.requires_grad = requires_grad
