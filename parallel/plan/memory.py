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
    return StageMemory(shape, settings, job, stage).memory(settings)


class StageMemory:
    """One rank of a stage, whatever its ZeRO stage and recomputation are: the parts of which those choose."""

    def __init__(self, shape: ModelShape, settings: Settings, job: Job, stage: int) -> None:
        self._job, self._stage = job, stage
        self._chunks = settings.stage_chunks(shape.layers, stage)
        self._sizes = [stop - first for first, stop in self._chunks]
        self._kinds = [parameters.layer_kinds(shape, first, stop) for first, stop in self._chunks]
        self._shape = shape
        self._alive = in_flight(settings, stage)
        plain, experts = (sum(part) for part in zip(*self._kinds, strict=True))
        last = settings.pipeline - 1
        self._count = parameters.count_of(shape, settings, (plain, experts), stage == 0, stage == last)
        self._shards = settings.data * settings.context
        self._expert_shards = max(1, self._shards // settings.expert)
        tokens = settings.micro_batch * job.seq // settings.context
        split = (settings.tensor, settings.sequence_parallel)
        held = [(False, plain), (True, experts)]
        self._layer = {
            kind: activations.layer_bytes(shape, kind, job, tokens, *split) for kind, number in held if number
        }
        self._one = max(
            (parameters.count_of(shape, settings, (not kind, kind), False, False).total for kind in self._layer),
            default=0,
        )
        self._two = min(2, plain + experts)
        self._ends = self._logits = 0
        if stage == 0:
            self._ends += self._alive[0] * activations.embedding_bytes(shape, job, tokens, *split)
        if stage == last:
            self._ends += self._alive[-1] * activations.head_bytes(shape, job, tokens, *split)
            self._logits = activations.logits_bytes(shape, job, tokens, settings.tensor)
        self._buffers = buffers(settings, job)
        self._known: dict[tuple[str, int | None], tuple[int, int]] = {}

    def memory(self, settings: Settings) -> Memory:
        """Bytes by what they are for, with the ZeRO stage and the recomputation of settings that are else alike."""
        state = self._state(settings.zero)
        kept, working = self._activations(settings)
        logits, working = self._most(settings.zero, working)
        pool = sum(state) + kept + logits + working
        return Memory(*state, kept, logits, working, self._buffers, int(pool * MARGIN))

    def total(self, settings: Settings) -> int:
        """The sum of `memory`."""
        kept, working = self._activations(settings)
        pool = sum(self._state(settings.zero)) + kept + sum(self._most(settings.zero, working))
        return pool + self._buffers + int(pool * MARGIN)

    def _state(self, zero: int) -> tuple[int, int, int]:
        """Bytes of weights, gradients and optimizer: ZeRO spreads the last, the last two or all over data."""
        job, count = self._job, self._count
        whole = count.total
        share = -(-count.dense // self._shards) + -(-count.expert // self._expert_shards)
        return (
            job.weight_bytes * (share if zero >= 3 else whole),
            job.gradient_bytes * (share if zero >= 2 else whole),
            (job.master_bytes + job.moment_bytes) * (share if zero >= 1 else whole),
        )

    def _most(self, zero: int, working: int) -> tuple[int, int]:
        """Bytes of the loss or of the layer at work: they do not need their room at the same time.

        ZeRO has whole two layers of what it spreads, that at work and the one that is sent meanwhile: ZeRO 2 their
        gradients, ZeRO 3 their weights too.
        """
        width = {2: self._job.gradient_bytes, 3: self._job.gradient_bytes + self._job.weight_bytes}.get(zero, 0)
        working += self._two * width * self._one
        return (self._logits, 0) if self._logits >= working else (0, working)

    def _activations(self, settings: Settings) -> tuple[int, int]:
        """Bytes kept for backward, and those of the layer at work."""
        counts = settings.recompute_layers
        key = (settings.recompute, None if counts is None else counts[self._stage])
        if key not in self._known:
            self._known[key] = self._count_activations(*key)
        return self._known[key]

    def _count_activations(self, recompute: str, again: int | None) -> tuple[int, int]:
        kept, working = self._ends, 0
        repeated = _recomputed(recompute, again, self._sizes)
        for (first, _), kinds, part, flights in zip(self._chunks, self._kinds, repeated, self._alive, strict=True):
            early = parameters.layer_kinds(self._shape, first, first + part) if part else (0, 0)
            for experts in (False, True):
                for number, choice in ((early[experts], recompute), (kinds[experts] - early[experts], "none")):
                    if number:
                        layer = self._layer[experts]
                        kept += flights * number * layer.kept(choice)
                        working = max(working, layer.working + layer.none - layer.kept(choice))
        return kept, working


def buffers(settings: Settings, job: Job) -> int:
    """Two buffers for each group that a rank is in; the group of all ranks always exists."""
    degrees = (settings.tensor, settings.context, settings.expert, settings.data * settings.context, settings.pipeline)
    groups = sum(degree > 1 for degree in degrees) + 1
    return 2 * job.buffer_bytes * groups if settings.devices > 1 else 0


def _recomputed(recompute: str, again: int | None, sizes: list[int]) -> list[int]:
    """How many layers of each chunk of a stage are computed again, the first of each; spread evenly over chunks."""
    if recompute == "none":
        return [0] * len(sizes)
    if again is None:
        return sizes
    result = []
    for index, size in enumerate(sizes):
        share = min(size, -(-again // (len(sizes) - index)))
        result.append(share)
        again -= share
    return result


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
