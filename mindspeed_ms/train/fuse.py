"""Put fused operators into a network that somebody else wrote, and say what was replaced, what was not, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindspeed_ms.errors import TrainError
from mindspeed_ms.ops.dense import Dense
from mindspeed_ms.ops.gelu import GELU
from mindspeed_ms.ops.layer_norm import LayerNorm
from mindspeed_ms.ops.token_embedding import TokenEmbedding
from mindspeed_ms.train.cells import forget_graphs, put
from mindspeed_ms.train.fused import CrossEntropy, Fused, FusedPair, FusedThenActivation
from mindspeed_ms.train.patterns import candidates, could_be_fused, is_users
from mindspeed_ms.train.prove import TOLERANCE, Arrays, difference, eagerly, is_random, record_inputs

_NETWORK_TOLERANCE = 1e-4  # of the whole network's outputs, where the rounding of all operators adds up


@dataclass(frozen=True)
class Replaced:
    """A Cell that a fused one stands for now; `difference` is what running both showed, None where none was needed."""

    path: str
    before: str
    after: str
    difference: float | None = None


@dataclass(frozen=True)
class Left:
    """A Cell that stayed, and why."""

    path: str
    cell: str
    reason: str


@dataclass
class FuseReport:
    """What `fuse` did; as text, a table where numbered paths share a line."""

    replaced: list[Replaced] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    difference: float | None = None  # of the whole network's outputs before and after, relative; None without example

    def __str__(self) -> str:
        done = _lines([(_pattern(r.path), r.before, f"-> {r.after}") for r in self.replaced])
        stayed = _lines([(_pattern(left.path), left.cell, left.reason) for left in self.left])
        text = [f"replaced ({len(self.replaced)}):", *(done or ["  nothing"])]
        text += [f"left alone ({len(self.left)}):", *stayed] if stayed else []
        if self.difference is not None:
            text.append(f"outputs before and after differ by {self.difference:.1e} of the largest")
        return "\n".join(text)


def fuse(network: nn.Cell, *example: Tensor | np.ndarray) -> FuseReport:
    """Replace Cells of any MindSpore network, in place, by fused ones that hold the very same Parameters.

    Dense, LayerNorm, Embedding, GELU and CrossEntropyLoss of MindSpore are known. Cells of the network's own, such as
    RMSNorm, gated layers and causal attention, are looked into only when `example`, inputs of the network, is given: a
    fused Cell takes their place when outputs and gradients are equal on random inputs of the shapes that they get
    (to 5e-5 of the largest). The whole network is then compared on the example.

    Parameters keep their names, so checkpoints load and optimizers go on. Embedding then refuses ids outside its
    table, where MindSpore's gives zeros. Raises TrainError when the network's outputs changed.
    """
    report = FuseReport()
    with eagerly(network):
        recorded: dict[int, Arrays] = {}
        inputs = [value if isinstance(value, Tensor) else Tensor(value) for value in example]
        before = _first(network(*inputs)) if inputs else None
        if inputs:
            own = [cell for _, cell in network.cells_and_names() if cell is not network and could_be_fused(cell)]
            recorded = record_inputs(network, own, inputs)
        fuser = _Fuser(report, recorded)
        fuser.inside(network, "")
        if before is not None:
            report.difference = _compare(before, _run_again(network, inputs))
    for old, new in fuser.done.values():
        new.add_flags(training=old.training)
    forget_graphs(network)
    return report


class _Fuser:
    """Goes through a network, inner Cells first."""

    def __init__(self, report: FuseReport, recorded: dict[int, Arrays]) -> None:
        self.report, self.recorded = report, recorded
        self.done: dict[int, tuple[nn.Cell, nn.Cell]] = {}  # the Cell before, kept so that its id stays its own

    def inside(self, parent: nn.Cell, prefix: str) -> None:
        for name in list(parent._cells):
            cell = parent._cells[name]
            if cell is None:
                continue
            if id(cell) not in self.done:
                new = self.replacement(prefix + name, cell)
                self.done[id(cell)] = (cell, new)
                self.done[id(new)] = (new, new)
            new = self.done[id(cell)][1]
            if new is not cell:
                put(parent, name, new)

    def replacement(self, path: str, cell: nn.Cell) -> nn.Cell:
        """What shall stand in the place of a Cell: the Cell itself when it is left alone."""
        kind = type(cell)
        if kind.__module__.startswith("mindspeed_ms."):
            return cell
        if kind is not nn.MultiheadAttention:  # it reads the weights of its output layer without calling it
            self.inside(cell, path + ".")
        if kind in _KNOWN or kind in _UNKNOWN or (not is_users(cell) and not cell._cells):
            reason = _special(cell) or _UNKNOWN.get(kind) or (None if kind in _KNOWN else "no fused operator for it")
            new = reason or _KNOWN[kind](cell)
            if isinstance(new, str):
                return self.leave(path, cell, new)
            return self.take(path, cell, type(getattr(new, "inner", new)).__name__, new)
        return self.proven(path, cell) if id(cell) in self.recorded else cell

    def proven(self, path: str, cell: nn.Cell) -> nn.Cell:
        """The first candidate that is equal to a user's own Cell."""
        example = self.recorded[id(cell)]
        reason = _special(cell)
        least = None
        for name, new in candidates(cell, example):
            if reason or is_random(cell, example):
                return self.leave(path, cell, reason or "its output is random in training; set its dropout to 0")
            apart = difference(cell, new, example)
            if apart <= TOLERANCE:
                inside = path + "."  # what was left alone in there is not called any more
                self.report.left[:] = [left for left in self.report.left if not left.path.startswith(inside)]
                return self.take(path, cell, name, new, apart)
            least = apart if least is None else min(least, apart)
        # What takes one input and has no parameters could be anything; of that it is not told that it is nothing.
        if least is None or (len(example) < 3 and not list(cell.get_parameters())):
            return cell
        return self.leave(path, cell, f"it is not what we have: outputs or gradients differ by {least:.1e} at least")

    def leave(self, path: str, cell: nn.Cell, reason: str) -> nn.Cell:
        self.report.left.append(Left(path, _class(cell), reason))
        return cell

    def take(self, path: str, cell: nn.Cell, name: str, new: nn.Cell, apart: float | None = None) -> nn.Cell:
        self.report.replaced.append(Replaced(path, _class(cell), name, apart))
        return new


def _special(cell: nn.Cell) -> str | None:
    """Why a Cell may compute something else than its class says."""
    if "construct" in vars(cell):
        return "its construct was replaced"
    hooks = ("_forward_pre_hook", "_forward_hook", "_backward_pre_hook", "_backward_hook")
    if any(getattr(cell, hook, None) for hook in hooks):
        return "it has hooks"
    if getattr(cell, "_recompute_cell", None) is not None:
        return "recompute is set on it"
    if any(cell.get_flags().get(flag) for flag in ("fp16", "bf16")):
        return "it computes in half precision"
    if any(parameter.dtype != ms.float32 for parameter in cell.get_parameters()):
        return "its parameters are not float32"
    return None


def _dense(cell: nn.Dense) -> nn.Cell | str:
    outputs, inputs = cell.weight.shape
    dense = Dense(inputs, outputs, has_bias=cell.bias is not None)
    dense.weight = cell.weight
    if cell.bias is not None:
        dense.bias = cell.bias
    if cell.activation is None:
        return Fused(cell, dense)
    return FusedThenActivation(cell, dense)


def _layer_norm(cell: nn.LayerNorm) -> nn.Cell | str:
    if len(cell.normalized_shape) != 1 or cell.begin_norm_axis != -1 or cell.begin_params_axis != -1:
        return "it normalises other axes than the last"
    norm = LayerNorm(cell.normalized_shape[0], cell.epsilon, has_bias=True)
    norm.weight, norm.bias = cell.gamma, cell.beta
    return Fused(cell, norm)


def _embedding(cell: nn.Embedding) -> nn.Cell | str:
    embedding = TokenEmbedding(*cell.embedding_table.shape)
    embedding.weight = cell.embedding_table
    return Fused(cell, embedding)


def _gelu(cell: nn.GELU) -> nn.Cell | str:
    return Fused(cell, GELU(cell.approximate))


def _cross_entropy(cell: nn.CrossEntropyLoss) -> nn.Cell | str:
    if cell.weight is not None or cell.label_smoothing:
        return "it weighs classes or smooths labels"
    return FusedPair(cell, CrossEntropy(cell))


_KNOWN: dict[type, Callable[..., nn.Cell | str]] = {
    nn.Dense: _dense,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.GELU: _gelu,
    nn.CrossEntropyLoss: _cross_entropy,
}
_UNKNOWN: dict[type, str] = {
    nn.MultiheadAttention: "its mask comes with each call, and the fused attention is causal",
    nn.Dropout: "its random numbers are MindSpore's; the fused one takes a seed with each call",
    nn.SiLU: "it is fused only together with the product after it, in a Cell of their own",
}


def _first(output: object) -> np.ndarray | None:
    """The first tensor of what a network returns."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output.asnumpy().copy() if isinstance(output, Tensor) else None


def _run_again(network: nn.Cell, inputs: list[Tensor]) -> np.ndarray | None:
    try:
        return _first(network(*inputs))
    except (AttributeError, TypeError) as error:  # a network that uses more of its Cells than their outputs
        reason = " ".join(str(error).split())[:200]
        raise TrainError(f"fuse: the network does not run with fused Cells ({reason}); fuse parts of it") from error


def _compare(before: np.ndarray, after: np.ndarray | None) -> float:
    same = after is not None and after.shape == before.shape
    size = np.abs(before).max(initial=0.0) or 1.0
    apart = float(np.abs(after - before).max(initial=0.0) / size) if after is not None and same else float("inf")
    if not apart <= _NETWORK_TOLERANCE:
        raise TrainError(
            f"fuse: the network's outputs changed by {apart:.1e} of the largest, expected {_NETWORK_TOLERANCE:g} at "
            "most; it uses the inside of Cells that were replaced: fuse parts of it"
        )
    return apart


def _class(cell: nn.Cell) -> str:
    module = "nn." if type(cell).__module__.startswith("mindspore.nn") else ""
    return module + type(cell).__name__


def _pattern(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _lines(rows: list[tuple[str, str, str]]) -> list[str]:
    """Aligned rows, equal ones as one with their number."""
    counts: dict[tuple[str, str, str], int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    widths = [max((len(row[column]) for row in counts), default=0) for column in range(3)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + (f"  x {count}" if count > 1 else "")
        for row, count in counts.items()
    ]
