"""Which settings a model can run with on so many devices: what does not divide is refused with what would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings


def validate(shape: ModelShape, settings: Settings, devices: int | None = None, job: Job | None = None) -> None:
    """Refuse settings that cannot run. Raises ConfigError that names the first rule that is broken, and what would do.

    Without `devices` or `job` the rules about them are left out.
    """
    for problem in problems(shape, settings, devices, job):
        raise ConfigError(problem)


def problems(shape: ModelShape, settings: Settings, devices: int | None = None, job: Job | None = None) -> list[str]:
    """Every rule that settings break, as the line that `validate` would give."""
    found = list(_positive(settings))
    if found:  # the others would divide by zero
        return found
    found += _tensor(shape, settings)
    found += _layers(shape, settings)
    found += _experts(shape, settings)
    found += _choices(settings)
    if job is not None:
        found += _job(settings, job)
    if devices is not None and settings.devices != devices:
        product = f"data {settings.data} x context {settings.context} x tensor {settings.tensor} x pipeline"
        found.append(
            f"{product} {settings.pipeline} = {settings.devices} devices, but there are {devices}; "
            + _devices_advice(settings, devices)
        )
    return found


def divisors(*numbers: int, limit: int = 1 << 30) -> list[int]:
    """The numbers up to `limit` that divide all of `numbers`."""
    least = min(numbers)
    small = [number for number in range(1, int(least**0.5) + 1) if least % number == 0]
    found = {*small, *(least // number for number in small)}
    return sorted(number for number in found if number <= limit and not any(other % number for other in numbers))


def tensor_degrees(shape: ModelShape) -> list[int]:
    """The tensor degrees that a model can be split by.

    They divide the key-value heads too: Megatron's `TransformerConfig` and MindFormers' `LLamaAttention` refuse more
    ranks than that.
    """
    heads = [shape.heads] if shape.kv_lora_rank else [shape.heads, shape.kv_heads]
    return divisors(*heads, *_widths(shape), shape.vocab)


def _positive(settings: Settings) -> Iterator[str]:
    names = ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "micro_batches", "virtual")
    for name in names:
        value = getattr(settings, name)
        if type(value) is not int or value < 1:
            yield f"{name} is {value!r}; expected a whole number from 1"
    if settings.zero not in (0, 1, 2, 3):
        yield f"zero is {settings.zero!r}; expected 0, 1, 2 or 3"


def _widths(shape: ModelShape) -> list[int]:
    """The sizes of the feed-forward parts that a tensor group splits."""
    dense = shape.ffn if not shape.experts or shape.dense_layers or shape.dense_at else 0
    return [width for width in (dense, shape.expert_ffn, shape.shared_ffn) if width]


def _tensor(shape: ModelShape, settings: Settings) -> Iterator[str]:
    tensor = settings.tensor
    parts = [("attention heads", shape.heads)]
    if not shape.kv_lora_rank:
        parts.append(("key-value heads", shape.kv_heads))
    parts += [("numbers of the feed-forward part", width) for width in _widths(shape)]
    parts.append(("rows of the vocabulary", shape.vocab))
    for what, size in parts:
        if size % tensor:
            yield (
                f"tensor {tensor} does not divide the {size} {what} of {shape.name}; "
                f"degrees that divide all its parts: {_listed(tensor_degrees(shape))}"
            )


def _layers(shape: ModelShape, settings: Settings) -> Iterator[str]:
    chunks = settings.pipeline * settings.virtual
    what = f"pipeline {settings.pipeline}" + (f" x virtual {settings.virtual}" if settings.virtual > 1 else "")
    if settings.layers:
        if len(settings.layers) != chunks:
            yield f"layers gives {len(settings.layers)} chunks; {what} wants {chunks} numbers"
        elif sum(settings.layers) != shape.layers:
            yield f"layers adds up to {sum(settings.layers)}; {shape.name} has {shape.layers} layers"
        elif min(settings.layers) < 1:
            yield f"layers {list(settings.layers)} has a chunk without a layer; expected one or more in each"
    elif shape.layers % chunks:
        share, rest = divmod(shape.layers, chunks)
        if share:
            split = ",".join([str(share + 1)] * rest + [str(share)] * (chunks - rest))
            advice = f"; or give the layers of each chunk, such as {split}"
        else:
            advice = ""
        yield (
            f"{what} does not divide the {shape.layers} layers of {shape.name}; "
            f"numbers of chunks that do: {_listed(divisors(shape.layers))}{advice}"
        )


def _experts(shape: ModelShape, settings: Settings) -> Iterator[str]:
    expert, replicas = settings.expert, settings.data * settings.context
    if expert == 1:
        return
    if not shape.experts:
        yield f"expert {expert}: {shape.name} has no experts; expected 1"
        return
    if shape.experts % expert:
        yield (
            f"expert {expert} does not divide the {shape.experts} experts of {shape.name}; "
            f"degrees that do: {_listed(divisors(shape.experts))}"
        )
    if replicas % expert:
        yield (
            f"expert {expert} does not divide data {settings.data} x context {settings.context} = {replicas}, over "
            f"which experts are spread; degrees that do: {_listed(divisors(shape.experts, replicas))}"
        )


def _choices(settings: Settings) -> Iterator[str]:
    if settings.sequence_parallel and settings.tensor == 1:
        yield "sequence_parallel splits over the tensor group, and tensor is 1; turn it off or raise tensor"
    if settings.virtual > 1 and settings.schedule != "interleaved":
        yield f"virtual {settings.virtual} with the schedule {settings.schedule}; only interleaved has chunks of stages"
    if settings.schedule == "interleaved" and settings.virtual == 1:
        yield "the schedule interleaved with virtual 1; give virtual 2 or more, or the schedule 1f1b"
    if settings.virtual > 1 and settings.pipeline == 1:
        yield f"virtual {settings.virtual} with pipeline 1; chunks of stages need a pipeline"
    if settings.schedule == "interleaved" and settings.micro_batches % settings.pipeline:
        yield (
            f"the schedule interleaved wants micro_batches to be a multiple of pipeline {settings.pipeline}, "
            f"not {settings.micro_batches}"
        )
    if settings.recompute_layers is not None:
        if settings.recompute == "none":
            yield "recompute_layers with recompute none; expected selective or full"
        elif len(settings.recompute_layers) != settings.pipeline:
            yield (
                f"recompute_layers has {len(settings.recompute_layers)} numbers; expected one for each of the "
                f"{settings.pipeline} stages"
            )
        elif min(settings.recompute_layers) < 0:
            yield f"recompute_layers {list(settings.recompute_layers)} has a negative number"


def _job(settings: Settings, job: Job) -> Iterator[str]:
    if job.seq < 1:
        yield f"seq is {job.seq}; expected a whole number from 1"
        return
    # Ring attention balances the causal mask by giving each rank one early and one late piece.
    pieces = settings.context * (2 if settings.context > 1 else 1)
    if job.seq % pieces:
        yield f"seq {job.seq} does not divide into {pieces} pieces for context {settings.context}"
    split = settings.context * settings.tensor
    if settings.sequence_parallel and job.seq % split:
        yield f"seq {job.seq} is not a multiple of context x tensor = {split}, which sequence_parallel splits it by"
    if settings.context > 1 and not job.flash_attention:
        yield f"context {settings.context} needs flash attention, which is off"
    if settings.global_batch != job.global_batch:
        yield (
            f"data {settings.data} x micro_batch {settings.micro_batch} x micro_batches {settings.micro_batches} = "
            f"{settings.global_batch} sequences a step, but the job has {job.global_batch}"
        )


def _devices_advice(settings: Settings, devices: int) -> str:
    model = settings.context * settings.tensor * settings.pipeline
    if devices % model == 0:
        return f"data {devices // model} would use them all"
    return f"context x tensor x pipeline must divide {devices}: {_listed(divisors(devices))}"


def _listed(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    text = ", ".join(map(str, numbers[:16]))
    return text + (", ..." if len(numbers) > 16 else "")
