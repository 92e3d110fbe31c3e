"""What every split of the layers takes at least, in seconds and in bytes: so that most settings are never looked at."""

from __future__ import annotations

from dataclasses import replace

from mindspeed_ms.parallel.plan import activations, memory, parameters
from mindspeed_ms.parallel.plan.chunk_cost import Pieces
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.parameters import Count
from mindspeed_ms.parallel.plan.rank_groups import group_shapes, slowest
from mindspeed_ms.parallel.plan.settings import Job, Settings


class Floor:
    """Least seconds and bytes of given degrees, micro-batch and sequence parallelism, for each ZeRO stage."""

    def __init__(self, shape: ModelShape, settings: Settings, job: Job, pieces: Pieces) -> None:
        self._settings, self._job = settings, job
        self._kinds = parameters.layer_kinds(shape, 0, shape.layers)
        probe = replace(settings, pipeline=1, schedule="1f1b", virtual=1, layers=(), recompute="none")
        (chunk,) = pieces.chunks(probe, [self._kinds])
        self._ahead, self._back = chunk.ahead, chunk.back
        self._count = pieces.count(self._kinds, True, True)  # of all stages
        self._gather, self._reduce = self._traffic(shape, pieces)
        tokens = settings.micro_batch * job.seq // settings.context
        split = (settings.tensor, settings.sequence_parallel)
        self._kept = sum(
            number * activations.layer_bytes(shape, experts, job, tokens, *split).full
            for number, experts in zip(self._kinds, (False, True), strict=True)
            if number
        )
        self._wholes = [self._whole(zero) for zero in range(4)]
        self.bytes = [self._least(zero) for zero in range(4)]  # by ZeRO stage, on the fullest device

    def seconds(self, settings: Settings, zero: int) -> float:
        """Of a step, with the work and what ZeRO sends spread over the stages as well as it can be."""
        stages, count, whole = settings.pipeline, settings.micro_batches, self._wholes[zero]
        if settings.schedule in ("1f1b", "gpipe"):
            # The longest stage is shortest where each is shorter than the one before by a share 1 / micro-batches.
            return whole / (1 - (1 - 1 / count) ** stages)
        return whole * count / stages

    def _whole(self, zero: int) -> float:
        """Seconds of one micro-batch on all stages together."""
        ahead, back, gather, reduce = self._ahead, self._back, self._gather, self._reduce
        if zero < 2:
            return ahead + back
        if zero == 2:
            return max(ahead + back, reduce)
        # Each layer is a slot as long as its computation and as what is sent beside it.
        return max(max(ahead, gather) + max(back, gather), 2 * gather + reduce)

    def _least(self, zero: int) -> float:
        """Bytes of the fullest device: it has no less than the mean, with every layer computed again."""
        job, settings, count = self._job, self._settings, self._count
        shards = settings.data * settings.context
        share = count.dense / shards + count.expert / max(1, shards // settings.expert)
        state = (
            job.weight_bytes * (share if zero >= 3 else count.total)
            + job.gradient_bytes * (share if zero >= 2 else count.total)
            + (job.master_bytes + job.moment_bytes) * (share if zero >= 1 else count.total)
        )
        pool = (state + self._kept) / settings.pipeline
        return pool * (1 + memory.MARGIN) - settings.pipeline + memory.buffers(settings, job)

    def _traffic(self, shape: ModelShape, pieces: Pieces) -> tuple[float, float]:
        """Seconds on the links of the weights and of the gradients of all layers, once.

        No message is larger than that of the heaviest layer with embedding and head beside it, and the larger a
        message the fewer seconds a byte takes.
        """
        heaviest = [pieces.count((not kind, kind), True, True) for kind in (False, True) if self._kinds[kind]]
        most = Count(max(count.dense for count in heaviest), max(count.expert for count in heaviest))
        every = (("data", self._count.dense, most.dense), ("expert_data", self._count.expert, most.expert))

        def seconds(operation: str, width: int) -> float:
            found = 0.0
            for dimension, numbers, largest in every:
                groups = group_shapes(pieces.cluster, self._settings, dimension, pieces.order)
                if largest:
                    found += numbers / largest * slowest(operation, groups, largest * width)
            return found

        return seconds("all_gather", self._job.weight_bytes), seconds("reduce_scatter", self._job.gradient_bytes)
