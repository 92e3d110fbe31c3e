"""What of a gradient reduction hides behind the backward pass: layers finish one by one, buckets of them are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Seconds of communication after the last layer is done, and of all of it; how many layers each bucket holds."""

    exposed: float
    communication: float
    buckets: tuple[int, ...]

    @property
    def hidden(self) -> float:
        """Seconds of communication during the computation."""
        return max(0.0, self.communication - self.exposed)


def reduce_behind(
    seconds: Sequence[float], nbytes: Sequence[float], bucket: float, cost: Callable[[float], float]
) -> Overlap:
    """Simulate: layers finish in the order given; a bucket is sent when it holds at least `bucket` bytes, one by one.

    seconds, nbytes: backward time and gradient bytes of each layer. cost(bytes) -> seconds of one reduction.
    """
    clock = free = spent = 0.0
    waiting, layers = 0.0, 0
    buckets = []
    for index, (time, size) in enumerate(zip(seconds, nbytes, strict=True)):
        clock += time
        waiting += size
        layers += 1
        if waiting >= bucket or index + 1 == len(seconds):
            took = cost(waiting)
            spent += took
            free = max(free, clock) + took
            buckets.append(layers)
            waiting, layers = 0.0, 0
    return Overlap(max(0.0, free - clock), spent, tuple(buckets))


def best_bucket(
    seconds: Sequence[float], nbytes: Sequence[float], cost: Callable[[float], float]
) -> tuple[float, Overlap]:
    """The bucket size in bytes that leaves least exposed, among 1, 2, 4, … of the largest layer and all at once."""
    total = sum(nbytes)
    sizes = []
    size = max(nbytes, default=0.0)
    while 0 < size < total:
        sizes.append(size)
        size *= 2
    tried = [(size, reduce_behind(seconds, nbytes, size, cost)) for size in [*sizes, total]]
    return min(tried, key=lambda item: (item[1].exposed, len(item[1].buckets)))


def slot(seconds: float, waited: float, hidden: float, load: float) -> float:
    """Seconds of a computation with so many seconds of communication beside it.

    seconds: of the computation alone; of them it waits so many for communication on the same links, and hides so many.
    Where both want the links each gets half of them.
    """
    if not load or not seconds:
        return seconds + load
    free = seconds - hidden
    return max(seconds, load + hidden) + (waited * min(1.0, load / free) if free > 0 else waited)


def even_layers(layers: int, seconds: float, nbytes: float, bucket: int, cost: Callable[[float], float]) -> Overlap:
    """As `reduce_behind` for equal layers and buckets of so many of them, without a walk over the layers.

    Equal buckets that come at equal intervals end late by the first of them or by the last, whichever is slower.
    """
    full, rest = divmod(layers, bucket)
    each = cost(bucket * nbytes) if full else 0.0
    interval, done = bucket * seconds, layers * seconds
    free = max(interval + full * each, full * interval + each) if full else 0.0
    spent = full * each
    if rest:
        last = cost(rest * nbytes)
        free = max(free, done) + last
        spent += last
    return Overlap(max(0.0, free - done), spent, (bucket,) * full + (rest,) * (rest > 0))


def best_even_bucket(
    layers: int, seconds: float, nbytes: float, cost: Callable[[float], float]
) -> tuple[float, Overlap]:
    """As `best_bucket` for equal layers: bytes of the best bucket, and what it leaves exposed."""
    best: tuple[float, Overlap] | None = None
    bucket = 1
    while best is None or bucket < 2 * layers:
        size = min(bucket, layers)
        tried = even_layers(layers, seconds, nbytes, size, cost)
        # The larger bucket of two that are as good: fewer messages.
        if best is None or tried.exposed <= best[1].exposed:
            best = (size * nbytes, tried)
        bucket *= 2
    return best
