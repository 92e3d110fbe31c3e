"""The Cells that `fuse` puts into a network: a fused operator that holds the Parameters of the Cell before it.

Shapes: B batch, T tokens, H hidden, N heads, D head size.
"""

from mindspore import Tensor, nn, ops

from mindspeed_ms.ops.attention import Attention
from mindspeed_ms.ops.swiglu import SwiGLU
from mindspeed_ms.train.cells import hide

_PLAIN = (bool, int, float, str, tuple)


class Fused(nn.Cell):
    """Stands where `old` stood: the same Parameters and Cells under the same attributes, and its plain attributes.

    `inner` computes: it holds Parameters of `old` under names of its own, so it is not a part of the tree.
    """

    def __init__(self, old: nn.Cell, inner: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        for name, value in vars(old).items():
            if not name.startswith("_") and isinstance(value, _PLAIN) and not hasattr(self, name):
                hide(self, name, value)
        for name, parameter in old._params.items():
            self.insert_param_to_cell(name, parameter)
        for name, cell in old._cells.items():
            self.insert_child_to_cell(name, cell)
        hide(self, "inner", inner)

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x)


class FusedThenActivation(Fused):
    """x -> activation(inner(x)): a linear layer that has its activation inside."""

    def construct(self, x: Tensor) -> Tensor:
        return self.activation(self.inner(x))


class FusedPair(Fused):
    """(a, b) -> inner(a, b)."""

    def construct(self, a: Tensor, b: Tensor) -> Tensor:
        return self.inner(a, b)


class FusedTriple(Fused):
    """(a, b, c) -> inner(a, b, c)."""

    def construct(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.inner(a, b, c)


class CrossEntropy(nn.Cell):
    """logits [M, V] float32, labels [M] int32 -> what nn.CrossEntropyLoss gives, several times faster.

    Other shapes and kinds of labels go to the Cell before it.
    """

    def __init__(self, old: nn.CrossEntropyLoss) -> None:
        super().__init__(auto_prefix=False)
        self.old = old
        self.ignore_index, self.reduction = old.ignore_index, old.reduction
        self.log_softmax = ops.LogSoftmax(-1)

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim != 2 or labels.ndim != 1:
            return self.old(logits, labels)
        counted = labels != self.ignore_index
        picked = ops.select(counted, labels, ops.zeros_like(labels)).reshape((-1, 1))
        losses = -ops.gather_elements(self.log_softmax(logits), 1, picked).reshape((-1,))
        losses = losses * counted.astype(losses.dtype)
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / counted.astype(losses.dtype).sum()


class SwappedSwiGLU(nn.Cell):
    """(up, gate) -> silu(gate) * up."""

    def __init__(self) -> None:
        super().__init__()
        self.act = SwiGLU()

    def construct(self, up: Tensor, gate: Tensor) -> Tensor:
        return self.act(gate, up)


class GatedMLP(nn.Cell):
    """x -> down(silu(gate(x)) * up(x))."""

    def __init__(self, gate: nn.Cell, up: nn.Cell, down: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.gate, self.up, self.down = gate, up, down
        self.act = SwiGLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x), self.up(x)))


class HeadsFirstAttention(nn.Cell):
    """q, k, v [B, N, T, D] -> causal attention, [B, N, T, D]."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attend = Attention(scale)

    def construct(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = self.attend(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2))
        return y.swapaxes(1, 2)


class JoinedSelfAttention(nn.Cell):
    """x [B, T, H] -> causal self-attention, [B, T, H]; one layer makes queries, keys and values.

    `layout` says how its features lie: "3nd" all queries, then all keys, then all values; "n3d" head after head.
    """

    def __init__(self, qkv: nn.Cell, out: nn.Cell, heads: int, layout: str) -> None:
        super().__init__(auto_prefix=False)
        self.qkv, self.out = qkv, out
        self.heads, self.dim = heads, out.weight.shape[1] // heads
        self.by_head = layout == "n3d"
        self.split = ops.Split(-1, 3)
        self.attend = Attention(self.dim**-0.5)

    def construct(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(x)
        if self.by_head:
            qkv = qkv.reshape((b, t, self.heads, 3 * self.dim))
        q, k, v = self.split(qkv)
        heads = (b, t, self.heads, self.dim)
        y = self.attend(q.reshape(heads), k.reshape(heads), v.reshape(heads))
        return self.out(y.reshape((b, t, self.heads * self.dim)))


class SelfAttention(nn.Cell):
    """x [B, T, H] -> causal self-attention, [B, T, H]; keys and values may have fewer heads than queries."""

    def __init__(self, q: nn.Cell, k: nn.Cell, v: nn.Cell, out: nn.Cell, heads: int) -> None:
        super().__init__(auto_prefix=False)
        self.q, self.k, self.v, self.out = q, k, v, out
        self.heads, self.dim = heads, out.weight.shape[1] // heads
        self.attend = Attention(self.dim**-0.5)

    def construct(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).reshape((b, t, -1, self.dim))
        k = self.k(x).reshape((b, t, -1, self.dim))
        v = self.v(x).reshape((b, t, -1, self.dim))
        return self.out(self.attend(q, k, v).reshape((b, t, self.heads * self.dim)))
