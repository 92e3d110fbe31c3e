"""What the gradients and the ZeRO shards of a stage cost, and how much of it hides behind computation."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_ms.parallel.plan import overlap
from mindspeed_ms.parallel.plan.chunk_cost import Chunk
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import Order, group_shapes, slowest
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster


@dataclass(frozen=True)
class DataCost:
    """Seconds of gradient and ZeRO communication of one stage."""

    tail: float  # after the last backward pass, and before the first forward pass
    each: float  # of every micro-batch, where its computation is too short to hide it
    hidden: float


def data_of_stages(
    settings: Settings,
    cluster: Cluster,
    job: Job,
    weights: list[Count],
    chunks: list[Chunk],
    held: tuple[tuple[int, int], ...],
    order: Order,
) -> list[DataCost]:
    """Stages in the middle are alike: what differs is worked out once."""
    stages = settings.pipeline
    known: dict[tuple, DataCost] = {}
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
) -> DataCost:
    """chunk: seconds forward and backward of one micro-batch on this stage, and its layers."""
    ahead, back, layers = chunk
    dense = group_shapes(cluster, settings, "data", order)
    expert = group_shapes(cluster, settings, "expert_data", order)
    if not dense and not expert:
        return DataCost(0.0, 0.0, 0.0)
    total = weights.total
    part = weights.dense / total

    def both(operation: str, nbytes: float) -> float:
        seconds = slowest(operation, dense, nbytes * part)
        return seconds + slowest(operation, expert, nbytes * (1 - part)) if weights.expert else seconds

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
            # What the first and the last micro-batch wait for is in `each` already.
            tail = max(0.0, tail - each)
    return DataCost(tail, each, max(0.0, spent - tail - each * (settings.micro_batches - 1)))
