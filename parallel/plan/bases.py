"""What can be run at all, before layers, ZeRO and recomputation are chosen; and what is said where nothing fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import candidates
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.describe import describe, gib
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.fit import smallest
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster

Degrees = tuple[int, int, int, int, int]


def degrees_of(one: Settings) -> Degrees:
    """Data, tensor, pipeline, context and expert parallel degrees."""
    return one.data, one.tensor, one.pipeline, one.context, one.expert


def bases_of(devices: int, limits: Limits, evaluator: Evaluator, refused: Counter[str]) -> Iterator[Settings]:
    """Degrees, micro-batch and schedule that can be run; what cannot is counted by its reason."""
    shape, job = evaluator.shape, evaluator.job
    for split in candidates.degrees(shape, job, devices, limits):
        # The rules about layers are for the chunks of each schedule.
        probe = replace(split, micro_batches=job.global_batch // split.data, layers=())
        problem = _problem(probe, devices, replace(limits, layers=None), evaluator)
        if problem:
            refused[problem] += 1
            continue
        known: dict[tuple[str, int], str] = {}  # the other rules do not ask for the size of a micro-batch
        for sized in candidates.micro_batches(split, job, limits):
            for base in candidates.schedules(shape, sized, limits):
                key = (base.schedule, base.virtual)
                if key not in known:
                    known[key] = _problem(base, devices, limits, evaluator)
                problem = known[key]
                if problem:
                    refused[problem] += 1
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


def no_way(shape: ModelShape, job: Job, devices: int, refused: Counter[str]) -> ConfigError:
    if refused:
        reason, count = refused.most_common(1)[0]
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        return ConfigError(f"no way to run {shape.name} on {devices} devices: {reason}{more}")
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
    return min((smallest(base, evaluator, limits) for base in simplest(bases)), key=lambda one: one[0])


def simplest(bases: Iterable[Settings]) -> list[Settings]:
    """The first base of each degrees and schedule: it has the smallest micro-batch; what follows takes more memory."""
    first: dict[tuple[Degrees, str], Settings] = {}
    for base in bases:
        first.setdefault((degrees_of(base), base.schedule), base)
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
            bases = list(bases_of(count * step, asked, evaluator, Counter()))
        except ConfigError:
            continue
        every = simplest(bases)
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
