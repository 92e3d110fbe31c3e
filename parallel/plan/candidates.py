"""Which settings there are to choose from: every way to split the devices, the batch, the layers and the schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.rules import tensor_degrees
from mindspeed_ms.parallel.plan.settings import Job, Recompute, Schedule, Settings


@dataclass(frozen=True)
class Limits:
    """What of the settings the user has fixed (None: free), and how far the free ones are tried."""

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batch: int | None = None
    zero: int | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool | None = None
    virtual: int | None = None
    layers: tuple[int, ...] | None = None  # of each chunk; (): even
    # Zero-bubble (ZB-H1) and GPipe are tried when they are named: what runs a plan has 1F1B and its interleaved form.
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    devices: int | None = None  # None: all of the cluster
    memory: int | None = None  # bytes of a device; None: what the accelerator has
    most_micro_batch: int = 16
    most_virtual: int = 8
    keep: int = 10  # how many of the best are kept


def degrees(shape: ModelShape, job: Job, devices: int, limits: Limits) -> Iterator[Settings]:
    """All degrees whose product is the number of devices; those that cannot be run are among them.

    Raises ConfigError when what is fixed contradicts the devices or the batch.
    """
    check(limits, devices, job, shape)
    chunks = len(limits.layers or ())
    if chunks > 1 and all(chunks % stages for stages in divisors(devices) if stages > 1):
        raise ConfigError(f"layers names {chunks} chunks, which no number of stages on {devices} devices divides")
    if limits.layers and sum(limits.layers) != shape.layers:
        raise ConfigError(f"layers adds up to {sum(limits.layers)}; {shape.name} has {shape.layers} layers")
    for tensor in _choices(limits.tensor, devices):
        for pipeline in _choices(limits.pipeline, devices // tensor):
            for context in _choices(limits.context, devices // tensor // pipeline):
                data = devices // tensor // pipeline // context
                if tensor * pipeline * context * data != devices or limits.data not in (None, data):
                    continue
                if job.global_batch % data:
                    continue
                for expert in _choices(limits.expert, data * context) if shape.experts else (limits.expert or 1,):
                    yield Settings(data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert)


def check(limits: Limits, devices: int, job: Job, shape: ModelShape) -> None:
    """Raises ConfigError when the fixed degrees do not go into the devices, or do not go together."""
    for name in ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "virtual"):
        value = getattr(limits, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected a whole number from 1")
    if limits.zero not in (None, 0, 1, 2, 3):
        raise ConfigError(f"zero is {limits.zero}; expected 0, 1, 2 or 3")
    fixed = {name: getattr(limits, name) for name in ("data", "tensor", "pipeline", "context")}
    given = {name: value for name, value in fixed.items() if value is not None}
    product = 1
    for value in given.values():
        product *= value
    said = " x ".join(f"{name} {value}" for name, value in given.items())
    if devices % product or (len(given) == len(fixed) and product != devices):
        raise ConfigError(
            f"{said} = {product}: the job has {devices} devices, which that does not "
            f"{'divide' if devices % product else 'use up'}; {_would_do(given, devices, shape)}"
        )
    if limits.data is not None and job.global_batch % limits.data:
        raise ConfigError(
            f"data {limits.data}: a global batch of {job.global_batch} sequences is not spread evenly over it; "
            f"these divide it: {_text(divisors(job.global_batch))}"
        )
    if limits.micro_batch is not None and job.global_batch % ((limits.data or 1) * limits.micro_batch):
        raise ConfigError(
            f"micro_batch {limits.micro_batch}: does not divide a global batch of {job.global_batch} sequences"
            + (f" over data {limits.data}" if limits.data else "")
            + f"; these do: {_text(divisors(job.global_batch // (limits.data or 1)))}"
        )
    _check_pipeline(limits, given)


def _would_do(given: dict[str, int], devices: int, shape: ModelShape) -> str:
    """Which values of one of the fixed degrees go into the devices with the others as they are."""
    for name, value in given.items():
        others = math.prod(given.values()) // value
        if devices % others == 0:
            fit = [devices // others] if len(given) == 4 else list(divisors(devices // others))
            if name == "tensor":
                fit = [degree for degree in fit if degree in tensor_degrees(shape)] or [1]
            return f"{name} {_text(fit)} would, or take another number of devices"
    return "change several of them, or take another number of devices"


def _check_pipeline(limits: Limits, given: dict[str, int]) -> None:
    if limits.virtual is not None and limits.virtual > 1:
        if given.get("pipeline") == 1:
            raise ConfigError(f"virtual {limits.virtual} with pipeline 1: chunks of a stage need a pipeline; drop one")
        if "interleaved" not in limits.schedules:
            raise ConfigError(
                f"virtual {limits.virtual} with schedule {', '.join(limits.schedules)}: "
                "only the interleaved schedule has chunks; drop one"
            )
    if limits.layers:
        if given.get("pipeline") and len(limits.layers) % given["pipeline"]:
            raise ConfigError(
                f"layers names {len(limits.layers)} chunks; with pipeline {given['pipeline']} it has to be a multiple"
            )
        if min(limits.layers) < 1:
            raise ConfigError("layers: every chunk needs at least one layer")


def micro_batches(settings: Settings, job: Job, limits: Limits) -> Iterator[Settings]:
    """The sizes of a micro-batch that divide the batch of a replica, each with the number of forward passes."""
    replica = job.global_batch // settings.data
    for size in _choices(limits.micro_batch, replica):
        if size <= max(limits.most_micro_batch, limits.micro_batch or 1) and replica % size == 0:
            yield settings.but(micro_batch=size, micro_batches=replica // size)


def schedules(shape: ModelShape, settings: Settings, limits: Limits) -> Iterator[Settings]:
    """The pipeline schedules, the interleaved one with each number of chunks a stage."""
    stages = settings.pipeline
    if stages == 1:
        yield settings
        return
    for schedule in limits.schedules:
        if schedule != "interleaved":
            if limits.virtual in (None, 1):
                yield settings.but(schedule=schedule)
            continue
        # Megatron and MindSpore send micro-batches through the chunks in rounds of as many as there are stages.
        if settings.micro_batches % stages:
            continue
        most = min(limits.most_virtual, shape.layers // stages)
        for virtual in range(2, most + 1) if limits.virtual is None else (limits.virtual,):
            if 2 <= virtual <= shape.layers // stages:
                yield settings.but(schedule=schedule, virtual=virtual)


def zeros(settings: Settings, limits: Limits) -> Sequence[int]:
    """The ZeRO stages; a single replica has nothing to spread."""
    levels = (0, 1, 2, 3) if settings.data * settings.context > 1 else (0,)
    return levels if limits.zero is None else (limits.zero,)


def sequence_parallels(settings: Settings, limits: Limits) -> Sequence[bool]:
    """Whether norms are split along the sequence as well; the first needs less memory."""
    if limits.sequence_parallel is not None:
        return (limits.sequence_parallel,)
    return (True, False) if settings.tensor > 1 else (False,)


def even(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as it goes; the longer ones in the middle, away from embedding and head."""
    least, rest = divmod(layers, chunks)
    first = (chunks - rest + 1) // 2
    return tuple(least + (first <= at < first + rest) for at in range(chunks))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, the smallest first."""
    low = [at for at in range(1, int(number**0.5) + 1) if number % at == 0]
    return tuple(sorted({*low, *(number // at for at in low)}))


def _choices(fixed: int | None, number: int) -> Sequence[int]:
    return divisors(number) if fixed is None else (fixed,)


def _text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return shown if len(numbers) <= 12 else f"{shown}, ..."
