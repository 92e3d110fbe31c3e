"""How each kind of operator may be split: given its inputs, what it takes of each, and how its result lies.

Weights have no spread of their own: an operator says how it wants them. A matrix product by a weight is split as in
Megatron (Shoeybi et al., 2019): by the weight's output features where its input is whole, by its input features where
the input's are split already; the partial results of the second are then summed over the tensor group.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindspeed_ms.parallel.plan.strategy.fused import flash_attention, last_whole
from mindspeed_ms.parallel.plan.strategy.graph import Shape
from mindspeed_ms.parallel.plan.strategy.spread import TENSOR, Axes, Spread, broadcast, narrowed, reshaped, whole
from mindspeed_ms.parallel.plan.strategy.view import Rule, Split, View


def split(view: View) -> Split:
    """The rule for the operator's kind; elementwise where the shapes say so; else everything is taken whole."""
    rule = RULES.get(view.operator.kind)
    if rule is not None:
        return rule(view)
    if len(view.operator.shapes) == 1 and view.shapes and _broadcasts(view.shapes, view.result):
        return elementwise(view)
    outputs = tuple(whole(len(shape)) for shape in view.operator.shapes)
    return Split(tuple(whole(len(shape)) for shape in view.shapes), outputs, known=False)


def elementwise(view: View) -> Split:
    """Every dimension as the inputs have it."""
    given = [(view.spread(i), shape) for i, shape in enumerate(view.shapes)]
    out = broadcast(given, view.result)
    return Split(tuple(narrowed(out, view.result, shape) for shape in view.shapes), (out,))


def _broadcasts(shapes: tuple[Shape, ...], result: Shape) -> bool:
    for shape in shapes:
        if len(shape) > len(result):
            return False
        if any(a not in (1, b) for a, b in zip(reversed(shape), reversed(result), strict=False)):
            return False
    return any(shape == result for shape in shapes) or len(shapes) > 1


def matmul(view: View) -> Split:
    """a [.., M, K], b [.., K, N], each perhaps transposed -> [.., M, N]."""
    transposed = [
        bool(view.constant(i) or view.operator.attributes.get(n)) for i, n in ((2, "transpose_a"), (3, "transpose_b"))
    ]
    a = _swapped(view.spread(0), transposed[0])
    b = _swapped(view.spread(1), transposed[1])
    features = _swapped_shape(view.shapes[1], transposed[1])[-1]
    inner: Axes = a[-1]
    columns: Axes = ()
    if view.weights[1]:
        if TENSOR not in inner and view.may_split and features % view.mesh.tensor == 0:
            columns = view.mesh.used(TENSOR)
        batch: Spread = whole(len(b) - 2)
    else:
        inner = inner if inner == b[-2] else a[-1] or b[-2]
        columns = tuple(axis for axis in b[-1] if axis not in (*a[-2], *inner))
        batch = _merged(a[:-2], b[:-2])
    batch_a = batch if len(a) == len(b) and not view.weights[1] else a[:-2]
    rows = tuple(axis for axis in a[-2] if axis not in inner and axis not in columns)
    want_a = _swapped((*batch_a, rows, inner), transposed[0])
    want_b = _swapped((*batch[len(batch) - len(b) + 2 :], inner, columns), transposed[1])
    out = (*batch_a, rows, columns)
    return Split((want_a, want_b), (out,), sums=inner, columns=view.weights[1] and bool(columns))


def _swapped(spread: Spread, transposed: bool) -> Spread:
    return (*spread[:-2], spread[-1], spread[-2]) if transposed else spread


def _swapped_shape(shape: Shape, transposed: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def _merged(first: Spread, second: Spread) -> Spread:
    return tuple(a or b for a, b in zip(first, second, strict=True)) if len(first) == len(second) else first


def gather(view: View) -> Split:
    """table [V, ..], ids [..] -> rows of the table; a weight's rows are split over the tensor group and summed."""
    axis = view.axis(2, len(view.shapes[0]), 0)[0]
    ids = view.spread(1)
    table = list(view.spread(0))
    sums: Axes = ()
    rows = view.shapes[0][axis]
    if view.weights[0] and axis == 0 and view.may_split and rows % view.mesh.tensor == 0:
        sums = view.mesh.used(TENSOR)
    table[axis] = sums
    taken = {name for axes in ids for name in axes}
    kept = tuple(tuple(name for name in axes if name not in taken) for axes in table)
    out = (*kept[:axis], *ids, *kept[axis + 1 :])
    return Split((tuple(table), ids), (out,), sums=sums, columns=bool(sums))


def reshape(view: View) -> Split:
    """Dimensions joined or cut, as far as the parts then still lie together."""
    given = view.spread(0)
    out, lost = reshaped(given, view.shapes[0], view.result, view.mesh)
    kept = tuple(tuple(axis for axis in axes if axis not in lost) for axes in given)
    if lost:
        out, _ = reshaped(kept, view.shapes[0], view.result, view.mesh)
    return Split((kept,), (out,))


def transpose(view: View) -> Split:
    """Dimensions in another order."""
    given = view.spread(0)
    order = view.constant(1)
    if not isinstance(order, tuple) or len(order) != len(given):
        return Split((whole(len(given)),), (whole(len(view.result)),), known=False)
    return Split((given,), (tuple(given[int(axis)] for axis in order if isinstance(axis, int)),))


def reduction(view: View) -> Split:
    """Dimensions summed up, or averaged; where they are split the parts are summed over the group."""
    given = view.spread(0)
    axes = view.axis(1, len(given)) if view.constant(1) is not None else tuple(range(len(given)))
    sums = tuple(name for axis in axes for name in given[axis])
    if len(view.result) == len(given):
        out = tuple(() if i in axes else spread for i, spread in enumerate(given))
    else:
        out = tuple(spread for i, spread in enumerate(given) if i not in axes)
    return Split((given,), (out,), sums=sums)


def along(index: int, default: int = -1) -> Rule:
    """A rule for what needs one dimension whole (softmax, picking from a row): the rows take the axes over."""

    def rule(view: View) -> Split:
        shape = view.shapes[0]
        axis = view.axis(index, len(shape), default)[0]
        given = list(view.spread(0))
        free, given[axis] = given[axis], ()
        for name in free:
            for i, size in enumerate(shape):
                if i != axis and size % view.mesh.size((*given[i], name)) == 0 and size > 1:
                    given[i] = (*given[i], name)
                    break
        spread = tuple(given)
        wanted = tuple(spread if len(own) == len(shape) else narrowed(spread, shape, own) for own in view.shapes)
        return Split(wanted, tuple(spread for _ in view.operator.shapes), gathers=True)

    return rule


def expand(view: View) -> Split:
    """One more dimension, of size 1."""
    given = list(view.spread(0))
    given.insert(view.axis(1, len(view.result))[0], ())
    return Split((view.spread(0),), (tuple(given),))


def strided_slice(view: View) -> Split:
    """Part of some dimensions: those are taken whole."""
    given, shape, result = view.spread(0), view.shapes[0], view.result
    if len(shape) != len(result):
        return Split((whole(len(shape)),), (whole(len(result)),), known=False)
    kept = tuple(axes if a == b else () for axes, a, b in zip(given, shape, result, strict=True))
    return Split((kept,), (kept,))


def concat(view: View) -> Split:
    """Tensors one behind the other: that dimension is taken whole."""
    rank = len(view.result)
    axis = view.axis(len(view.operator.inputs) - 1, rank)[0]
    given = [tuple(() if i == axis else axes for i, axes in enumerate(view.spread(k))) for k in range(len(view.shapes))]
    merged = given[0]
    for spread in given[1:]:
        merged = _merged(merged, spread)
    return Split(tuple(merged for _ in given), (merged,))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "MatMulExt", "BatchMatMulExt"), matmul),
    **dict.fromkeys(("Gather", "EmbeddingLookup"), gather),
    **dict.fromkeys(("Reshape", "View"), reshape),
    "Transpose": transpose,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "SumExt", "MeanExt"), reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax", "SoftmaxExt"), along(1)),
    "GatherD": along(1),
    **dict.fromkeys(("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"), along(99)),
    "ExpandDims": expand,
    "StridedSlice": strided_slice,
    "Concat": concat,
    **dict.fromkeys(("RmsNorm", "LayerNorm", "LayerNormExt"), last_whole),
    "FlashAttentionScore": flash_attention,
}
