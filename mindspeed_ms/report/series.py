"""Many numbers as few: means over windows, the extremes of stretches, and the ticks of an axis."""

from __future__ import annotations

import math

import numpy as np

_MAX_WINDOW = 500


def window(steps: int) -> int:
    """Over how many steps a curve of so many is smoothed: a fiftieth, at most 500; of few steps a tenth, at most 10."""
    return max(1, min(steps // 10, 10), min(steps // 50, _MAX_WINDOW))


def moving_mean(values: np.ndarray, weights: np.ndarray, width: int) -> np.ndarray:
    """The weighted mean of each value and the `width` - 1 before it, leaving out what is not finite; float64 [n]."""
    if not len(values):  # which NumPy will not convolve
        return np.empty(0)
    good = np.isfinite(values) & np.isfinite(weights) & (weights > 0)
    weights = np.where(good, weights, 0.0)
    # No running sum: one huge value would take the digits of all that come after it.
    kernel = np.ones(width)
    sums = np.convolve(np.where(good, values, 0.0) * weights, kernel)[: len(values)]
    totals = np.convolve(weights, kernel)[: len(values)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.convolve(good, kernel)[: len(values)] > 0.5, sums / totals, np.nan)


def extremes(x: np.ndarray, y: np.ndarray, stretches: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest point of each of so many equal stretches of x, in their order; finite ones only.

    x: ascending [n]. Up to 2 x `stretches` points; fewer are returned as they are. The ends of the curve stay.
    """
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good], y[good]
    if len(x) <= 2 * stretches:
        return x, y
    place = np.minimum((x - x[0]) / (x[-1] - x[0]) * stretches, stretches - 1).astype(np.int64)
    order = np.lexsort((y, place))
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    last = np.append(first[1:], len(x)) - 1
    keep = np.unique(np.concatenate([order[first], order[last], [0, len(x) - 1]]))
    return x[keep], y[keep]


def bounds(values: np.ndarray) -> tuple[float, float]:
    """From where to where an axis has to reach: over all values, or, if few would squeeze the rest, over the others."""
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    first, last = (float(value) for value in np.quantile(values, [0.01, 0.99]))
    spread = last - first
    if high - last > 3 * spread > 0:
        high = last + 0.5 * spread
    if first - low > 3 * spread > 0:
        low = first - 0.5 * spread
    if low == high:
        return (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    return low, high


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / max(count, 1)
    if not (math.isfinite(rough) and rough > 0 and rough > max(abs(low), abs(high)) * 1e-12):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(at * step, 12 - math.floor(math.log10(step))) for at in _whole(low / step, high / step)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, and their 2 and 5 times where there are few; both above 0."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(powers) // 6)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    found = [factor * 10.0**power for power in powers if power % every == 0 for factor in factors]
    return [tick for tick in found if low <= tick <= high] or [low]


def _whole(low: float, high: float) -> range:
    return range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
