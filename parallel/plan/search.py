"""The search: the fastest settings that fit, by a bound first, by memory second and by the whole model last."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import candidates
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.describe import describe, gib
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.fit import fitted, moves, smallest, splits
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import seconds_of
from mindspeed_ms.parallel.topology.cluster import Cluster

Degrees = tuple[int, int, int, int, int]
_MOVES = 8  # of a layer from one chunk to another, of each candidate that is kept


@dataclass(frozen=True)
class Candidate:
    """Settings that fit, with seconds of a step and bytes of the fullest device."""

    settings: Settings
    seconds: float
    peak: int

    @property
    def order(self) -> tuple[Any, ...]:
        """The faster first; of equally fast ones the simpler one, then that with less memory."""
        one = self.settings
        return (float(f"{self.seconds:.9g}"), one.zero, one.virtual, self.peak, _degrees(one), one.micro_batch)


@dataclass
class Ranking:
    """The best candidate of each of the best degrees, the fastest first, and how they were found."""

    candidates: list[Candidate]
    limit: int  # bytes of a device
    groups: int = 0  # degrees, micro-batch and schedule together
    pruned: int = 0  # of them: their bound is above what was found
    too_large: int = 0  # splits of them of which nothing fits
    evaluated: int = 0  # settings timed by the whole model
    refused: Counter[str] = field(default_factory=Counter)  # why degrees cannot be run

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def search(
    shape: ModelShape, cluster: Cluster, job: Job, limits: Limits | None = None, evaluator: Evaluator | None = None
) -> Ranking:
    """Rank the ways to run a job on a cluster.

    Raises ConfigError when what is fixed contradicts itself or cannot be run, and when nothing fits: by how much.
    """
    limits = limits or Limits()
    devices = limits.devices or cluster.size
    if not 0 < devices <= cluster.size:
        raise ConfigError(f"devices {devices}: the cluster {cluster.name} has {cluster.size}; take so many or fewer")
    evaluator = evaluator or Evaluator(shape, cluster, job, limits.memory)
    ranking = Ranking([], evaluator.limit)
    bases = list(_bases(devices, limits, evaluator, ranking))
    if not bases:
        raise _no_way(shape, job, devices, ranking)
    if all(smallest(base, evaluator, limits)[0] > evaluator.limit for base in _simplest(bases)):
        raise too_small(shape, cluster, job, limits, evaluator, bases)
    best = _Best(limits.keep)
    _best_first(bases, evaluator, limits, ranking, best)
    ranking.candidates = best.ranked()
    if limits.layers is None:
        moved = [_moved(one, evaluator, limits, ranking) for one in ranking.candidates]
        ranking.candidates = sorted(moved, key=lambda one: one.order)
    if not ranking.candidates:
        raise too_small(shape, cluster, job, limits, evaluator, bases)
    return ranking


_BASE, _SPLIT, _BOUNDED = range(3)  # what of settings is chosen already, and how well they are bounded


def _best_first(bases: list[Settings], evaluator: Evaluator, limits: Limits, ranking: Ranking, best: _Best) -> None:
    """Look at what may be the fastest first: bases by a coarse bound, then each split and ZeRO stage by finer ones."""
    ranking.groups = len(bases)
    heap = [(coarse, at, base, _BASE) for at, (coarse, base) in enumerate(_coarse(bases, evaluator, limits))]
    heapq.heapify(heap)
    count = len(heap)
    while heap:
        bound, at, settings, known = heapq.heappop(heap)
        if bound == float("inf"):
            ranking.too_large += 1
        elif bound >= best.worst(settings):
            ranking.pruned += 1
        elif known == _BOUNDED:
            _try(settings, evaluator, limits, ranking, best)
        elif known == _SPLIT:
            heapq.heappush(heap, (max(bound, evaluator.bound(settings)), at, settings, _BOUNDED))
        else:
            for finer, split in _splits(settings, evaluator, limits):
                count += 1
                heapq.heappush(heap, (max(bound, finer), count, split, _SPLIT))


def _splits(base: Settings, evaluator: Evaluator, limits: Limits) -> Iterator[tuple[float, Settings]]:
    """Each split with each ZeRO stage that may fit, and the higher of the bounds of the two apart."""
    levels = {zero: evaluator.coarse(base, (zero,)) for zero in candidates.zeros(base, limits)}
    for split in splits(base, evaluator, limits):
        quick = evaluator.quick(split)
        for zero, coarse in levels.items():
            if coarse < float("inf"):
                yield max(quick, coarse), replace(split, zero=zero)


def _coarse(bases: list[Settings], evaluator: Evaluator, limits: Limits) -> Iterator[tuple[float, Settings]]:
    for base in bases:
        levels = candidates.zeros(base, limits)
        for settings in _sequences(base, evaluator, limits):
            yield evaluator.coarse(settings, levels), settings


def _sequences(base: Settings, evaluator: Evaluator, limits: Limits) -> Iterator[Settings]:
    """With and without sequence parallelism, where that may be of use: it never takes more memory."""
    for sequence in candidates.sequence_parallels(base, limits):
        if sequence and evaluator.job.seq % (base.context * base.tensor):
            continue
        settings = replace(base, sequence_parallel=sequence)
        yield settings
        if sequence and evaluator.sequence_parallel_wins(base):
            return


def _try(split: Settings, evaluator: Evaluator, limits: Limits, ranking: Ranking, best: _Best) -> None:
    """Time everything of one split and ZeRO stage that fits and whose bound is not above what was found."""
    fits = False
    worst = best.worst(split)

    def worth(settings: Settings) -> bool:
        return evaluator.bound(settings) < worst

    for settings in fitted(split, evaluator, replace(limits, zero=split.zero), worth):
        fits = True
        work = evaluator.work(settings)
        if work.bound(settings) < worst:
            ranking.evaluated += 1
            seconds = seconds_of(settings, work)
            if seconds <= worst * (1 + 1e-8):  # the order of equal ones is by other things
                best.offer(Candidate(settings, seconds, _peak(settings, evaluator)))
                worst = best.worst(split)
    ranking.too_large += not fits


def _moved(one: Candidate, evaluator: Evaluator, limits: Limits, ranking: Ranking) -> Candidate:
    """Move a layer from a chunk to another as long as that makes the step shorter, at most a few times."""
    if one.settings.pipeline == 1:
        return one
    for _ in range(_MOVES):
        better = next(_better(one, evaluator, limits, ranking), None)
        if better is None:
            break
        one = better
    return one


def _better(one: Candidate, evaluator: Evaluator, limits: Limits, ranking: Ranking) -> Iterator[Candidate]:
    alike = replace(limits, zero=one.settings.zero)
    for split in moves(one.settings, evaluator):
        if evaluator.bound(split) < one.seconds:  # it has the ZeRO stage of what it is made of
            for settings in fitted(split, evaluator, alike):
                if evaluator.bound(settings) < one.seconds:
                    ranking.evaluated += 1
                    found = timed(settings, evaluator)
                    if found.order < one.order:
                        yield found


def timed(settings: Settings, evaluator: Evaluator) -> Candidate:
    """Settings with their seconds and bytes; whether they fit is not looked at."""
    return Candidate(settings, seconds_of(settings, evaluator.work(settings)), _peak(settings, evaluator))


def _peak(settings: Settings, evaluator: Evaluator) -> int:
    return max(evaluator.stage_bytes(settings, stage) for stage in range(settings.pipeline))


class _Best:
    """The best candidate of each degrees, and how good one of given degrees has to be to be of interest."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._found: dict[Degrees, Candidate] = {}
        self._seconds: list[float] = []  # of what was found, sorted

    def worst(self, base: Settings) -> float:
        own = self._found.get(_degrees(base))
        last = self._seconds[self.keep - 1] if len(self._seconds) >= self.keep else float("inf")
        return min(last, own.seconds if own else float("inf"))

    def offer(self, one: Candidate) -> None:
        key = _degrees(one.settings)
        old = self._found.get(key)
        if old is None or one.order < old.order:
            if old is not None:
                self._seconds.remove(old.seconds)
            self._found[key] = one
            bisect.insort(self._seconds, one.seconds)

    def ranked(self) -> list[Candidate]:
        return sorted(self._found.values(), key=lambda one: one.order)[: self.keep]


def _bases(devices: int, limits: Limits, evaluator: Evaluator, ranking: Ranking) -> Iterator[Settings]:
    """Degrees, micro-batch and schedule that can be run; what cannot is counted by its reason."""
    shape, job = evaluator.shape, evaluator.job
    for split in candidates.degrees(shape, job, devices, limits):
        # The rules about layers are for the chunks of each schedule.
        probe = replace(split, micro_batches=job.global_batch // split.data, layers=())
        problem = _problem(probe, devices, limits, evaluator)
        if problem:
            ranking.refused[problem] += 1
            continue
        known: dict[tuple[str, int], str] = {}  # the other rules do not ask for the size of a micro-batch
        for sized in candidates.micro_batches(split, job, limits):
            for base in candidates.schedules(shape, sized, limits):
                key = (base.schedule, base.virtual)
                if key not in known:
                    known[key] = _problem(base, devices, limits, evaluator)
                problem = known[key]
                if problem:
                    ranking.refused[problem] += 1
                else:
                    yield base


def _problem(base: Settings, devices: int, limits: Limits, evaluator: Evaluator) -> str:
    """Why a base cannot be run with what is fixed of its other settings; empty: it can."""
    layers, chunks = evaluator.shape.layers, base.pipeline * base.virtual
    if limits.zero and base.data * base.context == 1:
        return f"zero {limits.zero} spreads over data x context, which is 1; turn it off or raise data"
    base = replace(base, sequence_parallel=bool(limits.sequence_parallel))
    if limits.layers is not None:
        base = replace(base, layers=limits.layers)
    elif layers % chunks and layers >= chunks:
        base = replace(base, layers=candidates.even(layers, chunks))
    return evaluator.problem(base, devices)


def _degrees(one: Settings) -> Degrees:
    return one.data, one.tensor, one.pipeline, one.context, one.expert


def _no_way(shape: ModelShape, job: Job, devices: int, ranking: Ranking) -> ConfigError:
    if ranking.refused:
        reason, count = ranking.refused.most_common(1)[0]
        return ConfigError(f"no way to run {shape.name} on {devices} devices: {reason} (and {count - 1} more like it)")
    return ConfigError(
        f"no way to spread {devices} devices over a global batch of {job.global_batch} sequences with what is fixed; "
        "give a batch with more divisors, or other degrees"
    )


def too_small(
    shape: ModelShape, cluster: Cluster, job: Job, limits: Limits, evaluator: Evaluator, bases: Iterable[Settings]
) -> ConfigError:
    """Says what the smallest settings need, how much more that is than a device has, and how many devices would do."""
    peak, settings = _least(bases, evaluator, limits)
    over = peak - evaluator.limit
    devices = limits.devices or cluster.size
    said = (
        f"{shape.name} does not fit on {devices} devices of {gib(evaluator.limit)}: the smallest settings "
        f"({describe(settings)}) need {gib(peak)} on a device, {gib(over)} more"
    )
    needed = _devices_needed(shape, cluster, job, limits)
    if needed:
        return ConfigError(f"{said}; {needed} such devices would do, {needed - devices} more")
    return ConfigError(f"{said}; give a smaller model, a shorter sequence, or devices with more memory")


def _least(bases: Iterable[Settings], evaluator: Evaluator, limits: Limits) -> tuple[int, Settings]:
    """The settings that take least memory, with bytes of their fullest device."""
    return min((smallest(base, evaluator, limits) for base in _simplest(bases)), key=lambda one: one[0])


def _simplest(bases: Iterable[Settings]) -> list[Settings]:
    """The first base of each degrees and schedule: it has the smallest micro-batch; what follows takes more memory."""
    first: dict[tuple[Degrees, str], Settings] = {}
    for base in bases:
        first.setdefault((_degrees(base), base.schedule), base)
    return list(first.values())


def _devices_needed(shape: ModelShape, cluster: Cluster, job: Job, limits: Limits) -> int | None:
    """How many devices, by whole servers, would do: the first number on which an even split fits in memory."""
    server = cluster.servers[0]
    used = limits.devices or cluster.size
    step = len(server.devices) if used >= len(server.devices) else 1
    for count in _counts(used // step):
        servers = (server,) * max(count * step // len(server.devices), 1)
        wider = replace(cluster, servers=servers, pods=())
        evaluator = Evaluator(shape, wider, job, limits.memory)
        asked = replace(limits, devices=count * step)
        try:
            bases = list(_bases(count * step, asked, evaluator, Ranking([], 0)))
        except ConfigError:
            continue
        every = _simplest(bases)
        if any(smallest(base, evaluator, asked, even_only=True)[0] <= evaluator.limit for base in every):
            return count * step
    return None


def _counts(used: int) -> Iterator[int]:
    """Numbers of servers above those that are there: one more at a time, then twice as many at a time."""
    yield from range(used + 1, used + 9)
    count = 1
    while count < 4096:
        if count > used + 8:
            yield count
        count *= 2
