"""Every setting there is, one after the other, without the search's own code: what `search` has to agree with."""

import itertools
from collections.abc import Iterator

from mindspeed_ms.parallel.plan import memory, rules
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.step_time import step_time
from mindspeed_ms.parallel.topology.groups import arrange


def all_settings(shape, devices: int, job, schedules=("1f1b", "interleaved")) -> Iterator[Settings]:
    """All that the rules accept."""
    for data, tensor, pipeline, context in itertools.product(range(1, devices + 1), repeat=4):
        if data * tensor * pipeline * context != devices or job.global_batch % data or pipeline > shape.layers:
            continue
        for expert in range(1, data * context + 1) if shape.experts else (1,):
            degrees = dict(data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert)
            for settings in _batches(shape, degrees, job, schedules):
                if not rules.problems(shape, settings, devices, job):
                    yield settings


def _batches(shape, degrees, job, schedules):
    replica = job.global_batch // degrees["data"]
    for size in range(1, replica + 1):
        if replica % size:
            continue
        sized = dict(degrees, micro_batch=size, micro_batches=replica // size)
        for schedule in schedules if degrees["pipeline"] > 1 else ("1f1b",):
            for virtual in range(2, shape.layers + 1) if schedule == "interleaved" else (1,):
                for layers in _compositions(shape.layers, degrees["pipeline"] * virtual):
                    for zero, sequence in itertools.product(range(4), (False, True)):
                        if zero == 0 or degrees["data"] * degrees["context"] > 1:
                            chosen = dict(schedule=schedule, virtual=virtual, layers=layers, zero=zero)
                            yield from _recomputes(Settings(**sized, **chosen, sequence_parallel=sequence))


def _recomputes(settings):
    stages = settings.pipeline
    yield settings
    fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    yield Settings(**{**fields, "recompute": "selective"})
    held = [sum(settings.layers[stage::stages]) for stage in range(stages)]
    for counts in itertools.product(*(range(count + 1) for count in held)):
        yield Settings(**{**fields, "recompute": "full", "recompute_layers": counts})


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        bounds = (0, *cuts, total)
        yield tuple(b - a for a, b in itertools.pairwise(bounds))


def all_costs(shape, cluster, job, schedules=("1f1b", "interleaved")) -> list[tuple[float, int, Settings]]:
    """Seconds, bytes of the fullest device and the settings."""
    orders = {}
    found = []
    for settings in all_settings(shape, cluster.size, job, schedules):
        key = (settings.data, settings.tensor, settings.pipeline, settings.context, settings.expert)
        if key not in orders:
            orders[key] = arrange(cluster, settings).order
        seconds = step_time(shape, settings, cluster, job, order=orders[key]).total
        found.append((seconds, memory.peak(shape, settings, job).total, settings))
    return found
