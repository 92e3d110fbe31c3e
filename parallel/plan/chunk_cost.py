"""What a chunk of layers costs for one micro-batch: computation, recompute, and the communication inside a layer."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_ms.parallel.plan import compute, parameters
from mindspeed_ms.parallel.plan.compute import PieceTime, Split
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
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


def chunks_of(
    shape: ModelShape,
    settings: Settings,
    cluster: Cluster,
    job: Job,
    rate: Efficiency,
    order: Order,
    held: tuple[tuple[int, int], ...],
) -> list[Chunk]:
    """Every chunk in the order of the computation; `held`: its first layer and the one after its last."""
    repeated = _repeated(settings, tuple(stop - first for first, stop in held))
    layer: dict[bool, _Layer] = {}
    known: dict[tuple, Chunk] = {}
    chunks = []
    for index, ((first, stop), again) in enumerate(zip(held, repeated, strict=True)):
        counts = parameters.layer_kinds(shape, first, stop)
        for moe, number in zip((False, True), counts, strict=True):
            if number and moe not in layer:
                layer[moe] = _layer(shape, settings, cluster, job, moe, rate, order)
        # Chunks in the middle are alike; the first and the last one get the embedding and the head.
        key = (counts, again, index == 0, index == len(held) - 1)
        if key not in known:
            known[key] = _chunk(settings, layer, counts, again)
        chunks.append(known[key])
    split = Split(settings.tensor, settings.context, settings.expert, settings.sequence_parallel)
    args = (shape, job.seq, settings.micro_batch, split, cluster.accelerator, rate)
    groups = group_shapes(cluster, settings, "tensor", order)
    tokens = settings.micro_batch * job.seq / settings.context
    once = slowest("all_reduce", groups, tokens * shape.hidden * job.activation_bytes)
    chunks[0].add_piece(compute.embedding_time(*args), once / 2)
    chunks[-1].add_piece(compute.head_time(*args), once / 2)
    return chunks


def _chunk(settings: Settings, layer: dict[bool, _Layer], counts: tuple[int, int], again: float) -> Chunk:
    """So many plain layers and layers with experts, of which `again` are computed a second time."""
    chunk = Chunk()
    for moe, number in zip((False, True), counts, strict=True):
        if not number:
            continue
        if settings.recompute == "full":
            part = number * again / sum(counts)
            chunk.add(layer[moe], part, "full")
            chunk.add(layer[moe], number - part, "none")
        else:
            chunk.add(layer[moe], number, settings.recompute)
    return chunk


def _repeated(settings: Settings, layers: tuple[int, ...]) -> list[float]:
    """How many layers of each chunk are computed again."""
    if settings.recompute != "full":
        return [0.0] * len(layers)
    if settings.recompute_layers is None:
        return [float(count) for count in layers]
    stages = settings.pipeline
    held = [sum(layers[stage::stages]) for stage in range(stages)]
    return [
        min(1.0, settings.recompute_layers[index % stages] / (held[index % stages] or 1)) * count
        for index, count in enumerate(layers)
    ]
