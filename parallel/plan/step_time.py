"""How long one training step takes: computation, communication that nothing hides, bubbles and the optimizer.

Tensor, expert and context communication lies inside a micro-batch and counts in full (context: what attention does not
hide). Stages then run by their schedule; the gradients of the last micro-batch are reduced behind its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_ms.parallel.plan import compute, overlap, parameters, pipeline_schedule
from mindspeed_ms.parallel.plan.compute import PieceTime, Split
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import Order, group_shapes
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.collectives import best_of_shape
from mindspeed_ms.parallel.topology.hierarchy import GroupShape


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step on the critical path, and what they consist of.

    Parts are those of the busiest stage; they, the exposed communication, the bubble and the optimizer add up to
    `total`. `hidden` runs beside computation and costs nothing.
    """

    total: float
    forward: float
    backward: float
    recompute: float
    tensor: float
    context: float
    expert: float
    data: float  # gradients and ZeRO, not hidden
    hidden: float  # gradients, ZeRO and ring attention behind computation
    waiting: float  # bubble and pipeline together
    optimizer: float
    tokens: int
    devices: int
    model_flops: float
    peak_flops: float
    schedule: tuple = field(default=(), repr=False, compare=False)

    @cached_property
    def pipeline(self) -> float:
        """Seconds of sending between stages, as far as a stage waits for it: what the step gains without."""
        name, stages, count, forward, backward, transfer = self.schedule
        if not transfer:
            return 0.0
        sent = pipeline_schedule.span(name, stages, count, forward, backward, transfer).seconds
        return min(self.waiting, sent - pipeline_schedule.span(name, stages, count, forward, backward).seconds)

    @property
    def bubble(self) -> float:
        """Seconds that the busiest stage stands idle for want of work."""
        return self.waiting - self.pipeline

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name; their sum is `total`."""
        names = ("forward", "backward", "recompute", "tensor", "context", "expert", "pipeline", "data", "bubble")
        return {name: getattr(self, name) for name in (*names, "optimizer")}

    @property
    def bubble_share(self) -> float:
        """The bubble as a share of the whole step."""
        return self.bubble / self.total

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the whole job in a second."""
        return self.tokens / self.total

    @property
    def flops_utilization(self) -> float:
        """Model operations (no recompute) as a share of what the devices could do in that time (MFU)."""
        return self.model_flops / (self.total * self.devices * self.peak_flops)

    @cached_property
    def timeline(self) -> list[pipeline_schedule.Event]:
        """Every micro-batch on every stage, for a picture."""
        return pipeline_schedule.events(*self.schedule)


_BUSY = ("forward", "backward", "recompute", "tensor", "context", "expert")


def _worst(operation: str, shapes: tuple[GroupShape, ...], nbytes: float) -> float:
    if not shapes or nbytes <= 0:
        return 0.0
    return max(best_of_shape(operation, shape, nbytes).seconds for shape in shapes)


@dataclass(frozen=True)
class _Layer:
    """One layer and micro-batch: computation, and communication of its forward pass and of its backward pass."""

    time: PieceTime
    tensor: float
    context: float
    context_back: float
    expert: float
    hidden: float


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
            tensor = 2 * (_worst("all_gather", groups, hidden_bytes) + _worst("reduce_scatter", groups, hidden_bytes))
        else:
            tensor = 2 * _worst("all_reduce", groups, hidden_bytes)
    context, back, behind = _ring_attention(shape, settings, cluster, job, time.attention, order)
    expert = 0.0
    if moe and settings.expert > 1:
        groups = group_shapes(cluster, settings, "expert", order)
        cut = settings.tensor if settings.sequence_parallel else 1
        expert = 2 * _worst("all_to_all", groups, shape.top_k * hidden_bytes / cut)
    return _Layer(time, tensor, context, back, expert, behind)


def _ring_attention(
    shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, attention: float, order: Order
) -> tuple[float, float, float]:
    """Seconds forward and backward that attention waits for keys and values, and what it hides (Liu et al. 2023).

    Each of context - 1 steps sends keys and values on while the block at hand is computed; backward sends their
    gradients, too.
    """
    if settings.context == 1:
        return 0.0, 0.0, 0.0
    groups = group_shapes(cluster, settings, "context", order)
    tokens = settings.micro_batch * job.seq / settings.context
    width = 2 * shape.kv_heads * shape.head_dim
    if shape.kv_lora_rank:
        width = shape.heads * (shape.head_dim + shape.rope_dim + shape.v_head_dim)
    block = tokens * width * job.activation_bytes / min(settings.tensor, max(shape.kv_heads, 1))
    once, twice = _worst("send", groups, block), _worst("send", groups, 2 * block)
    steps, slice_ = settings.context - 1, attention / settings.context
    forward = steps * max(0.0, once - slice_)
    backward = steps * max(0.0, twice - slice_ * compute.ATTENTION_BACKWARD)
    return forward, backward, steps * (once + twice) - forward - backward


@dataclass
class _Chunk:
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
        self.hidden += count * layer.hidden
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


def _chunks(
    shape: ModelShape,
    settings: Settings,
    cluster: Cluster,
    job: Job,
    rate: Efficiency,
    order: Order,
    held: tuple[tuple[int, int], ...],
) -> list[_Chunk]:
    repeated = _repeated(settings, tuple(stop - first for first, stop in held))
    kind: dict[bool, _Layer] = {}
    chunks = []
    for (first, stop), again in zip(held, repeated, strict=True):
        chunk = _Chunk()
        plain, with_experts = parameters.layer_kinds(shape, first, stop)
        for moe, number in ((False, plain), (True, with_experts)):
            if not number:
                continue
            if moe not in kind:
                kind[moe] = _layer(shape, settings, cluster, job, moe, rate, order)
            if settings.recompute == "full":
                part = number * again / (stop - first)
                chunk.add(kind[moe], part, "full")
                chunk.add(kind[moe], number - part, "none")
            else:
                chunk.add(kind[moe], number, settings.recompute)
        chunks.append(chunk)
    split = Split(settings.tensor, settings.context, settings.expert, settings.sequence_parallel)
    args = (shape, job.seq, settings.micro_batch, split, cluster.accelerator, rate)
    groups = group_shapes(cluster, settings, "tensor", order)
    tokens = settings.micro_batch * job.seq / settings.context
    once = _worst("all_reduce", groups, tokens * shape.hidden * job.activation_bytes)
    chunks[0].add_piece(compute.embedding_time(*args), once / 2)
    chunks[-1].add_piece(compute.head_time(*args), once / 2)
    return chunks


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


@dataclass(frozen=True)
class _Data:
    """Seconds of gradient and ZeRO communication of one stage."""

    tail: float  # after the last backward pass, and before the first forward pass
    each: float  # of every micro-batch, where its computation is too short to hide it
    hidden: float


def _data_of_stages(
    settings: Settings,
    cluster: Cluster,
    job: Job,
    weights: list[Count],
    chunks: list[_Chunk],
    held: tuple[tuple[int, int], ...],
    order: Order,
) -> list[_Data]:
    """Stages in the middle are alike: what differs is worked out once."""
    stages = settings.pipeline
    known: dict[tuple, _Data] = {}
    found = []
    for stage in range(stages):
        own = chunks[stage::stages]
        layers = sum(stop - first for first, stop in held[stage::stages])
        sums = sum(chunk.ahead for chunk in own), sum(chunk.back for chunk in own), layers
        key = (weights[stage], sums)
        if key not in known:
            known[key] = _data(settings, cluster, job, weights[stage], sums, order)
        found.append(known[key])
    return found


def _data(
    settings: Settings, cluster: Cluster, job: Job, weights: Count, chunk: tuple[float, float, int], order: Order
) -> _Data:
    """chunk: seconds forward and backward of one micro-batch on this stage, and its layers."""
    ahead, back, layers = chunk
    dense = group_shapes(cluster, settings, "data", order)
    expert = group_shapes(cluster, settings, "expert_data", order)
    if not dense and not expert:
        return _Data(0.0, 0.0, 0.0)
    total = weights.total
    part = weights.dense / total

    def both(operation: str, nbytes: float) -> float:
        seconds = _worst(operation, dense, nbytes * part)
        return seconds + _worst(operation, expert, nbytes * (1 - part)) if weights.expert else seconds

    layers = max(layers, 1)
    reduction = "reduce_scatter" if settings.zero else "all_reduce"
    gradients = total * job.gradient_bytes / layers
    _, last = overlap.best_even_bucket(layers, back / layers, gradients, lambda nbytes: both(reduction, nbytes))
    tail, spent, each = last.exposed, last.communication, 0.0
    if settings.zero:
        values = total * job.weight_bytes / layers
        _, gathered = overlap.best_even_bucket(
            layers, ahead / layers, values, lambda nbytes: both("all_gather", nbytes)
        )
        tail += gathered.exposed
        spent += gathered.communication
        later = settings.micro_batches - 1
        if settings.zero >= 2:
            again = gathered.communication if settings.zero == 3 else 0.0
            wait = max(0.0, last.communication + again - back) + max(0.0, again - ahead)
            each = wait
            spent += later * (last.communication + 2 * again) + again
            tail += max(0.0, again - back)
    return _Data(tail, each, max(0.0, spent - tail - each * (settings.micro_batches - 1)))


def chunk_seconds(
    shape: ModelShape,
    settings: Settings,
    cluster: Cluster,
    job: Job,
    *,
    order: Order = None,
    rate: Efficiency | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds forward and backward of each chunk for one micro-batch, with recompute and the communication inside."""
    rate = rate or efficiency_of(cluster.accelerator.name)
    chunks = _chunks(shape, settings, cluster, job, rate, order, settings.chunks(shape.layers))
    return tuple(chunk.ahead for chunk in chunks), tuple(chunk.back for chunk in chunks)


def step_time(
    shape: ModelShape,
    settings: Settings,
    cluster: Cluster,
    job: Job,
    memory: object = None,
    *,
    order: Order = None,
    rate: Efficiency | None = None,
) -> StepTime:
    """Predict one step of `settings.micro_batches` micro-batches of each replica.

    order: slot of each rank; None: rank and slot are the same. rate: shares of the peak; None: the accelerator's.
    `memory` is not needed; a caller may pass what it has. Settings are taken as valid (`rules.validate`).
    """
    rate = rate or efficiency_of(cluster.accelerator.name)
    stages, count = settings.pipeline, settings.micro_batches
    held = settings.chunks(shape.layers)
    chunks = _chunks(shape, settings, cluster, job, rate, order, held)
    weights = [parameters.stage_count(shape, settings, stage) for stage in range(stages)]
    data = _data_of_stages(settings, cluster, job, weights, chunks, held, order)
    forward = tuple(chunk.ahead for chunk in chunks)
    backward = tuple(chunk.back + data[i % stages].each / settings.virtual for i, chunk in enumerate(chunks))
    schedule = (settings.schedule, stages, count, forward, backward, _transfer(shape, settings, cluster, job, order))
    run = pipeline_schedule.span(*schedule)
    last = max(end + piece.tail for end, piece in zip(run.ends, data, strict=True))
    optimizer = _optimizer(settings, cluster, job, weights, rate)
    busiest = max(range(stages), key=lambda stage: sum(forward[stage::stages]) + sum(backward[stage::stages]))
    own = chunks[busiest::stages]
    busy = {name: count * sum(getattr(chunk, name) for chunk in own) for name in _BUSY}
    later = count * data[busiest].each
    return StepTime(
        total=last + optimizer,
        **busy,
        data=later + last - run.seconds,
        hidden=data[busiest].hidden + count * sum(chunk.hidden for chunk in own),
        waiting=max(0.0, run.seconds - sum(busy.values()) - later),
        optimizer=optimizer,
        tokens=settings.global_batch * job.seq,
        devices=settings.devices,
        model_flops=settings.global_batch * job.seq * compute.model_flops(shape, job.seq),
        peak_flops=cluster.accelerator.peak_flops,
        schedule=schedule,
    )


def _optimizer(settings: Settings, cluster: Cluster, job: Job, weights: list[Count], rate: Efficiency) -> float:
    most = max(count.total for count in weights) / (settings.data if settings.zero else 1)
    each = (job.gradient_bytes, job.master_bytes, job.moment_bytes, job.weight_bytes)
    return compute.optimizer_time(most, cluster.accelerator, rate, each)


def _transfer(shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, order: Order) -> float:
    """Seconds from the end of a stage's work to the begin of the next one's."""
    if settings.pipeline == 1:
        return 0.0
    nbytes = settings.micro_batch * job.seq / settings.context * shape.hidden * job.activation_bytes
    if settings.sequence_parallel:
        nbytes /= settings.tensor
    return _worst("send", group_shapes(cluster, settings, "pipeline", order), nbytes)
