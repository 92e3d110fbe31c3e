"""What the gradients and the ZeRO shards of a stage cost, and how much of it hides behind computation.

ZeRO 2 and 3 keep two layers whole, as `memory` counts them: the one at work, and the one whose gradients are on their
way or whose weights come next. So each layer is a slot: its computation, and beside it on the same links the weights of
the next layer and the gradients of the one before, one after the other. The slot ends when both have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindspeed_ms.parallel.plan import overlap
from mindspeed_ms.parallel.plan.chunk_cost import Chunk, Pieces
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import group_shapes, slowest
from mindspeed_ms.parallel.plan.settings import Settings

Load = tuple[float, float, float]  # a stage and micro-batch: seconds, on the links of the data group: waited, hidden


@dataclass(frozen=True)
class DataCost:
    """Seconds of gradient and ZeRO communication of one stage that nothing hides, and of all of it in a step."""

    tail: float = 0.0  # after the last backward pass, and before the first forward pass
    ahead: tuple[float, float] = (0.0, 0.0)  # in each forward pass: of a chunk's first layer, of each further one
    back: tuple[float, float] = (0.0, 0.0)  # in each backward pass
    spent: float = 0.0

    def waits(self, layers: int) -> tuple[float, float]:
        """Seconds that the forward and the backward pass of a chunk of so many layers are longer."""
        more = layers - 1
        return self.ahead[0] + more * self.ahead[1], self.back[0] + more * self.back[1]


def data_of_stages(
    settings: Settings, pieces: Pieces, weights: Sequence[Count], chunks: Sequence[Chunk], layers: Sequence[int]
) -> list[DataCost]:
    """weights, layers: of each stage. Stages that are alike are worked out once."""
    stages = settings.pipeline
    if settings.data * settings.context == 1:
        return [DataCost()] * stages
    known = pieces.known
    found = []
    for stage in range(stages):
        own = chunks[stage::stages]
        # Chunks are kept by `pieces`: the same one is one object.
        key = (settings.zero, settings.micro_batches, weights[stage], layers[stage], *map(id, own))
        cost = known.get(key)
        if cost is None:
            ahead = tuple(sum(part) for part in zip(*(chunk.load for chunk in own), strict=True))
            back = tuple(sum(part) for part in zip(*(chunk.load_back for chunk in own), strict=True))
            cost = known[key] = _data(settings, pieces, weights[stage], ahead, back, layers[stage])
        found.append(cost)
    return found


def _data(
    settings: Settings,
    pieces: Pieces,
    weights: Count,
    ahead: tuple[float, ...],
    back: tuple[float, ...],
    layers: int,
) -> DataCost:
    cluster, job, order = pieces.cluster, pieces.job, pieces.order
    dense = group_shapes(cluster, settings, "data", order)
    expert = group_shapes(cluster, settings, "expert_data", order)
    if not dense and not expert:
        return DataCost()
    total, part = weights.total, weights.dense / weights.total

    def both(operation: str, nbytes: float) -> float:
        seconds = slowest(operation, dense, nbytes * part)
        return seconds + slowest(operation, expert, nbytes * (1 - part)) if weights.expert else seconds

    def reduce(nbytes: float) -> float:
        return both("reduce_scatter" if settings.zero else "all_reduce", nbytes)

    def gather(nbytes: float) -> float:
        return both("all_gather", nbytes)

    layers = max(layers, 1)
    gradients, values = total * job.gradient_bytes / layers, total * job.weight_bytes / layers
    forward, backward = _per_layer(ahead, layers), _per_layer(back, layers)
    if settings.zero == 3:
        return _weights(forward, backward, gather(values), reduce(gradients), settings.micro_batches * layers)
    tail = spent = 0.0
    if settings.zero:  # the new weights come before the next forward pass needs them
        tail, spent = _behind(layers, forward, values, gather)
    if settings.zero == 2:
        once = reduce(gradients)
        late, wait = _gradients(forward, backward, once, layers / settings.virtual)
        return DataCost(tail + late, back=(wait, wait), spent=spent + settings.micro_batches * layers * once)
    late, reduced = _behind(layers, backward, gradients, reduce)
    return DataCost(tail + late, spent=spent + reduced)


def _per_layer(load: tuple[float, ...], layers: int) -> Load:
    seconds, waited, hidden = load
    return seconds / layers, waited / layers, hidden / layers


def _behind(layers: int, layer: Load, nbytes: float, cost: Callable[[float], float]) -> tuple[float, float]:
    """Seconds that all layers are longer when each sends so many bytes behind its computation; of communication."""
    seconds, waited, hidden = layer
    free = max(seconds - hidden, 0.0)
    _, found = overlap.best_even_bucket(layers, free, nbytes, cost)
    return found.exposed + (found.hidden * waited / free if free else 0.0), found.communication


def _gradients(forward: Load, backward: Load, reduce: float, layers: float) -> tuple[float, float]:
    """Seconds after the last backward pass, and that each layer's backward pass waits, when its gradients are spread.

    A backward pass waits for the link from its third layer on, since two layers' gradients have room. The last two
    are reduced behind the forward pass that follows, unless the link has no time left at all.
    """
    seconds = backward[0]
    ahead, waited = layers * forward[0], layers * (forward[1] + forward[2] + backward[1] + backward[2])
    within = max(layers - 2, 0) * (overlap.slot(*backward, reduce) - seconds)
    behind = min(ahead, 2 * reduce) * forward[1] / forward[0] if forward[0] else 0.0
    wait = max(within + behind, layers * reduce + waited - ahead - layers * seconds)
    late = max(2 * reduce - seconds, reduce) if layers > 1 else reduce
    return max(0.0, late + within - wait), wait / layers


def _weights(forward: Load, backward: Load, gather: float, reduce: float, passes: float) -> DataCost:
    """ZeRO 3. gather, reduce: seconds of one layer's weights, before each pass through it, and of its gradients.

    The first layer of a forward pass has the gradients of the last of the backward pass before it beside it; the first
    gather of a step and the last reduction have nothing.
    """
    plain, full = overlap.slot(*forward, gather), overlap.slot(*forward, gather + reduce)
    first, others = overlap.slot(*backward, gather), overlap.slot(*backward, gather + reduce)
    # Before the first forward pass there are no gradients, and the last backward pass gathers nothing more.
    tail = gather + reduce - (full - plain) - (others - overlap.slot(*backward, reduce))
    waits = (full - forward[0], plain - forward[0]), (first - backward[0], others - backward[0])
    return DataCost(max(0.0, tail), *waits, passes * (2 * gather + reduce))
