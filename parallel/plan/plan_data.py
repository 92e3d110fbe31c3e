"""A plan as data: settings, where its ranks sit, what is predicted of it, and what else there was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Cluster


@dataclass(frozen=True)
class Prediction:
    """What the models of cost and memory say of a plan: seconds of a step and its parts, bytes of each stage."""

    step_seconds: float
    tokens_per_second: float
    flops_utilization: float
    parts: Mapping[str, float]  # seconds
    memory_limit: int  # bytes of a device that a job may use
    memory: tuple[Mapping[str, int], ...]  # of each stage: component to bytes, "total" among them


@dataclass(frozen=True)
class Alternative:
    """Another plan that fits, and what it would cost."""

    settings: Settings
    step_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Variation:
    """The best plan when one figure is another: `what` times `factor`."""

    what: str
    factor: float
    step_seconds: float | None  # of the best plan then; None: none fits
    settings: Settings | None
    same: bool  # is it still this plan


@dataclass(frozen=True)
class Plan:
    """One parallel plan: `order[rank]` is the slot of a rank, `groups[dimension]` the ranks of each group."""

    model: ModelShape
    job: Job
    cluster: Cluster
    settings: Settings
    order: tuple[int, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    predicted: Prediction
    binds: tuple[tuple[str, float], ...]  # what limits the step, the first most; share of the step's time, or of memory
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    sensitivity: tuple[Variation, ...] = ()
