"""Pipeline schedules as event simulations: when each stage runs which micro-batch, and how long it waits.

1F1B and interleaved 1F1B: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM". GPipe: Huang et al. 2019. Zero bubble (ZB-H1, backward split into input and weight gradients): Qi et al.
2023, "Zero Bubble Pipeline Parallelism".

A virtual stage is a chunk of layers; number c · stages + s runs on stage s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mindspeed_ms.errors import ConfigError

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


@dataclass(frozen=True)
class Event:
    """One piece of work of a stage; seconds from the begin of the step."""

    stage: int
    kind: str  # F forward, B backward, W weight gradient
    micro_batch: int
    chunk: int
    start: float
    end: float


def in_flight(schedule: str, stages: int, micro_batches: int, virtual: int, stage: int) -> float:
    """Micro-batches whose activations a stage holds at its peak, in whole stages (a chunk is 1/virtual of one)."""
    if schedule == "gpipe":
        return float(micro_batches)
    if schedule == "zero_bubble":
        # Weight gradients are put off until every stage holds what the first one does (section 3.1 of the paper).
        return float(min(micro_batches, stages))
    if schedule == "interleaved" and virtual > 1:
        chunks = min(micro_batches * virtual, _warm_up(schedule, stages, micro_batches, virtual, stage) + 1)
        return chunks / virtual
    return float(min(micro_batches, stages - stage))


def bubble(schedule: str, stages: int, micro_batches: int, virtual: int = 1) -> float:
    """The share of the whole step that a stage stands idle, for equal stages and no transfer time.

    zero_bubble: forward, input gradient and weight gradient taken as equally long.
    """
    if schedule == "zero_bubble":
        return (stages - 1) / (3 * micro_batches + stages - 1)
    return (stages - 1) / ((virtual if schedule == "interleaved" else 1) * micro_batches + stages - 1)


def _warm_up(schedule: str, stages: int, micro_batches: int, virtual: int, stage: int) -> int:
    """How many forward passes a stage runs before its first backward pass follows one."""
    if schedule == "gpipe":
        return micro_batches
    if schedule == "interleaved" and virtual > 1:
        return min(micro_batches * virtual, 2 * (stages - stage - 1) + (virtual - 1) * stages)
    return min(micro_batches, stages - stage - 1)


def _order(stages: int, micro_batches: int, virtual: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of forward passes in turn: a group of as many micro-batches as stages, chunk by chunk."""
    return [
        (chunk, micro_batch)
        for first in range(0, micro_batches, stages)
        for chunk in range(virtual)
        for micro_batch in range(first, min(first + stages, micro_batches))
    ]


def work_of(schedule: str, stages: int, micro_batches: int, virtual: int, stage: int) -> list[tuple[str, int, int]]:
    """(kind, chunk, micro-batch) of all that one stage does, in its order."""
    forward = _order(stages, micro_batches, virtual)
    backward = [(virtual - 1 - chunk, micro_batch) for chunk, micro_batch in forward]
    warm = _warm_up(schedule, stages, micro_batches, virtual, stage)
    work = [(FORWARD, *forward[i]) for i in range(warm)]
    # Zero bubble: the later a stage, the fewer forward passes it is ahead, the more weight gradients it may put off.
    late = min(stage, micro_batches) if schedule == "zero_bubble" else None
    for i in range(len(backward)):
        if warm + i < len(forward):
            work.append((FORWARD, *forward[warm + i]))
        work.append((BACKWARD, *backward[i]))
        if late is not None and i >= late:
            work.append((WEIGHT, *backward[i - late]))
    if late:
        work += [(WEIGHT, *item) for item in backward[len(backward) - late :]]
    return work


@dataclass(frozen=True)
class _Program:
    """All work in an order in which nothing waits for what comes later."""

    steps: tuple[tuple[int, int, int, bool], ...]  # stage, index of its duration, step it waits for or -1, other stage
    names: tuple[tuple[str, int, int], ...]


@lru_cache(maxsize=512)
def _program(schedule: str, stages: int, micro_batches: int, virtual: int) -> _Program:
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule {schedule!r}: it is one of {', '.join(SCHEDULES)}")
    if virtual > 1 and schedule != "interleaved":
        raise ConfigError(f"virtual {virtual}: only the schedule interleaved has more than one chunk a stage")
    chunks = stages * virtual
    todo = [work_of(schedule, stages, micro_batches, virtual, stage) for stage in range(stages)]
    at = [0] * stages
    done: dict[tuple[str, int, int], int] = {}
    steps: list[tuple[int, int, int, bool]] = []
    names = []
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while at[stage] < len(todo[stage]):
                kind, chunk, micro_batch = todo[stage][at[stage]]
                place = chunk * stages + stage
                needed = _needed(kind, place, chunks)
                if needed and (needed[0], needed[1], micro_batch) not in done:
                    break
                source = done[needed[0], needed[1], micro_batch] if needed else -1
                hop = needed is not None and needed[1] % stages != stage
                done[kind, place, micro_batch] = len(steps)
                steps.append((stage, place + chunks * "FBW".index(kind), source, hop))
                names.append((kind, chunk, micro_batch))
                at[stage] += 1
                moved = True
    if any(at[stage] < len(todo[stage]) for stage in range(stages)):
        raise ConfigError(
            f"micro_batches {micro_batches}: with {stages} stages the schedule {schedule} of {virtual} chunks a stage "
            f"waits for itself; take a multiple of {stages}"
        )
    return _Program(tuple(steps), tuple(names))


def _needed(kind: str, place: int, chunks: int) -> tuple[str, int] | None:
    if kind == FORWARD:
        return (FORWARD, place - 1) if place else None
    if kind == BACKWARD:
        return (BACKWARD, place + 1) if place + 1 < chunks else (FORWARD, place)
    return BACKWARD, place


@dataclass(frozen=True)
class Run:
    """A schedule played: the whole time, and when each stage ends."""

    seconds: float
    ends: tuple[float, ...]


def _play(
    program: _Program, stages: int, durations: Sequence[float], transfer: float
) -> tuple[list[float], list[float]]:
    free = [0.0] * stages
    end: list[float] = []
    add = end.append
    for stage, index, source, hop in program.steps:
        start = free[stage]
        if source >= 0:
            ready = end[source] + transfer if hop else end[source]
            if ready > start:
                start = ready
        start += durations[index]
        free[stage] = start
        add(start)
    return free, end


def _durations(
    schedule: str, forward: Sequence[float], backward: Sequence[float], weight: Sequence[float] | None
) -> list[float]:
    """Backward of the input alone where weight gradients are apart; without a split half of backward is theirs."""
    if schedule != "zero_bubble":
        return [*forward, *backward]
    weight = [seconds / 2 for seconds in backward] if weight is None else weight
    return [*forward, *(b - w for b, w in zip(backward, weight, strict=True)), *weight]


def play(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float = 0.0,
    weight: Sequence[float] | None = None,
) -> Run:
    """Simulate every micro-batch.

    forward, backward: seconds of each virtual stage; `weight` is the part of backward that is weight gradients.
    transfer: seconds from the end of one stage's work to the begin of the next one's.
    """
    program = _program(schedule, stages, micro_batches, len(forward) // stages)
    free, _ = _play(program, stages, _durations(schedule, forward, backward, weight), transfer)
    return Run(max(free), tuple(free))


def span(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float = 0.0,
    weight: Sequence[float] | None = None,
) -> Run:
    """As `play`, in time that does not grow with the micro-batches: what repeats is played twice and then counted."""
    periods = micro_batches // stages - 3
    if stages == 1:
        seconds = micro_batches * (sum(forward) + sum(backward))
        return Run(seconds, (seconds,))
    if periods <= 1:
        return play(schedule, stages, micro_batches, forward, backward, transfer, weight)
    short = micro_batches - periods * stages
    one = play(schedule, stages, short, forward, backward, transfer, weight)
    two = play(schedule, stages, short + stages, forward, backward, transfer, weight)
    work = [stages * (sum(forward[stage::stages]) + sum(backward[stage::stages])) for stage in range(stages)]
    if any(b - a < least * (1 - 1e-9) for a, b, least in zip(one.ends, two.ends, work, strict=True)):
        # In the end no period is shorter than the work of any stage: they have not come to that yet.
        return play(schedule, stages, micro_batches, forward, backward, transfer, weight)
    ends = tuple(a + periods * (b - a) for a, b in zip(one.ends, two.ends, strict=True))
    return Run(max(ends), ends)


def events(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float = 0.0,
    weight: Sequence[float] | None = None,
) -> list[Event]:
    """Every piece of work with its begin and end, for a picture."""
    program = _program(schedule, stages, micro_batches, len(forward) // stages)
    durations = _durations(schedule, forward, backward, weight)
    _, ends = _play(program, stages, durations, transfer)
    found = []
    for (stage, index, _, _), (kind, chunk, micro_batch), end in zip(program.steps, program.names, ends, strict=True):
        found.append(Event(stage, kind, micro_batch, chunk, end - durations[index], end))
    return found
