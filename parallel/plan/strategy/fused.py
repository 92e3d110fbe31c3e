"""Rules for fused operators of Ascend: norms by one operator, and attention."""

from __future__ import annotations

from mindspeed_ms.parallel.plan.strategy.graph import Shape
from mindspeed_ms.parallel.plan.strategy.spread import Axes, Spread, whole
from mindspeed_ms.parallel.plan.strategy.view import Split, View

# FASInputLayoutMode of MindSpore's op_enum.h; each letter a dimension: batch, sequence, heads (N, or H with their
# features), features. TND joins batch and sequence.
_LAYOUTS = ("BSH", "BNSD", "SBH", "BSND", "TND")
_HEAD_NUM, _INPUT_LAYOUT = 10, 16  # among the inputs of FlashAttentionScore


def last_whole(view: View) -> Split:
    """A norm over the last dimension (RmsNorm, LayerNorm): its weights are whole."""
    given = (*view.spread(0)[:-1], ())
    wanted = (given, *(whole(len(shape)) for shape in view.shapes[1:]))
    outputs = tuple(given[: len(shape) - 1] + ((),) if shape else () for shape in view.operator.shapes)
    return Split(wanted, outputs)


def flash_attention(view: View) -> Split:
    """FlashAttentionScore: batch, heads and queries are split as the query is; keys and values by batch and heads.

    Each device needs all keys that its queries see. Heads are split only where those of the keys are too.
    """
    number = view.constant(_INPUT_LAYOUT)
    layout = _LAYOUTS[number] if isinstance(number, int) and 0 <= number < len(_LAYOUTS) else ""
    query = view.spread(0)
    if len(layout) != len(query):
        return Split(tuple(map(_whole, view.shapes)), tuple(map(_whole, view.operator.shapes)), known=False)
    by_letter = dict(zip(layout, query, strict=True))
    heads_at = layout.index("N" if "N" in layout else "H")
    heads = _head_axes(view, query[heads_at], heads_at)
    by_letter |= {"N": heads, "H": heads, "D": ()}
    query = tuple(by_letter[letter] for letter in layout)
    keys = tuple(() if letter == "S" else by_letter[letter] for letter in layout)
    if layout == "TND":  # documents lie one behind the other: a device would need its neighbours' keys
        query = keys = ((), heads, ())
    batch, rows = by_letter.get("B", ()), by_letter.get("S", ())
    scores = (batch, heads, rows, ())
    others = tuple(_like_scores(view, shape, scores) for shape in view.shapes[3:])
    outputs = tuple(
        query if shape == view.shapes[0] else scores if len(shape) == 4 else _whole(shape)
        for shape in view.operator.shapes
    )
    return Split((query, keys, keys, *others), outputs)


def _head_axes(view: View, axes: Axes, at: int) -> Axes:
    """The axes of the query's heads, if they divide the heads of queries and keys."""
    count = view.constant(_HEAD_NUM)
    heads = count if isinstance(count, int) and count > 0 else view.shapes[0][at]
    key_heads = heads * view.shapes[1][at] // view.shapes[0][at]
    parts = view.mesh.size(axes)
    return axes if heads % parts == 0 and key_heads % parts == 0 else ()


def _like_scores(view: View, shape: Shape, scores: Spread) -> Spread:
    """Of a mask or a shift, [B, N, S, S] with 1 where all are alike, or [S, S], which is whole."""
    if len(shape) != 4:
        return _whole(shape)
    return tuple(
        axes if size > 1 and size % view.mesh.size(axes) == 0 else () for size, axes in zip(shape, scores, strict=True)
    )


def _whole(shape: Shape) -> Spread:
    return whole(len(shape))
