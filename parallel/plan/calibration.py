"""Fits the shares of the peak to published throughputs, and says how far each run is from the fit.

One number is fitted, the share of the peak that matmuls and flash attention reach: with a number for each, the error
hardly falls and attention's comes out above what hardware does, so the runs do not tell the two apart. The share of the
memory bandwidth is taken as given, since no run is bound by memory. `left_out` is the honest error: each run predicted
by a fit to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.step_time import step_time
from mindspeed_ms.parallel.plan.throughputs import Run
from mindspeed_ms.parallel.topology.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


@dataclass(frozen=True)
class Residual:
    """One run: what was published, and predicted / published with the fit to all and to the others, minus 1."""

    name: str
    published: float
    fitted: float
    left_out: float


@dataclass(frozen=True)
class Calibration:
    """The fit, its residuals in the order of the runs, and the root mean square of both kinds."""

    efficiency: Efficiency
    residuals: tuple[Residual, ...]

    def error(self, left_out: bool = True) -> float:
        """Root mean square of log(predicted / published)."""
        values = [math.log1p(item.left_out if left_out else item.fitted) for item in self.residuals]
        return math.sqrt(sum(value * value for value in values) / len(values))


def predict(run: Run, cluster_of: ClusterOf, rate: Efficiency) -> float:
    """Tokens a second of each device that the model gives for a run; `cluster_of(devices)` is where it ran."""
    settings = run.settings
    found = step_time(run.shape, settings, cluster_of(settings.devices), run.job, rate=rate)
    return found.tokens_per_second / settings.devices


def _rate(share: float, memory: float, source: str = "") -> Efficiency:
    return Efficiency(share, share, memory, source)


def _loss(runs: Sequence[Run], cluster_of: ClusterOf, memory: float, share: float) -> float:
    rate = _rate(share, memory)
    logs = [math.log(predict(run, cluster_of, rate) / run.tokens_per_second) for run in runs]
    return sum(value * value for value in logs)


def _smallest(loss: Callable[[float], float], low: float, high: float) -> float:
    """Golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    while high - low > 1e-3:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    return (low + high) / 2


def _fit(runs: Sequence[Run], cluster_of: ClusterOf, memory: float) -> Efficiency:
    share = _smallest(partial(_loss, runs, cluster_of, memory), 0.05, 1.0)
    return _rate(share, memory, f"fitted to {len(runs)} published throughputs")


def calibrate(runs: Sequence[Run], cluster_of: ClusterOf, memory: float) -> Calibration:
    """Fit to the runs; `memory` is the share of the memory bandwidth. Raises ConfigError for less than two runs."""
    if len(runs) < 2:
        raise ConfigError(f"{len(runs)} throughputs: to leave one out there have to be two or more")
    fit = _fit(runs, cluster_of, memory)
    residuals = []
    for index, run in enumerate(runs):
        without = _fit([*runs[:index], *runs[index + 1 :]], cluster_of, memory)
        fitted, left_out = (predict(run, cluster_of, rate) / run.tokens_per_second - 1 for rate in (fit, without))
        residuals.append(Residual(run.shape.name, run.tokens_per_second, fitted, left_out))
    return Calibration(fit, tuple(residuals))
