"""What a chunk of layers costs for one micro-batch: computation, recompute, and the communication inside a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspeed_ms.parallel.plan import compute, parameters
from mindspeed_ms.parallel.plan.compute import PieceTime, Split
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import Order, clashes, group_shapes, slowest
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster


@dataclass(frozen=True)
class _Layer:
    """One layer and micro-batch: computation, and communication of its forward pass and of its backward pass."""

    time: PieceTime
    tensor: float
    context: float
    context_back: float
    expert: float
    hidden: float  # of context, behind attention
    hidden_back: float
    # What of it goes over the port that ZeRO and gradients use as well
    clash: Clash


@dataclass(frozen=True)
class Clash:
    """Seconds on the ports of the data groups: waited for and hidden, forward and backward (without recompute)."""

    ahead: float = 0.0
    back: float = 0.0
    hidden: float = 0.0
    hidden_back: float = 0.0


def _layer(
    shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, moe: bool, rate: Efficiency, order: Order
) -> _Layer:
    split = Split(settings.tensor, settings.context, settings.expert, settings.sequence_parallel)
    time = compute.layer_time(
        shape, job.seq, settings.micro_batch, moe, split, cluster.accelerator, rate, job.flash_attention
    )
    tokens = settings.micro_batch * job.seq / settings.context
    hidden_bytes = tokens * shape.hidden * job.activation_bytes
    tensor = 0.0
    if settings.tensor > 1:
        groups = group_shapes(cluster, settings, "tensor", order)
        if settings.sequence_parallel:
            tensor = 2 * (slowest("all_gather", groups, hidden_bytes) + slowest("reduce_scatter", groups, hidden_bytes))
        else:
            tensor = 2 * slowest("all_reduce", groups, hidden_bytes)
    context, back, hidden, hidden_back = _ring_attention(shape, settings, cluster, job, time.attention, order)
    expert = 0.0
    if moe and settings.expert > 1:
        groups = group_shapes(cluster, settings, "expert", order)
        cut = settings.tensor if settings.sequence_parallel else 1
        expert = 2 * slowest("all_to_all", groups, shape.top_k * hidden_bytes / cut)
    on = {name: clashes(cluster, settings, name, order) for name in ("tensor", "context", "expert")}
    always = tensor * on["tensor"] + expert * on["expert"]
    ring = on["context"]
    clash = Clash(always + context * ring, always + back * ring, hidden * ring, hidden_back * ring)
    return _Layer(time, tensor, context, back, expert, hidden, hidden_back, clash)


def _ring_attention(
    shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, attention: float, order: Order
) -> tuple[float, float, float, float]:
    """Seconds forward and backward that attention waits for keys and values, and that it hides (Liu et al. 2023).

    Each of context - 1 steps sends keys and values on while the block at hand is computed; backward sends their
    gradients, too.
    """
    if settings.context == 1:
        return 0.0, 0.0, 0.0, 0.0
    groups = group_shapes(cluster, settings, "context", order)
    tokens = settings.micro_batch * job.seq / settings.context
    width = 2 * shape.kv_heads * shape.head_dim
    if shape.kv_lora_rank:
        width = shape.heads * (shape.head_dim + shape.rope_dim + shape.v_head_dim)
    block = tokens * width * job.activation_bytes / min(settings.tensor, max(shape.kv_heads, 1))
    once, twice = slowest("send", groups, block), slowest("send", groups, 2 * block)
    steps, slice_ = settings.context - 1, attention / settings.context
    forward = steps * max(0.0, once - slice_)
    backward = steps * max(0.0, twice - slice_ * compute.ATTENTION_BACKWARD)
    return forward, backward, steps * once - forward, steps * twice - backward


@dataclass
class Chunk:
    """Seconds of one virtual stage for one micro-batch, by what they are spent on."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    hidden: float = 0.0
    ahead: float = 0.0  # all of forward, with communication
    back: float = 0.0  # all of backward, with recompute and communication
    clash: float = 0.0  # of forward and of backward on the ports of the data groups: waited for, hidden
    clash_back: float = 0.0
    clash_hidden: float = 0.0
    clash_hidden_back: float = 0.0

    @property
    def load(self) -> tuple[float, float, float]:
        """Forward: seconds, and of them on the ports of the data groups those waited for and those hidden."""
        return self.ahead, self.clash, self.clash_hidden

    @property
    def load_back(self) -> tuple[float, float, float]:
        """Backward: as `load`."""
        return self.back, self.clash_back, self.clash_hidden_back

    def add(self, layer: _Layer, count: float, again: str) -> None:
        """Add so many layers; `again`: what backward computes a second time."""
        time = layer.time
        talk = layer.tensor + layer.context + layer.expert
        repeat = {"full": time.forward, "selective": time.cheap}.get(again, 0.0)
        repeated = 1 if again == "full" else 0
        self.forward += count * time.forward
        self.backward += count * time.backward
        self.recompute += count * repeat
        self.tensor += count * layer.tensor * (2 + repeated)
        self.context += count * (layer.context * (1 + repeated) + layer.context_back)
        self.expert += count * layer.expert * (2 + repeated)
        self.hidden += count * (layer.hidden * (1 + repeated) + layer.hidden_back)
        clash = layer.clash
        self.clash += count * clash.ahead
        self.clash_back += count * (clash.back + clash.ahead * repeated)
        self.clash_hidden += count * clash.hidden
        self.clash_hidden_back += count * (clash.hidden_back + clash.hidden * repeated)
        self.ahead += count * (time.forward + talk)
        self.back += count * (
            time.backward + repeat + talk - layer.context + layer.context_back + (talk if repeated else 0.0)
        )

    def add_piece(self, time: PieceTime, tensor: float) -> None:
        """Add the embedding or the head, with a tensor communication each way."""
        self.forward += time.forward
        self.backward += time.backward
        self.tensor += 2 * tensor
        self.ahead += time.forward + tensor
        self.back += time.backward + tensor


class Pieces:
    """Layers, embedding and head with given degrees, micro-batch and sequence parallelism, and chunks made of them.

    Everything that does not depend on how layers are split, scheduled and computed again is worked out once.
    """

    def __init__(
        self, shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, rate: Efficiency, order: Order
    ) -> None:
        self.shape, self.cluster, self.job, self.rate, self.order = shape, cluster, job, rate, order
        self._settings = settings
        held = parameters.layer_kinds(shape, 0, shape.layers)
        self._held = [moe for moe in (False, True) if held[moe]]
        self._layers: dict[bool, _Layer] = {}
        self._chunks: dict[tuple, Chunk] = {}
        self._counts: dict[tuple, Count] = {}
        self.known: dict[tuple, Any] = {}  # what others found out about stages made of these chunks
        split = Split(settings.tensor, settings.context, settings.expert, settings.sequence_parallel)
        args = (shape, job.seq, settings.micro_batch, split, cluster.accelerator, rate)
        groups = group_shapes(cluster, settings, "tensor", order)
        tokens = settings.micro_batch * job.seq / settings.context
        once = slowest("all_reduce", groups, tokens * shape.hidden * job.activation_bytes)
        self._ends = (compute.embedding_time(*args), compute.head_time(*args)), once / 2
        self.transfer = _transfer(shape, settings, cluster, job, order)

    def chunks(self, settings: Settings, kinds: Sequence[tuple[int, int]]) -> list[Chunk]:
        """Every chunk in the order of the computation; `kinds`: its plain layers and those with experts."""
        repeated = _repeated(settings, kinds)
        last, recompute = len(kinds) - 1, settings.recompute
        found = []
        for index, (counts, again) in enumerate(zip(kinds, repeated, strict=True)):
            # Chunks in the middle are alike; the first and the last one get the embedding and the head.
            key = (counts, again, recompute, index == 0, index == last)
            chunk = self._chunks.get(key)
            if chunk is None:
                chunk = self._chunks[key] = self._chunk(*key)
            found.append(chunk)
        return found

    def count(self, kinds: tuple[int, int], first: bool, last: bool) -> Count:
        """The numbers that a rank of a stage with so many layers of each kind holds."""
        key = (kinds, first, last)
        if key not in self._counts:
            self._counts[key] = parameters.count_of(self.shape, self._settings, kinds, first, last)
        return self._counts[key]

    def never_slower(self, other: Pieces) -> bool:
        """Whether each piece takes as long as another's at most, so that no step made of these is longer."""
        if self.transfer > other.transfer or self._ends[1] > other._ends[1]:
            return False
        pairs = list(zip(self._ends[0], other._ends[0], strict=True))
        pairs += [(self._layer(moe).time, other._layer(moe).time) for moe in self._held]
        if any(a.forward > b.forward or a.backward > b.backward or a.cheap > b.cheap for a, b in pairs):
            return False
        names = ("tensor", "context", "context_back", "expert")
        return all(
            getattr(self._layer(moe), name) <= getattr(other._layer(moe), name) for moe in self._held for name in names
        )

    def _layer(self, moe: bool) -> _Layer:
        if moe not in self._layers:
            self._layers[moe] = _layer(self.shape, self._settings, self.cluster, self.job, moe, self.rate, self.order)
        return self._layers[moe]

    def _chunk(self, counts: tuple[int, int], again: float, recompute: str, first: bool, last: bool) -> Chunk:
        """So many plain layers and layers with experts, of which `again` are computed a second time."""
        chunk = Chunk()
        for moe, number in zip((False, True), counts, strict=True):
            if not number:
                continue
            if recompute == "full":
                part = number * again / sum(counts)
                chunk.add(self._layer(moe), part, "full")
                chunk.add(self._layer(moe), number - part, "none")
            else:
                chunk.add(self._layer(moe), number, recompute)
        ends, tensor = self._ends
        for here, piece in zip((first, last), ends, strict=True):
            if here:
                chunk.add_piece(piece, tensor)
        return chunk


def _transfer(shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, order: Order) -> float:
    """Seconds from the end of a stage's work to the begin of the next one's."""
    if settings.pipeline == 1:
        return 0.0
    nbytes = settings.micro_batch * job.seq / settings.context * shape.hidden * job.activation_bytes
    if settings.sequence_parallel:
        nbytes /= settings.tensor
    return slowest("send", group_shapes(cluster, settings, "pipeline", order), nbytes)


def _repeated(settings: Settings, kinds: Sequence[tuple[int, int]]) -> list[float]:
    """How many layers of each chunk are computed again."""
    if settings.recompute != "full":
        return [0.0] * len(kinds)
    layers = [plain + experts for plain, experts in kinds]
    if settings.recompute_layers is None:
        return [float(count) for count in layers]
    stages = settings.pipeline
    held = [sum(layers[stage::stages]) for stage in range(stages)]
    return [
        min(1.0, settings.recompute_layers[index % stages] / (held[index % stages] or 1)) * count
        for index, count in enumerate(layers)
    ]
