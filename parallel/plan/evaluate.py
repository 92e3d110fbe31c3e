"""What settings cost on one cluster: a bound in microseconds, bytes of each stage, and the whole model of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from mindspeed_ms.parallel.plan import memory, rules
from mindspeed_ms.parallel.plan.chunk_cost import Pieces
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.floor import Bare, Floor, spread
from mindspeed_ms.parallel.plan.memory import Memory, StageMemory
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import StepTime, Work, chunk_seconds, pipeline_bound, played, work_of
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.groups import Arrangement, arrange

_KEPT = 4096  # stages whose memory is kept ready


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
    def _pieces(self) -> dict[tuple[int, ...], Pieces]:
        return {}

    @cached_property
    def _floors(self) -> dict[tuple[int, ...], Floor]:
        return {}

    @cached_property
    def _bares(self) -> dict[tuple[int, ...], Bare]:
        return {}

    @cached_property
    def _last(self) -> list[tuple[Settings, Work]]:
        return []

    @cached_property
    def _wins(self) -> dict[tuple[int, ...], bool]:
        return {}

    @cached_property
    def _stages(self) -> dict[tuple[object, ...], StageMemory]:
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
        one = settings
        key = (*_degrees(one), one.micro_batches, one.schedule, one.virtual, one.layers, stage)
        found = self._stages.get(key)
        if found is None:
            if len(self._stages) >= _KEPT:  # what is asked next is of the same group: older ones are of no use
                self._stages.clear()
            found = self._stages[key] = StageMemory(self.shape, settings, self.job, stage)
        return found.total(settings)

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

    def pieces(self, settings: Settings) -> Pieces:
        """What layers cost with these degrees and this micro-batch."""
        key = _degrees(settings)
        found = self._pieces.get(key)
        if found is None:
            rate = self.rate or efficiency_of(self.cluster.accelerator.name)
            order = self.order(settings)
            found = self._pieces[key] = Pieces(self.shape, settings, self.cluster, self.job, rate, order)
        return found

    def sequence_parallel_wins(self, base: Settings) -> bool:
        """Whether no step is longer with norms split along the sequence; base: without."""
        key = _degrees(base)
        found = self._wins.get(key)
        if found is None:
            split = self.pieces(replace(base, sequence_parallel=True))
            found = self._wins[key] = split.never_slower(self.pieces(base))
        return found

    def time(self, settings: Settings) -> StepTime:
        """Seconds of a step and its parts."""
        pieces = self.pieces(settings)
        return played(settings, pieces, work_of(settings, pieces))

    def work(self, settings: Settings) -> Work:
        """What each chunk and stage has to do."""
        if self._last and self._last[0][0] == settings:  # one after the other asks for the same
            return self._last[0][1]
        found = work_of(settings, self.pieces(settings))
        self._last[:] = [(settings, found)]
        return found

    def chunks(self, settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds forward and backward of each chunk for one micro-batch."""
        return chunk_seconds(settings, self.pieces(settings))

    def bound(self, settings: Settings) -> float:
        """Seconds that no step is shorter than: what `time` gives is never less, and takes longer to find."""
        return self.work(settings).bound(settings)

    def quick(self, settings: Settings) -> float:
        """As `bound`, but for what ZeRO and gradients add: lower, and far quicker to find."""
        return pipeline_bound(settings, *self.chunks(settings), self.pieces(settings).transfer)

    def coarse(self, settings: Settings, zeros: Sequence[int] = (0, 1, 2, 3)) -> float:
        """As `bound`, of every way to split the layers and each of these ZeRO stages, as far as it may fit.

        Infinite where none of them can.
        """
        return spread(settings, self.least(settings, zeros))

    def least(self, settings: Settings, zeros: Sequence[int] = (0, 1, 2, 3)) -> float:
        """Seconds of one micro-batch on all stages together, with what ZeRO sends; infinite where nothing can fit."""
        bare = self._bare(settings)
        fitting = [zero for zero in zeros if bare.bytes[zero] <= self.limit]
        if not fitting:
            return inf
        key = _degrees(settings)
        floor = self._floors.get(key)
        if floor is None:
            floor = self._floors[key] = Floor(settings, bare, self.pieces(settings))
        return min(floor.wholes[zero] for zero in fitting)

    def bare(self, settings: Settings, zeros: Sequence[int] = (0, 1, 2, 3)) -> float:
        """Seconds of computation of one micro-batch on all stages together; infinite where no ZeRO stage can fit."""
        bare = self._bare(settings)
        return bare.whole if any(bare.bytes[zero] <= self.limit for zero in zeros) else inf

    def _bare(self, settings: Settings) -> Bare:
        key = _degrees(settings)
        found = self._bares.get(key)
        if found is None:
            accelerator = self.cluster.accelerator
            rate = self.rate or efficiency_of(accelerator.name)
            found = self._bares[key] = Bare(self.shape, settings, self.job, accelerator, rate)
        return found

    def varied(
        self, *, cluster: Cluster | None = None, memory_limit: int | None = None, efficiency: float = 1.0
    ) -> Evaluator:
        """The same job where something is otherwise; `efficiency` multiplies the shares of the peak."""
        rate = self.rate or efficiency_of(self.cluster.accelerator.name)
        rate = replace(rate, matmul=rate.matmul * efficiency, attention=rate.attention * efficiency)
        limit = self.memory_limit if memory_limit is None else memory_limit
        return Evaluator(self.shape, cluster or self.cluster, self.job, limit, rate)


def _degrees(one: Settings) -> tuple[int, ...]:
    """All that the cost of a layer depends on."""
    return one.data, one.tensor, one.pipeline, one.context, one.expert, one.micro_batch, one.sequence_parallel
