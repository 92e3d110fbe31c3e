"""How layers are split over a pipeline, and how many of them have to be computed again so that each stage fits."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator

from mindspeed_ms.parallel.plan.candidates import Limits, even, sequence_parallels, zeros
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.settings import Recompute, Settings

_FEW = 64  # ways to split layers, or to choose those that are computed again, that are all tried


def splits(base: Settings, evaluator: Evaluator, limits: Limits) -> list[Settings]:
    """The ways to split the layers: all where they are few; else even, with the longer chunks in the middle or first,
    and level in time.
    """
    layers, chunks = evaluator.shape.layers, base.pipeline * base.virtual
    if limits.layers is not None:
        return [base.but(layers=limits.layers)]
    if chunks == 1:
        return [base]
    if math.comb(layers - 1, chunks - 1) <= _FEW:
        return [base.but(layers=() if len(set(one)) == 1 else one) for one in _all_splits(layers, chunks)]
    found = [even(layers, chunks)]
    if layers % chunks:
        short, rest = divmod(layers, chunks)
        found.append(tuple(short + (chunk < rest) for chunk in range(chunks)))
    found.append(level(base, evaluator))
    return [base.but(layers=() if len(set(one)) == 1 else one) for one in dict.fromkeys(found)]


def _all_splits(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, layers), chunks - 1):
        yield tuple(stop - start for start, stop in itertools.pairwise((0, *cuts, layers)))


def level(base: Settings, evaluator: Evaluator) -> tuple[int, ...]:
    """The layers of each chunk such that the longest stage is as short as can be; layers are taken as equally long.

    Each further layer goes to the stage that is then the shortest; inside a stage to its chunk with the fewest, and to
    the middle of the pipeline where it makes no difference.
    """
    layers, stages, virtual = evaluator.shape.layers, base.pipeline, base.virtual
    probe = base.but(layers=even(layers, stages * virtual))
    seconds = [a + b for a, b in zip(*evaluator.chunks(probe), strict=True)]
    one, first, last = _pieces(probe.layers, seconds)
    counts = [1] * (stages * virtual)
    held = [
        one * virtual + (first if stage == 0 else 0) + (last if stage == stages - 1 else 0) for stage in range(stages)
    ]
    heap = [(_round(time + one), abs(2 * stage - stages + 1), stage) for stage, time in enumerate(held)]
    heapq.heapify(heap)
    for _ in range(layers - stages * virtual):
        time, middle, stage = heapq.heappop(heap)
        chunk = min(range(stage, stages * virtual, stages), key=lambda at: (counts[at], abs(2 * at - len(counts) + 1)))
        counts[chunk] += 1
        heapq.heappush(heap, (_round(time + one), middle, stage))
    return tuple(counts)


def _pieces(counts: tuple[int, ...], seconds: list[float]) -> tuple[float, float, float]:
    """Seconds of a layer, of the embedding and of the head, from those of chunks."""
    inner = list(zip(counts, seconds, strict=True))[1:-1]
    if inner:
        one = sum(time for _, time in inner) / sum(count for count, _ in inner)
    else:  # two chunks: the embedding costs next to nothing
        one = seconds[0] / counts[0]
    return one, max(seconds[0] - counts[0] * one, 0.0), max(seconds[-1] - counts[-1] * one, 0.0)


def moves(settings: Settings, evaluator: Evaluator) -> Iterator[Settings]:
    """A layer less in the busiest stage, or in the one that repeats most, and one more in another."""
    counts = [stop - first for first, stop in settings.chunks(evaluator.shape.layers)]
    forward, backward = evaluator.chunks(settings)
    stages = settings.pipeline
    work = [sum(forward[stage::stages]) + sum(backward[stage::stages]) for stage in range(stages)]
    busy = {max(range(stages), key=work.__getitem__)}
    if settings.recompute_layers:
        busy.add(max(range(stages), key=settings.recompute_layers.__getitem__))
    plain = settings.but(recompute="none", recompute_layers=None)
    for source in sorted(busy):
        longest = max(range(source, len(counts), stages), key=counts.__getitem__)
        for target in range(stages):
            if target not in busy and counts[longest] > 1:
                shortest = min(range(target, len(counts), stages), key=counts.__getitem__)
                moved = list(counts)
                moved[longest] -= 1
                moved[shortest] += 1
                yield plain.but(layers=() if len(set(moved)) == 1 else tuple(moved))


def _round(seconds: float) -> float:
    return float(f"{seconds:.9g}")


Worth = Callable[[Settings], bool]


def _always(settings: Settings) -> bool:
    return True


def fitted(base: Settings, evaluator: Evaluator, limits: Limits, worth: Worth = _always) -> Iterator[Settings]:
    """All ZeRO stages and the least recomputation with which a split fits; nothing where it does not.

    Recomputation adds time, so it is tried where memory asks for it, and no layer more than it asks for. In a pipeline
    a stage that waits may still win by it, since gradients hide behind more: where there are few ways, all are tried.

    worth: whether settings, and those that repeat more, can still be of interest; what is not need not be looked at.
    """
    few = base.pipeline > 1 and math.prod(size + 1 for size in held(base, evaluator.shape.layers)) <= _FEW
    for zero in zeros(base, limits):
        settings = base.but(zero=zero)
        if limits.recompute is not None:
            yield from _with(settings, limits.recompute, evaluator, worth)
            continue
        if not worth(settings):  # what repeats takes longer
            continue
        if evaluator.fits(settings):
            yield settings
            if not few:
                continue
        yield from _with(settings, "selective", evaluator, worth)
        yield from _with(settings, "full", evaluator, worth)
        if few:
            yield from _all_counts(settings, evaluator)


def _all_counts(settings: Settings, evaluator: Evaluator) -> Iterator[Settings]:
    """Every number of layers of each stage, above what memory asks for."""
    least = again(settings, evaluator)
    if least is None:
        return
    sizes = held(settings, evaluator.shape.layers)
    for counts in itertools.product(*(range(low, size + 1) for low, size in zip(least, sizes, strict=True))):
        if counts != least:
            yield settings.but(recompute="full", recompute_layers=None if counts == sizes else counts)


def _with(settings: Settings, recompute: Recompute, evaluator: Evaluator, worth: Worth) -> Iterator[Settings]:
    if recompute != "full":
        settings = settings.but(recompute=recompute)
        if evaluator.fits(settings) and worth(settings):
            yield settings
        return
    counts = again(settings, evaluator, worth)
    if counts is not None:
        whole = held(settings, evaluator.shape.layers)
        yield settings.but(recompute="full", recompute_layers=None if counts == whole else counts)


def held(settings: Settings, layers: int) -> tuple[int, ...]:
    """How many layers each stage has."""
    sizes = [stop - first for first, stop in settings.chunks(layers)]
    return tuple(sum(sizes[stage :: settings.pipeline]) for stage in range(settings.pipeline))


def again(settings: Settings, evaluator: Evaluator, worth: Worth = _always) -> tuple[int, ...] | None:
    """The fewest layers that each stage has to compute again to fit; None: no number fits, or none is worth it."""
    settings = settings.but(recompute="full", recompute_layers=None)
    sizes = held(settings, evaluator.shape.layers)
    counts: list[int] = []
    for stage, size in enumerate(sizes):
        if evaluator.stage_bytes(settings, stage) > evaluator.limit:
            return None
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            tried = settings.but(recompute_layers=(middle,) * settings.pipeline)
            if evaluator.stage_bytes(tried, stage) <= evaluator.limit:
                high = middle
            else:
                low = middle + 1
        counts.append(low)
        if stage == 0 and not worth(settings.but(recompute_layers=(low,) + (0,) * (settings.pipeline - 1))):
            return None
    return tuple(counts)


def smallest(base: Settings, evaluator: Evaluator, limits: Limits, *, even_only: bool = False) -> tuple[int, Settings]:
    """The settings that take least memory, with bytes of their fullest device. even_only: of the even split alone."""
    base = base.but(sequence_parallel=sequence_parallels(base, limits)[0])
    layers, chunks = evaluator.shape.layers, base.pipeline * base.virtual
    if even_only and limits.layers is None:
        every = [base.but(layers=() if layers % chunks == 0 else even(layers, chunks))]
    else:
        every = splits(base, evaluator, limits)
    found = []
    for split in every:
        for zero in zeros(base, limits)[-3:]:  # the second and third have two layers whole, which may be more
            settings = split.but(zero=zero, recompute=limits.recompute or "full")
            peak = max(evaluator.stage_bytes(settings, stage) for stage in range(settings.pipeline))
            found.append((peak, settings))
    return min(found, key=lambda one: one[0])
