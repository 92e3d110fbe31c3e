"""The search: the fastest settings that fit, by a bound first, by memory second and by the whole model last."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import candidates
from mindspeed_ms.parallel.plan.bases import Degrees, bases_of, degrees_of, no_way, simplest, too_small
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.fit import fitted, moves, smallest, splits
from mindspeed_ms.parallel.plan.floor import spread
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import seconds_of
from mindspeed_ms.parallel.topology.cluster import Cluster

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
        return (float(f"{self.seconds:.9g}"), one.zero, one.virtual, self.peak, degrees_of(one), one.micro_batch)


@dataclass
class Ranking:
    """The best candidate of each of the best degrees, the fastest first, and how they were found."""

    candidates: list[Candidate]
    limit: int  # bytes of a device
    groups: int = 0  # degrees, micro-batch and schedule together
    pruned: int = 0  # of them: their bound is above what was found
    too_large: int = 0  # splits and ZeRO stages of which nothing fits
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
    bases = list(bases_of(devices, limits, evaluator, ranking.refused))
    if not bases:
        raise no_way(shape, job, devices, ranking.refused)
    if all(smallest(base, evaluator, limits)[0] > evaluator.limit for base in simplest(bases)):
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


_BARE, _BASE, _SPLIT, _BOUNDED = range(4)  # what of settings is chosen already, and how well they are bounded


def _best_first(bases: list[Settings], evaluator: Evaluator, limits: Limits, ranking: Ranking, best: _Best) -> None:
    """Look at what may be the fastest first: bases by a coarse bound, then each split and ZeRO stage by finer ones."""
    ranking.groups = len(bases)
    families = list(_families(bases, evaluator, limits))
    heap = [(bare, at, members[0], _BARE) for at, (bare, members) in enumerate(families)]
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
        elif known == _SPLIT and not evaluator.fits(settings.but(recompute=limits.recompute or "full")):
            ranking.too_large += 1
        elif known == _SPLIT:
            heapq.heappush(heap, (max(bound, evaluator.bound(settings)), at, settings, _BOUNDED))
        elif known == _BARE:
            if not _is_beaten(settings, evaluator, limits):
                whole = evaluator.least(settings, candidates.zeros(settings, limits))
                for base in families[at][1]:
                    count += 1
                    one = base.but(sequence_parallel=settings.sequence_parallel)
                    heapq.heappush(heap, (max(bound, spread(one, whole)), count, one, _BASE))
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
                yield max(quick, coarse), split.but(zero=zero)


def _families(bases: list[Settings], evaluator: Evaluator, limits: Limits) -> Iterator[tuple[float, list[Settings]]]:
    """Bases that differ in their schedule alone, with and without sequence parallelism, and a bound of all of them."""
    for _, group in itertools.groupby(bases, key=lambda one: (degrees_of(one), one.micro_batch)):
        members = list(group)
        levels = candidates.zeros(members[0], limits)
        for sequence in candidates.sequence_parallels(members[0], limits):
            if not sequence or _divides(members[0], evaluator):
                first = members[0].but(sequence_parallel=sequence)
                whole = evaluator.bare(first, levels)
                yield min(spread(one, whole) for one in members), [first, *members[1:]]


def _is_beaten(base: Settings, evaluator: Evaluator, limits: Limits) -> bool:
    """Whether sequence parallelism, which never takes more memory, is open and never slower."""
    if base.sequence_parallel or len(candidates.sequence_parallels(base, limits)) == 1:
        return False
    return _divides(base, evaluator) and evaluator.sequence_parallel_wins(base)


def _divides(base: Settings, evaluator: Evaluator) -> bool:
    return evaluator.job.seq % (base.context * base.tensor) == 0


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
        own = self._found.get(degrees_of(base))
        last = self._seconds[self.keep - 1] if len(self._seconds) >= self.keep else float("inf")
        return min(last, own.seconds if own else float("inf"))

    def offer(self, one: Candidate) -> None:
        key = degrees_of(one.settings)
        old = self._found.get(key)
        if old is None or one.order < old.order:
            if old is not None:
                self._seconds.remove(old.seconds)
            self._found[key] = one
            bisect.insort(self._seconds, one.seconds)

    def ranked(self) -> list[Candidate]:
        return sorted(self._found.values(), key=lambda one: one.order)[: self.keep]
