"""How many bytes of a device's memory a job takes, at the moment when it takes most.

Nothing here is fitted to a measurement: each term is a count of numbers times their width, as the framework keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from mindspeed_ms.parallel.plan import activations, parameters
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings

# A share for what an allocator leaves unused between tensors: a round number, not a measured one.
MARGIN = 0.05
# Of a card of 65,536 MB a job finds 62,420 MB (`Device MOC memory size` of real runs on Atlas 800, chapter 5 of
# mindspore-courses/MindSpore-Compatible-Distributed-Training-Principles-and-Practices).
USABLE = 62420 / 65536


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at its fullest moment, by what they are for."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # kept for backward, over all micro-batches in flight
    logits: int = 0  # of the head and the loss, where they are at work when memory is fullest
    working: int = 0  # of the layer whose backward pass runs then: gradients, recomputed tensors, gathered weights
    buffers: int = 0  # of the communication library, outside the framework's own pool
    margin: int = 0  # what an allocator leaves between tensors

    @property
    def pool(self) -> int:
        """What the framework's memory pool reports as used, without what lies between tensors."""
        return self.total - self.buffers - self.margin

    @property
    def needed(self) -> int:
        """All but the margin: what cannot be done without."""
        return self.pool + self.buffers

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def usable(card: int) -> int:
    """Bytes that a job can have of a card's memory; the rest is the device's own."""
    return int(card * USABLE)


def peak(shape: ModelShape, settings: Settings, job: Job) -> Memory:
    """The memory of the stage that needs most."""
    return max(stages(shape, settings, job), key=lambda memory: memory.total)


def stages(shape: ModelShape, settings: Settings, job: Job) -> tuple[Memory, ...]:
    """The memory of each pipeline stage."""
    return tuple(stage_memory(shape, settings, job, stage) for stage in range(settings.pipeline))


def stage_memory(shape: ModelShape, settings: Settings, job: Job, stage: int) -> Memory:
    """The memory of one rank of a pipeline stage, numbered from 0. The settings must have passed `rules.validate`."""
    state = _state(shape, settings, job, stage)
    kept, working, logits = _activations(shape, settings, job, stage)
    working += _whole(shape, settings, job, stage)
    # The loss and the first backward layer do not need their room at the same time.
    logits, working = (logits, 0) if logits >= working else (0, working)
    pool = sum(state) + kept + logits + working
    return Memory(*state, kept, logits, working, buffers(settings, job), int(pool * MARGIN))


def buffers(settings: Settings, job: Job) -> int:
    """Two buffers for each group that a rank is in; the group of all ranks always exists."""
    degrees = (settings.tensor, settings.context, settings.expert, settings.data * settings.context, settings.pipeline)
    groups = sum(degree > 1 for degree in degrees) + 1
    return 2 * job.buffer_bytes * groups if settings.devices > 1 else 0


def _state(shape: ModelShape, settings: Settings, job: Job, stage: int) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer: ZeRO spreads the last, the last two or all over the data dimension."""
    count = parameters.stage_count(shape, settings, stage)
    shards = settings.data * settings.context
    expert_shards = max(1, shards // settings.expert)

    def spread(width: int, level: int) -> int:
        if settings.zero < level:
            return width * count.total
        return width * (-(-count.dense // shards) + -(-count.expert // expert_shards))

    return spread(job.weight_bytes, 3), spread(job.gradient_bytes, 2), spread(job.master_bytes + job.moment_bytes, 1)


def _activations(shape: ModelShape, settings: Settings, job: Job, stage: int) -> tuple[int, int, int]:
    """Bytes kept for backward, those of the layer at work, and those of the loss."""
    tokens = settings.micro_batch * job.seq // settings.context
    split = (settings.tensor, settings.sequence_parallel)
    chunks = settings.stage_chunks(shape.layers, stage)
    recomputed = _recomputed(settings, stage, chunks)
    alive = in_flight(settings, stage)
    kept = working = 0
    for (first, stop), again, flights in zip(chunks, recomputed, alive, strict=True):
        for (low, high), choice in (((first, first + again), settings.recompute), ((first + again, stop), "none")):
            kinds = parameters.layer_kinds(shape, low, high) if high > low else (0, 0)
            for number, experts in zip(kinds, (False, True), strict=True):
                if number:
                    layer = activations.layer_bytes(shape, experts, job, tokens, *split)
                    kept += flights * number * layer.kept(choice)
                    working = max(working, layer.working + layer.none - layer.kept(choice))
    logits = 0
    if stage == 0:
        kept += alive[0] * activations.embedding_bytes(shape, job, tokens, *split)
    if stage == settings.pipeline - 1:
        kept += alive[-1] * activations.head_bytes(shape, job, tokens, *split)
        logits = activations.logits_bytes(shape, job, tokens, settings.tensor)
    return kept, working, logits


def _recomputed(settings: Settings, stage: int, chunks: tuple[tuple[int, int], ...]) -> list[int]:
    """How many layers of each chunk of a stage are computed again, the first of each; spread evenly over chunks."""
    sizes = [stop - first for first, stop in chunks]
    if settings.recompute == "none":
        return [0] * len(sizes)
    if settings.recompute_layers is None:
        return sizes
    left = settings.recompute_layers[stage]
    result = []
    for index, size in enumerate(sizes):
        share = min(size, -(-left // (len(sizes) - index)))
        result.append(share)
        left -= share
    return result


def _whole(shape: ModelShape, settings: Settings, job: Job, stage: int) -> int:
    """What ZeRO has whole of what it spreads: two layers, that at work and the one that is sent meanwhile.

    ZeRO 2 their gradients, ZeRO 3 their weights too.
    """
    if settings.zero < 2:
        return 0
    chunks = settings.stage_chunks(shape.layers, stage)
    kinds = [sum(part) for part in zip(*(parameters.layer_kinds(shape, *chunk) for chunk in chunks), strict=True)]
    counts = (
        parameters.on_rank(parameters.layer_pieces(shape, experts), settings).total
        for experts, number in zip((False, True), kinds, strict=True)
        if number
    )
    width = job.gradient_bytes + (job.weight_bytes if settings.zero == 3 else 0)
    return min(2, sum(kinds)) * width * max(counts, default=0)


@lru_cache(maxsize=16384)
def _in_flight(schedule: str, pipeline: int, micro_batches: int, virtual: int, stage: int) -> tuple[int, ...]:
    if schedule == "gpipe":
        return (micro_batches,) * virtual
    if schedule == "zero_bubble":  # weight gradients wait until every stage holds what the first one does
        return (min(micro_batches, pipeline),) * virtual
    if schedule != "interleaved" or virtual == 1:
        return (min(micro_batches, pipeline - stage),) * virtual
    # Megatron's order: `pipeline` micro-batches through the first chunk, then through the second, and so on; before
    # its first backward pass a stage runs so many forward passes and one more.
    passes = min(2 * (pipeline - stage - 1) + (virtual - 1) * pipeline + 1, micro_batches * virtual)
    alive = [0] * virtual
    for number in range(passes):
        alive[number // pipeline % virtual] += 1
    return tuple(alive)


def in_flight(settings: Settings, stage: int) -> tuple[int, ...]:
    """For each chunk of a stage, how many micro-batches wait for their backward pass at most."""
    return _in_flight(settings.schedule, settings.pipeline, settings.micro_batches, settings.virtual, stage)
