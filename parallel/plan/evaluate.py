"""What settings cost on one cluster: a bound in microseconds, bytes of each stage, and the whole model of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mindspeed_ms.parallel.plan import memory, rules
from mindspeed_ms.parallel.plan.candidates import even
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.memory import Memory
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import StepTime, chunk_seconds, step_time
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.groups import Arrangement, arrange


@dataclass(frozen=True)
class Evaluator:
    """The models of time and memory for one job on one cluster.

    memory_limit: bytes of a device that a job may use; None: what the accelerator leaves to a job.
    rate: shares of the peak; None: those of the accelerator.
    """

    shape: ModelShape
    cluster: Cluster
    job: Job
    memory_limit: int | None = None
    rate: Efficiency | None = None

    @cached_property
    def _arranged(self) -> dict[tuple[int, ...], Arrangement]:
        return {}

    @cached_property
    def _works(self) -> dict[tuple[tuple[int, ...], int, bool], float]:
        return {}

    @property
    def limit(self) -> int:
        """Bytes of a device that a job may use."""
        return memory.usable(self.cluster.accelerator.memory) if self.memory_limit is None else self.memory_limit

    def problem(self, settings: Settings, devices: int) -> str:
        """Why settings cannot be run; empty: they can."""
        return next(iter(rules.problems(self.shape, settings, devices, self.job)), "")

    def stage_bytes(self, settings: Settings, stage: int) -> int:
        """Bytes on one device of a stage."""
        return memory.stage_memory(self.shape, settings, self.job, stage).total

    def memory(self, settings: Settings) -> tuple[Memory, ...]:
        """Bytes of each stage, by what they are for."""
        return memory.stages(self.shape, settings, self.job)

    def fits(self, settings: Settings) -> bool:
        """Whether every stage fits its device."""
        return all(self.stage_bytes(settings, stage) <= self.limit for stage in range(settings.pipeline))

    def arrangement(self, settings: Settings) -> Arrangement:
        """Where the ranks sit on the cluster, and their groups."""
        key = (settings.data, settings.tensor, settings.pipeline, settings.context, settings.expert)
        if key not in self._arranged:
            self._arranged[key] = arrange(self.cluster, settings)
        return self._arranged[key]

    def order(self, settings: Settings) -> tuple[int, ...] | None:
        """The slot of each rank; None: rank and slot are the same, which the model of time is quicker with."""
        if self._plain and self._whole(settings):
            return None
        arranged = self.arrangement(settings)
        return None if arranged.order == tuple(range(len(arranged.order))) else arranged.order

    @cached_property
    def _plain(self) -> bool:
        """Equal servers without pods, each with one kind of link: no order is better than the natural one."""
        first = self.cluster.servers[0]
        words = {word for at, row in enumerate(first.kinds) for other, word in enumerate(row) if at != other}
        return (
            len(words) <= 1 and not self.cluster.pods and all(one.kinds == first.kinds for one in self.cluster.servers)
        )

    def _whole(self, settings: Settings) -> bool:
        """Whether each dimension, with those inside it, is a whole share of a server or whole servers."""
        size, product = len(self.cluster.servers[0].devices), 1
        for degree in (settings.tensor, settings.context, settings.data):
            product *= degree
            if size % product and product % size:
                return False
        return settings.expert == 1 or size % settings.expert == 0 or settings.expert % size == 0

    def time(self, settings: Settings) -> StepTime:
        """Seconds of a step and its parts."""
        order = self.order(settings)
        return step_time(self.shape, settings, self.cluster, self.job, order=order, rate=self.rate)

    def chunks(self, settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds forward and backward of each chunk for one micro-batch."""
        order = self.order(settings)
        return chunk_seconds(self.shape, settings, self.cluster, self.job, order=order, rate=self.rate)

    def bound(self, settings: Settings) -> float:
        """Seconds that no step is shorter than: what `time` gives is never less, and takes far longer to find."""
        return bound(settings, *self.chunks(settings))

    def coarse(self, settings: Settings) -> float:
        """As `bound`, of every way to split the layers: with the work spread as well as it can be."""
        stages, count = settings.pipeline, settings.micro_batches
        whole = self._work(settings)
        if settings.schedule in ("1f1b", "gpipe"):
            # The longest stage is shortest where each is shorter than the one before by a share 1 / micro-batches.
            return whole / (1 - (1 - 1 / count) ** stages)
        return whole * count / stages

    def _work(self, settings: Settings) -> float:
        """Seconds of one micro-batch on all stages together."""
        degrees = (settings.data, settings.tensor, settings.pipeline, settings.context, settings.expert)
        key = (degrees, settings.micro_batch, settings.sequence_parallel)
        if key not in self._works:
            probe = replace(settings, schedule="1f1b", virtual=1, layers=even(self.shape.layers, settings.pipeline))
            self._works[key] = sum(map(sum, self.chunks(probe)))
        return self._works[key]

    def varied(
        self, *, cluster: Cluster | None = None, memory_limit: int | None = None, efficiency: float = 1.0
    ) -> Evaluator:
        """The same job where something is otherwise; `efficiency` multiplies the shares of the peak."""
        rate = self.rate or efficiency_of(self.cluster.accelerator.name)
        rate = replace(rate, matmul=rate.matmul * efficiency, attention=rate.attention * efficiency)
        limit = self.memory_limit if memory_limit is None else memory_limit
        return Evaluator(self.shape, cluster or self.cluster, self.job, limit, rate)


def bound(settings: Settings, forward: Sequence[float], backward: Sequence[float]) -> float:
    """Seconds that the pipeline takes at least, by the work of each stage and of those before it.

    A stage begins when the first micro-batch has come through all stages before it, works on every micro-batch, and
    the last one then goes back through them. A zero-bubble schedule may leave weight gradients for that time.
    """
    stages, count = settings.pipeline, settings.micro_batches
    zero_bubble = settings.schedule == "zero_bubble"
    longest = before = 0.0
    for stage in range(stages):
        work = sum(forward[stage::stages]) + sum(backward[stage::stages])
        longest = max(longest, before + count * work)
        before += forward[stage] + (0.0 if zero_bubble else backward[stage])
    return longest
