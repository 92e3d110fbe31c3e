"""Cells that users write themselves, such as RMSNorm or causal attention, and the fused Cells that may stand for them.

Nothing here trusts a name: a candidate is what a Cell could be by its Parameters, Cells and inputs; `prove` decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindspeed_ms.ops.attention import Attention
from mindspeed_ms.ops.dense import Dense
from mindspeed_ms.ops.gelu import GELU
from mindspeed_ms.ops.layer_norm import LayerNorm
from mindspeed_ms.ops.rms_norm import RMSNorm
from mindspeed_ms.ops.swiglu import SwiGLU
from mindspeed_ms.train.fused import (
    Fused,
    FusedPair,
    FusedTriple,
    GatedMLP,
    HeadsFirstAttention,
    JoinedSelfAttention,
    SelfAttention,
    SwappedSwiGLU,
)
from mindspeed_ms.train.prove import Arrays, run

_MOST_DIM = 256  # of a head


def is_users(cell: nn.Cell) -> bool:
    """Whether a Cell's class is neither MindSpore's nor ours."""
    return type(cell).__module__.partition(".")[0] not in ("mindspore", "mindspeed_ms")


def could_be_fused(cell: nn.Cell) -> bool:
    """Whether a user's Cell has the looks of something we have a fused operator for; only those are looked into."""
    if not is_users(cell) or not 1 <= _inputs(cell) <= 3:
        return False
    own = _own(cell)
    if own:
        return _inputs(cell) == 1 and len(own) <= 2 and all(p.ndim == 1 for p in own) and not _inner_parameters(cell)
    if not _inner_parameters(cell):
        return True
    return _inputs(cell) == 1 and len(_linears(cell)) in (2, 3, 4) and _only_linears(cell)


def candidates(cell: nn.Cell, example: Arrays) -> Iterator[tuple[str, nn.Cell]]:
    """(name, Cell) of all that might stand for a user's Cell that was called with `example`, likelier ones first."""
    floats = all(array.dtype == np.float32 for array in example)
    if not floats or len(example) != _inputs(cell):
        return
    if _own(cell):
        yield from _norms(cell, example[0])
    elif not _inner_parameters(cell):
        yield from _activations(cell, example)
    elif example[0].ndim == 3:
        yield from _with_linears(cell, example[0])


def _norms(cell: nn.Cell, x: np.ndarray) -> Iterator[tuple[str, nn.Cell]]:
    own = _own(cell)
    hidden = x.shape[-1] if x.ndim else 0
    if any(p.shape != (hidden,) for p in own):
        return
    for weight in own:
        others = [p for p in own if p is not weight]
        eps = _epsilon(cell, weight, others, x.shape)
        if eps is None:
            continue
        if not others:
            norm: nn.Cell = RMSNorm(hidden, eps)
            norm.weight = weight
            yield f"RMSNorm(eps={eps:g})", Fused(cell, norm)
        norm = LayerNorm(hidden, eps, has_bias=bool(others))
        norm.weight = weight
        if others:
            norm.bias = others[0]
        yield f"LayerNorm(eps={eps:g})", Fused(cell, norm)


def _epsilon(cell: nn.Cell, weight: Parameter, others: list[Parameter], shape: tuple[int, ...]) -> float | None:
    """The epsilon of a norm, found by rows of mean 0 and mean square c^2: they come out c / sqrt(c^2 + eps) times."""
    rows = np.random.default_rng(0).normal(size=shape)
    rows -= rows.mean(-1, keepdims=True)
    rows /= np.sqrt((rows**2).mean(-1, keepdims=True)) + 1e-30
    before = [(p, p.asnumpy().copy()) for p in (weight, *others)]
    try:
        weight.set_data(Tensor(np.ones(weight.shape, np.float32)))
        for other in others:
            other.set_data(Tensor(np.zeros(other.shape, np.float32)))
        for c in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
            y = run(cell, [(c * rows).astype(np.float32)])
            if y is None or y.shape != shape or not np.isfinite(y).all():
                return None
            factor = float((y * rows).sum() / (rows * rows).sum())
            if 0.1 < factor < 0.95:
                return float(f"{c * c * (factor**-2 - 1):.3g}")
    finally:
        for parameter, value in before:
            parameter.set_data(Tensor(value))
    return None


def _activations(cell: nn.Cell, example: Arrays) -> Iterator[tuple[str, nn.Cell]]:
    shapes = [array.shape for array in example]
    if len(example) == 1:
        yield "GELU(none)", Fused(cell, GELU("none"))
        yield "GELU(tanh)", Fused(cell, GELU("tanh"))
    elif len(example) == 2 and shapes[0] == shapes[1]:
        yield "SwiGLU", FusedPair(cell, SwiGLU())
        yield "SwiGLU", FusedPair(cell, SwappedSwiGLU())
    elif len(example) == 3 and all(len(shape) == 4 for shape in shapes):
        dim = shapes[0][3]
        if dim % 2 or dim > _MOST_DIM:
            return
        for scale in (dim**-0.5, 1.0):
            if _grouped(shapes, tokens=2, heads=1):
                yield "Attention", FusedTriple(cell, HeadsFirstAttention(scale))
            if _grouped(shapes, tokens=1, heads=2):
                yield "Attention", FusedTriple(cell, Attention(scale))


def _grouped(shapes: list[tuple[int, ...]], tokens: int, heads: int) -> bool:
    q, k, v = shapes
    return k == v and q[0] == k[0] and q[3] == k[3] and q[tokens] <= k[tokens] and q[heads] % k[heads] == 0


def _with_linears(cell: nn.Cell, x: np.ndarray) -> Iterator[tuple[str, nn.Cell]]:
    linears = _linears(cell)
    shapes = [linear.weight.shape for linear in linears]
    hidden = x.shape[-1]
    if len(linears) == 3:
        first, second, third = linears
        if shapes[0] == shapes[1] == shapes[2][::-1] and shapes[0][1] == hidden:
            yield "SwiGLU", Fused(cell, GatedMLP(first, second, third))
            yield "SwiGLU", Fused(cell, GatedMLP(second, first, third))
    elif len(linears) == 2 and shapes == [(3 * hidden, hidden), (hidden, hidden)]:
        for heads in _heads(cell, hidden, hidden):
            for layout in ("3nd", "n3d"):
                yield f"Attention({heads} heads)", Fused(cell, JoinedSelfAttention(*linears, heads, layout))
    elif len(linears) == 4 and shapes[3] == shapes[0][::-1] and shapes[1] == shapes[2] and shapes[0][1] == hidden:
        for heads in _heads(cell, shapes[0][0], shapes[1][0]):
            yield f"Attention({heads} heads)", Fused(cell, SelfAttention(*linears, heads))


def _heads(cell: nn.Cell, features: int, kv_features: int) -> list[int]:
    """Possible numbers of heads, those that the Cell has as an attribute first."""
    said = {value for value in vars(cell).values() if type(value) is int}
    possible = []
    for heads in range(1, features + 1):
        dim, rest = divmod(features, heads)
        if rest or dim % 2 or dim > _MOST_DIM or kv_features % dim or heads % (kv_features // dim):
            continue
        possible.append(heads)
    return sorted(possible, key=lambda heads: (heads not in said, heads))


def _inputs(cell: nn.Cell) -> int:
    """How many inputs `construct` takes; 0 when that is not certain."""
    parameters = list(inspect.signature(type(cell).construct).parameters.values())[1:]
    plain = all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
    return len(parameters) if plain else 0


def _own(cell: nn.Cell) -> list[Parameter]:
    return [parameter for parameter in cell._params.values() if parameter is not None]


def _inner_parameters(cell: nn.Cell) -> bool:
    return any(_own(inner) for path, inner in cell.cells_and_names() if path)


def _linears(cell: nn.Cell) -> list[nn.Cell]:
    """The linear layers right in a Cell, in the order in which it made them."""
    return [inner for inner in cell._cells.values() if inner is not None and _is_linear(inner)]


def _only_linears(cell: nn.Cell) -> bool:
    """Whether all Parameters below a Cell are those of its linear layers."""
    held = {id(p) for linear in _linears(cell) for p in linear.get_parameters()}
    return all(id(parameter) in held for parameter in cell.get_parameters())


def _is_linear(cell: nn.Cell) -> bool:
    inner = cell.inner if type(cell) is Fused else cell
    return type(inner) is Dense or (type(inner) is nn.Dense and inner.activation is None)
