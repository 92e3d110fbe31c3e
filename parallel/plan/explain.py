"""Why a plan is what it is: what limits its step, and what each of its choices would cost if it were another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mindspeed_ms.parallel.plan.candidates import Limits, even
from mindspeed_ms.parallel.plan.describe import gib
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.fit import fitted
from mindspeed_ms.parallel.plan.search import Candidate, Ranking, search, timed
from mindspeed_ms.parallel.plan.settings import DIMENSIONS, Settings
from mindspeed_ms.parallel.plan.step_time import StepTime

_COMPUTE = ("forward", "backward", "optimizer")
_BANDWIDTH = ("tensor", "context", "expert", "pipeline", "data")
_UNLIMITED = 1 << 60


def binds(ranking: Ranking, evaluator: Evaluator, limits: Limits) -> tuple[tuple[str, float], ...]:
    """What limits the step, the first most, as shares of its time.

    compute, bandwidth and bubble are what the step spends on them; memory is by how much the best step would be
    shorter, were there no limit to memory.
    """
    time = evaluator.time(ranking.best.settings)
    parts = time.parts
    free = search(evaluator.shape, evaluator.cluster, evaluator.job, limits, evaluator.varied(memory_limit=_UNLIMITED))
    shares = {
        "compute": sum(parts[name] for name in _COMPUTE) / time.total,
        "bandwidth": sum(parts[name] for name in _BANDWIDTH) / time.total,
        "bubble": time.bubble_share,
        "memory": max(0.0, 1 - free.best.seconds / ranking.best.seconds),
    }
    return tuple(sorted(shares.items(), key=lambda one: -one[1]))


def reasons(ranking: Ranking, evaluator: Evaluator, limits: Limits) -> tuple[str, ...]:
    """A sentence for each choice: what the best step is with another value of it."""
    best = ranking.best
    time = evaluator.time(best.settings)
    lines = [_degree(name, best, time, ranking, evaluator, limits) for name in DIMENSIONS]
    lines += _zero(best, time, evaluator, limits)
    lines += _recompute(best, time, evaluator)
    lines += _micro_batch(best, time, evaluator, limits)
    lines += _layers(best, time, evaluator, limits)
    return tuple(line for line in lines if line)


def _degree(name: str, best: Candidate, time: StepTime, ranking: Ranking, evaluator: Evaluator, limits: Limits) -> str:
    value = getattr(best.settings, name)
    if getattr(limits, name) is not None:
        return f"{name} {value}: as given"
    other = next((one for one in ranking.candidates if getattr(one.settings, name) != value), None)
    if other is None:
        return f"{name} {value}: all of the best plans have it" if value > 1 else ""
    said = _slower(time, evaluator.time(other.settings))
    return f"{name} {value}: with {getattr(other.settings, name)} the best is {said}"


def _slower(time: StepTime, other: StepTime) -> str:
    """How much more another step takes, and the two parts that grow most."""
    share = other.total / time.total - 1
    if share < 0.0005:
        return "as fast"
    grown = sorted(((other.parts[name] - seconds, name) for name, seconds in time.parts.items()), reverse=True)
    said = [f"{name} +{seconds:.3g} s" for seconds, name in grown[:2] if seconds > 0.001 * time.total]
    return f"{share:.1%} slower" + (f" ({', '.join(said)})" if said else "")


def _best_of(settings: Settings, evaluator: Evaluator, limits: Limits) -> Candidate | None:
    found = [timed(one, evaluator) for one in fitted(settings, evaluator, limits)]
    return min(found, key=lambda one: one.order, default=None)


def _zero(best: Candidate, time: StepTime, evaluator: Evaluator, limits: Limits) -> Iterator[str]:
    one = best.settings
    if limits.zero is not None or one.data * one.context == 1:
        return
    said = []
    for level in (0, 1, 2, 3):
        if level != one.zero:
            other = replace(one, zero=level)
            if evaluator.fits(other):
                said.append(f"{level} is {_slower(time, evaluator.time(other))}")
            else:
                said.append(f"{level} needs {gib(_peak(other, evaluator))}")
    yield f"ZeRO {one.zero}: {'; '.join(said)}"


def _recompute(best: Candidate, time: StepTime, evaluator: Evaluator) -> Iterator[str]:
    if best.settings.recompute == "none":
        yield f"no recomputation: {gib(best.peak)} of {gib(evaluator.limit)} are enough without"
        return
    without = replace(best.settings, recompute="none", recompute_layers=None)
    yield (
        f"recompute {best.settings.recompute}: it costs {time.recompute / time.total:.1%} of the step; without it "
        f"{gib(_peak(without, evaluator))} of {gib(evaluator.limit)} would be needed"
    )


def _micro_batch(best: Candidate, time: StepTime, evaluator: Evaluator, limits: Limits) -> Iterator[str]:
    one = best.settings
    if limits.micro_batch is not None:
        return
    replica = one.micro_batch * one.micro_batches
    for size in (one.micro_batch // 2, one.micro_batch * 2):
        if size < 1 or replica % size:
            continue
        other = replace(one, micro_batch=size, micro_batches=replica // size, recompute="none", recompute_layers=None)
        if evaluator.problem(other, one.devices):
            continue
        found = _best_of(other, evaluator, replace(limits, zero=one.zero))
        said = _slower(time, evaluator.time(found.settings)) if found else "does not fit"
        yield f"micro-batch {one.micro_batch}: with {size} it {'is ' if found else ''}{said}"


def _layers(best: Candidate, time: StepTime, evaluator: Evaluator, limits: Limits) -> Iterator[str]:
    one = best.settings
    if not one.layers or limits.layers is not None:
        return
    plain = replace(one, layers=even(evaluator.shape.layers, len(one.layers)), recompute="none", recompute_layers=None)
    found = _best_of(plain, evaluator, replace(limits, zero=one.zero))
    said = _slower(time, evaluator.time(found.settings)) if found else "does not fit"
    yield f"layers: split evenly it {'is ' if found else ''}{said}"


def _peak(settings: Settings, evaluator: Evaluator) -> int:
    return max(memory.total for memory in evaluator.memory(settings))
