"""What every split of the layers takes at least, in seconds and in bytes: so that most settings are never looked at."""

from __future__ import annotations

from dataclasses import replace

from mindspeed_ms.parallel.plan import activations, compute, memory, parameters
from mindspeed_ms.parallel.plan.chunk_cost import Pieces
from mindspeed_ms.parallel.plan.compute import Split
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import group_shapes, slowest
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Accelerator


class Bare:
    """Least seconds and bytes of given degrees and micro-batch without communication: wherever the ranks sit."""

    def __init__(
        self, shape: ModelShape, settings: Settings, job: Job, accelerator: Accelerator, rate: Efficiency
    ) -> None:
        self._settings, self._job = settings, job
        self.kinds = parameters.layer_kinds(shape, 0, shape.layers)
        self.count = parameters.count_of(shape, settings, self.kinds, True, True)  # of all stages
        split = Split(settings.tensor, settings.context, settings.expert, settings.sequence_parallel)
        args = (shape, job.seq, settings.micro_batch)
        # Seconds of one micro-batch on all stages together
        self.whole = compute.embedding_time(*args, split, accelerator, rate).both
        self.whole += compute.head_time(*args, split, accelerator, rate).both
        tokens = settings.micro_batch * job.seq // settings.context
        self._kept = 0
        for number, experts in zip(self.kinds, (False, True), strict=True):
            if number:
                layer = compute.layer_time(*args, experts, split, accelerator, rate, job.flash_attention)
                self.whole += number * layer.both
                saved = activations.layer_bytes(
                    shape, experts, job, tokens, settings.tensor, settings.sequence_parallel
                )
                self._kept += number * saved.full
        self.bytes = [self._least(zero) for zero in range(4)]  # by ZeRO stage, on the fullest device

    def _least(self, zero: int) -> float:
        """Bytes of the fullest device: it has no less than the mean, with every layer computed again."""
        job, settings, count = self._job, self._settings, self.count
        shards = settings.data * settings.context
        share = count.dense / shards + count.expert / max(1, shards // settings.expert)
        state = (
            job.weight_bytes * (share if zero >= 3 else count.total)
            + job.gradient_bytes * (share if zero >= 2 else count.total)
            + (job.master_bytes + job.moment_bytes) * (share if zero >= 1 else count.total)
        )
        pool = (state + self._kept) / settings.pipeline
        return pool * (1 + memory.MARGIN) - settings.pipeline + memory.buffers(settings, job)


def spread(settings: Settings, whole: float) -> float:
    """Seconds of a step at least, when one micro-batch takes so many on all stages together."""
    stages, count = settings.pipeline, settings.micro_batches
    if settings.schedule in ("1f1b", "gpipe"):
        # The longest stage is shortest where each is shorter than the one before by a share 1 / micro-batches.
        return whole / (1 - (1 - 1 / count) ** stages)
    return whole * count / stages


class Floor:
    """Least seconds of given degrees, micro-batch and sequence parallelism, for each ZeRO stage."""

    def __init__(self, settings: Settings, bare: Bare, pieces: Pieces) -> None:
        probe = replace(settings, pipeline=1, schedule="1f1b", virtual=1, layers=(), recompute="none")
        (chunk,) = pieces.chunks(probe, [bare.kinds])
        self._ahead, self._back = chunk.ahead, chunk.back
        self._gather, self._reduce = _traffic(settings, bare, pieces)
        # By ZeRO stage: of one micro-batch on all stages together, with what ZeRO sends spread as well as it can be
        self.wholes = [self._whole(zero) for zero in range(4)]

    def _whole(self, zero: int) -> float:
        """Seconds of one micro-batch on all stages together."""
        ahead, back, gather, reduce = self._ahead, self._back, self._gather, self._reduce
        if zero < 2:
            return ahead + back
        if zero == 2:
            return max(ahead + back, reduce)
        # Each layer is a slot as long as its computation and as what is sent beside it.
        return max(max(ahead, gather) + max(back, gather), 2 * gather + reduce)


def _traffic(settings: Settings, bare: Bare, pieces: Pieces) -> tuple[float, float]:
    """Seconds on the links of the weights and of the gradients of all layers, once.

    No message is larger than that of the heaviest layer with embedding and head beside it, and the larger a message the
    fewer seconds a byte takes.
    """
    job = pieces.job
    heaviest = [pieces.count((not kind, kind), True, True) for kind in (False, True) if bare.kinds[kind]]
    most = Count(max(count.dense for count in heaviest), max(count.expert for count in heaviest))
    every = (("data", bare.count.dense, most.dense), ("expert_data", bare.count.expert, most.expert))

    def seconds(operation: str, width: int) -> float:
        found = 0.0
        for dimension, numbers, largest in every:
            groups = group_shapes(pieces.cluster, settings, dimension, pieces.order)
            if largest:
                found += numbers / largest * slowest(operation, groups, largest * width)
        return found

    return seconds("all_gather", job.weight_bytes), seconds("reduce_scatter", job.gradient_bytes)
