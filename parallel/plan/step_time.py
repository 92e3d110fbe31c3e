"""How long one training step takes: computation, communication that nothing hides, bubbles and the optimizer.

Tensor, expert and context communication lies inside a micro-batch and counts in full (context: what attention does not
hide). Stages then run by their schedule; the gradients of the last micro-batch are reduced behind its backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_ms.parallel.plan import compute, parameters, pipeline_schedule
from mindspeed_ms.parallel.plan.chunk_cost import Chunk, Pieces
from mindspeed_ms.parallel.plan.data_cost import DataCost, data_of_stages
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import Order
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster


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


@dataclass(frozen=True)
class Work:
    """What each chunk and stage has to do, before anything is put in its order."""

    chunks: list[Chunk]
    data: list[DataCost]
    waits: list[tuple[float, float]]  # of each chunk and micro-batch for ZeRO, forward and backward
    forward: tuple[float, ...]  # seconds of each chunk, with what it waits for
    backward: tuple[float, ...]
    transfer: float
    optimizer: float

    def bound(self, settings: Settings) -> float:
        """Seconds that no step is shorter than."""
        tails = [piece.tail for piece in self.data]
        return pipeline_bound(settings, self.forward, self.backward, self.transfer, tails) + self.optimizer


def pipeline_bound(
    settings: Settings,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float,
    tails: Sequence[float] = (),
) -> float:
    """Seconds that a pipeline takes at least, by the work of each stage and of those before it.

    A stage begins when the first micro-batch has come through all stages before it, works on every micro-batch, and the
    last one then goes back through them. Zero bubble may leave weight gradients for that time.
    """
    stages, count = settings.pipeline, settings.micro_batches
    zero_bubble = settings.schedule == "zero_bubble"
    longest = before = after = 0.0
    for stage in range(stages):
        work = sum(forward[stage::stages]) + sum(backward[stage::stages])
        longest = max(longest, before + count * work + max(after, tails[stage] if tails else 0.0))
        before += forward[stage] + transfer
        after += 0.0 if zero_bubble else backward[stage] + transfer
    return longest


def work_of(settings: Settings, pieces: Pieces) -> Work:
    """The work of settings; pieces: of these degrees and this micro-batch."""
    shape, stages, virtual = pieces.shape, settings.pipeline, settings.virtual
    kinds = [parameters.layer_kinds(shape, first, stop) for first, stop in settings.chunks(shape.layers)]
    chunks = pieces.chunks(settings, kinds)
    if virtual == 1:
        stage_kinds = kinds
    else:
        stage_kinds = [
            (sum(a for a, _ in kinds[at::stages]), sum(b for _, b in kinds[at::stages])) for at in range(stages)
        ]
    weights = [pieces.count(own, at == 0, at == stages - 1) for at, own in enumerate(stage_kinds)]
    layers = [plain + experts for plain, experts in stage_kinds]
    data = data_of_stages(settings, pieces, weights, chunks, layers)
    optimizer = _optimizer(settings, pieces.cluster, pieces.job, weights, pieces.rate)
    if settings.zero >= 2:
        waits = [data[at % stages].waits(plain + experts) for at, (plain, experts) in enumerate(kinds)]
        forward = tuple(chunk.ahead + ahead for chunk, (ahead, _) in zip(chunks, waits, strict=True))
        backward = tuple(chunk.back + back for chunk, (_, back) in zip(chunks, waits, strict=True))
    else:
        waits = [(0.0, 0.0)] * len(chunks)
        forward, backward = tuple(chunk.ahead for chunk in chunks), tuple(chunk.back for chunk in chunks)
    return Work(chunks, data, waits, forward, backward, pieces.transfer, optimizer)


def chunk_seconds(settings: Settings, pieces: Pieces) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds forward and backward of each chunk for one micro-batch, with recompute and the communication inside."""
    kinds = [parameters.layer_kinds(pieces.shape, first, stop) for first, stop in settings.chunks(pieces.shape.layers)]
    chunks = pieces.chunks(settings, kinds)
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
    pieces = Pieces(shape, settings, cluster, job, rate or efficiency_of(cluster.accelerator.name), order)
    return played(settings, pieces, work_of(settings, pieces))


def seconds_of(settings: Settings, work: Work) -> float:
    """Seconds of a step alone, as `played` gives them."""
    run = pipeline_schedule.span(*_schedule(settings, work))
    return max(end + piece.tail for end, piece in zip(run.ends, work.data, strict=True)) + work.optimizer


def played(settings: Settings, pieces: Pieces, work: Work) -> StepTime:
    """The step that some work makes, and its parts."""
    shape, cluster, job = pieces.shape, pieces.cluster, pieces.job
    stages, count, forward, backward = settings.pipeline, settings.micro_batches, work.forward, work.backward
    schedule = _schedule(settings, work)
    run = pipeline_schedule.span(*schedule)
    last = max(end + piece.tail for end, piece in zip(run.ends, work.data, strict=True))
    busiest = max(range(stages), key=lambda stage: sum(forward[stage::stages]) + sum(backward[stage::stages]))
    own = work.chunks[busiest::stages]
    busy = {name: count * sum(getattr(chunk, name) for chunk in own) for name in _BUSY}
    later = count * sum(map(sum, work.waits[busiest::stages]))
    exposed = later + last - run.seconds
    return StepTime(
        total=last + work.optimizer,
        **busy,
        data=exposed,
        hidden=max(0.0, work.data[busiest].spent - exposed) + count * sum(chunk.hidden for chunk in own),
        waiting=max(0.0, run.seconds - sum(busy.values()) - later),
        optimizer=work.optimizer,
        tokens=settings.global_batch * job.seq,
        devices=settings.devices,
        model_flops=settings.global_batch * job.seq * compute.model_flops(shape, job.seq),
        peak_flops=cluster.accelerator.peak_flops,
        schedule=schedule,
    )


def _schedule(settings: Settings, work: Work) -> tuple:
    return (
        settings.schedule,
        settings.pipeline,
        settings.micro_batches,
        work.forward,
        work.backward,
        work.transfer,
    )


def _optimizer(settings: Settings, cluster: Cluster, job: Job, weights: list[Count], rate: Efficiency) -> float:
    shards = settings.data * settings.context if settings.zero else 1
    expert_shards = max(1, shards // settings.expert)
    most = max(count.dense / shards + count.expert / expert_shards for count in weights)
    each = (job.gradient_bytes, job.master_bytes, job.moment_bytes, job.weight_bytes)
    return compute.optimizer_time(most, cluster.accelerator, rate, each)
