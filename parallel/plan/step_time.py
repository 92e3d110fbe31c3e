"""How long one training step takes: computation, communication that nothing hides, bubbles and the optimizer.

Tensor, expert and context communication lies inside a micro-batch and counts in full (context: what attention does not
hide). Stages then run by their schedule; the gradients of the last micro-batch are reduced behind its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_ms.parallel.plan import compute, parameters, pipeline_schedule
from mindspeed_ms.parallel.plan.chunk_cost import chunks_of
from mindspeed_ms.parallel.plan.data_cost import data_of_stages
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import Order, group_shapes, slowest
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
    chunks = chunks_of(shape, settings, cluster, job, rate, order, settings.chunks(shape.layers))
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
    chunks = chunks_of(shape, settings, cluster, job, rate, order, held)
    weights = [parameters.stage_count(shape, settings, stage) for stage in range(stages)]
    data = data_of_stages(settings, cluster, job, weights, chunks, held, order)
    waits = [data[i % stages].waits(stop - first) for i, (first, stop) in enumerate(held)]
    forward = tuple(chunk.ahead + ahead for chunk, (ahead, _) in zip(chunks, waits, strict=True))
    backward = tuple(chunk.back + back for chunk, (_, back) in zip(chunks, waits, strict=True))
    schedule = (settings.schedule, stages, count, forward, backward, _transfer(shape, settings, cluster, job, order))
    run = pipeline_schedule.span(*schedule)
    last = max(end + piece.tail for end, piece in zip(run.ends, data, strict=True))
    optimizer = _optimizer(settings, cluster, job, weights, rate)
    busiest = max(range(stages), key=lambda stage: sum(forward[stage::stages]) + sum(backward[stage::stages]))
    own = chunks[busiest::stages]
    busy = {name: count * sum(getattr(chunk, name) for chunk in own) for name in _BUSY}
    later = count * sum(map(sum, waits[busiest::stages]))
    exposed = later + last - run.seconds
    return StepTime(
        total=last + optimizer,
        **busy,
        data=exposed,
        hidden=max(0.0, data[busiest].spent - exposed) + count * sum(chunk.hidden for chunk in own),
        waiting=max(0.0, run.seconds - sum(busy.values()) - later),
        optimizer=optimizer,
        tokens=settings.global_batch * job.seq,
        devices=settings.devices,
        model_flops=settings.global_batch * job.seq * compute.model_flops(shape, job.seq),
        peak_flops=cluster.accelerator.peak_flops,
        schedule=schedule,
    )


def _optimizer(settings: Settings, cluster: Cluster, job: Job, weights: list[Count], rate: Efficiency) -> float:
    shards = settings.data * settings.context if settings.zero else 1
    expert_shards = max(1, shards // settings.expert)
    most = max(count.dense / shards + count.expert / expert_shards for count in weights)
    each = (job.gradient_bytes, job.master_bytes, job.moment_bytes, job.weight_bytes)
    return compute.optimizer_time(most, cluster.accelerator, rate, each)


def _transfer(shape: ModelShape, settings: Settings, cluster: Cluster, job: Job, order: Order) -> float:
    """Seconds from the end of a stage's work to the begin of the next one's."""
    if settings.pipeline == 1:
        return 0.0
    nbytes = settings.micro_batch * job.seq / settings.context * shape.hidden * job.activation_bytes
    if settings.sequence_parallel:
        nbytes /= settings.tensor
    return slowest("send", group_shapes(cluster, settings, "pipeline", order), nbytes)
