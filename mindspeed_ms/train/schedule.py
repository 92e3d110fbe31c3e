"""Learning rates by step: linear warmup, then constant, linear, cosine or warmup-stable-decay.

A step is counted from 0, and the first step of a warmup has the rate 0: the rates are those of the schedulers of the
same names in Hugging Face's transformers. Warmup-stable-decay: Hu et al., 2024 (MiniCPM); the shapes of its decay:
Hägele et al., 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mindspeed_ms.config.train import ScheduleConfig


@dataclass(frozen=True)
class Schedule:
    """step -> learning rate.

    peak: the rate after the warmup. warmup: steps of it. decay_start, decay_end: steps at which the decay begins and
    has come to peak * min_ratio, where the rate then stays; equal ones mean no decay.
    """

    peak: float
    warmup: int
    decay_start: int
    decay_end: int
    shape: Literal["linear", "cosine", "sqrt"] = "linear"
    min_ratio: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * step / self.warmup
        if step < self.decay_start or self.decay_start == self.decay_end:
            return self.peak
        done = min((step - self.decay_start) / (self.decay_end - self.decay_start), 1.0)
        if self.shape == "linear":
            left = 1 - done
        elif self.shape == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * done))
        else:
            left = 1 - math.sqrt(done)
        return self.peak * (self.min_ratio + (1 - self.min_ratio) * left)


def make_schedule(config: ScheduleConfig, learning_rate: float, steps: int) -> Schedule:
    """The schedule of a run of `steps` steps; ScheduleConfig says what is left out."""
    warmup = config.warmup_steps
    if config.name == "constant":
        return Schedule(learning_rate, warmup, warmup, warmup)
    ratio = config.min_ratio or 0.0
    if config.name == "wsd":
        length = config.decay_steps or max(1, steps // 10)
        start = max(warmup, steps - length)
        return Schedule(learning_rate, warmup, start, start + length, config.decay or "linear", ratio)
    length = config.decay_steps or max(1, steps - warmup)
    return Schedule(learning_rate, warmup, warmup, warmup + length, config.name, ratio)
