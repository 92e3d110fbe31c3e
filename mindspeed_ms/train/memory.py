"""How much memory a run will take, before it takes any: parameters, gradients, optimizer state and activations.

All is float32. Of a layer and a token the backward pass needs, in numbers (H hidden, I inner, Q and K the widths of all
query and of all key heads, N query heads):

    2 H    what both norms read (the residual stream)
    2 H    what both norms gave
    Q+2K   queries and keys after rotation, values
    Q+N    what attention gave, and the logarithm of each sum of exponentials
    3 I    gate, up, and their product

With `recompute` only the stream that enters a layer stays, and one layer at a time is made again. Beside the layers:
the last norm's input and output, the gradient of it, and what the gradients of the layer at work take: 2 I + 2 H.

A checkpoint is copied before the next step changes it; the copy stays for those that follow.

The loss makes its gradients from a block of logits, some rows at a time, and the kernels keep that memory. Where input
and output have one table, two gradients of it come to be, and their sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.metrics import resident_bytes

_FLOAT = 4
_PROCESS = 450 << 20  # MindSpore, its compiler and the kernels, before there is a model
# What the compiler and the graphs it made keep, measured: of the first graph, and of each more.
_GRAPH, _LAYER, _ADAPTER = 15 << 20, 12 << 20, 2 << 20
# As in ops/native/src/train_loss.cc: floats of a block of logits, and the rows that it has at the least.
_LOGITS, _FEWEST_ROWS = 2 << 20, 128
_PACKED = 2 << 20  # what matrix products copy their operands to
_MORE = 4  # a further graph takes one part in so many of the first
_ENCODING = 48 << 20  # buffers that a checkpoint is encoded in and written from
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by what they are for; `shape` is that of the batch that takes the most.

    loss: what the kernels keep for the loss, a block of logits above all.
    snapshot: the copy that a checkpoint is written from, and what it is encoded with.
    overlap: of gradients that come to be as activations go, so that both do not count.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    graphs: int
    snapshot: int
    overlap: int
    shape: tuple[int, int]

    @property
    def total(self) -> int:
        parts = self.parameters + self.gradients + self.optimizer + self.activations
        return parts + self.loss + self.graphs + self.snapshot - self.overlap


def estimate(
    spec: DecoderSpec,
    shapes: Iterable[tuple[int, int]],
    *,
    trained: int,
    state_floats: int,
    accumulates: bool = False,
    recompute: bool = False,
    extra: int = 0,
    adapters: int = 0,
    dropped: int = 0,
    saved_floats: int = 0,
) -> MemoryEstimate:
    """The memory of a run.

    shapes: [rows, tokens of a row] of the batches. trained, extra: parameters that are trained, and those beside the
    model's own. state_floats: numbers of optimizer state. accumulates: gradients are added up beside those of a batch.
    adapters: layers that have one. dropped: numbers a token that dropout makes copies of.
    saved_floats: numbers that a checkpoint holds; 0 where none is made.
    """
    parameters = extra + sum(_size(shape) for shape in spec.parameter_shapes().values())
    found = list(shapes)
    worst = max(found, key=lambda shape: (shape[0] * shape[1], shape))
    table = 0 if extra else spec.vocab_size * spec.hidden_size
    gradients = trained + (trained if accumulates else 0) + (2 * table if spec.tie_word_embeddings else 0)
    activations = _FLOAT * worst[0] * worst[1] * (_floats_of_a_token(spec, recompute) + dropped)
    graph = _GRAPH + _LAYER * spec.num_hidden_layers + _ADAPTER * adapters
    return MemoryEstimate(
        parameters=_FLOAT * parameters,
        gradients=_FLOAT * gradients,
        optimizer=_FLOAT * state_floats,
        activations=activations,
        loss=_FLOAT * _rows_of_logits(worst[0] * worst[1], spec.vocab_size) * spec.vocab_size + _PACKED,
        graphs=_PROCESS + graph + (len(found) - 1) * graph // _MORE,
        snapshot=_FLOAT * saved_floats + _ENCODING if saved_floats else 0,
        # The output layer's gradient is made with the loss, before any activation goes.
        overlap=min(_FLOAT * (trained - table), activations),
        shape=worst,
    )


def without_snapshot(needed: MemoryEstimate) -> MemoryEstimate:
    """Of a run that stands still while a checkpoint is made of the tensors themselves."""
    return replace(needed, snapshot=min(needed.snapshot, _ENCODING))


def available_bytes() -> int | None:
    """Memory that this process may have in all: what it has, and what the machine or its control group has left.

    None where the system does not say.
    """
    found = [value for value in (_machine(), *_groups()) if value is not None]
    return min(found) + resident_bytes() if found else None


def require(needed: MemoryEstimate, available: int | None, advice: Sequence[str]) -> None:
    """Raises TrainError when the estimate is more than there is; `advice` is what can be changed."""
    if available is not None and needed.total > available:
        rows, length = needed.shape
        raise TrainError(
            f"out of memory before the first step: the run takes about {_gb(needed.total)} "
            f"(parameters {_gb(needed.parameters)}, gradients {_gb(needed.gradients)}, optimizer "
            f"{_gb(needed.optimizer)}, activations of [{rows}, {length}] {_gb(needed.activations)}, logits "
            f"{_gb(needed.loss)}, checkpoints {_gb(needed.snapshot)}), it can have {_gb(available)}; "
            f"{', '.join(advice)}"
        )


def _rows_of_logits(tokens: int, vocabulary: int) -> int:
    """Rows of the block that the loss works on, where every token has a label."""
    most = max(_FEWEST_ROWS, _LOGITS // vocabulary)
    blocks = -(-tokens // most)
    return -(-tokens // blocks)


def _floats_of_a_token(spec: DecoderSpec, recompute: bool) -> int:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    layer = 4 * hidden + 2 * queries + 2 * keys + spec.num_attention_heads + 3 * inner
    layers = spec.num_hidden_layers
    kept = layers * hidden + layer if recompute else layers * layer
    return kept + 3 * hidden + 2 * inner + 2 * hidden


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _machine() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError):
        return None


def _groups(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> Iterable[int]:
    """What is left in each control group around this process: of version 2, and of version 1's memory controller."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            base, limit, used = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / path.strip("/")
        # In a container the group's own path may not be there; its root then is the container's.
        while folder == base or base in folder.parents:
            most, now, cache = _number(folder / limit), _number(folder / used), _inactive_file(folder)
            if most is not None and now is not None:
                yield max(0, most - now + cache)
            if folder == base:
                break
            folder = folder.parent


def _inactive_file(folder: Path) -> int:
    """Bytes of file contents that the group counts and that the system drops when memory is wanted."""
    try:
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" is no limit
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
