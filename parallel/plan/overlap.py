"""What of a gradient reduction hides behind the backward pass: layers finish one by one, buckets of them are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Seconds of communication after the last layer is done, and of all of it; layers in each bucket."""

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
