"""From a model, a cluster and a job to one plan with its alternatives, its reasons and its sensitivity."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.explain import binds, reasons
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.plan_data import Alternative, Plan, Prediction
from mindspeed_ms.parallel.plan.search import Ranking, search
from mindspeed_ms.parallel.plan.sensitivity import sensitivity
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import StepTime
from mindspeed_ms.parallel.topology.cluster import Cluster


@dataclass(frozen=True)
class Made:
    """A plan, how it was found, and its step."""

    plan: Plan
    ranking: Ranking
    time: StepTime


def make_plan(
    shape: ModelShape, cluster: Cluster, job: Job, limits: Limits | None = None, *, vary: bool = True
) -> Made:
    """Search, and say why. vary: look at what changes when links, memory or speed are others.

    Raises ConfigError as `search` does.
    """
    limits = limits or Limits()
    evaluator = Evaluator(shape, cluster, job, limits.memory)
    ranking = search(shape, cluster, job, limits, evaluator)
    settings = ranking.best.settings
    time = evaluator.time(settings)
    arranged = evaluator.arrangement(settings)
    plan = Plan(
        model=shape,
        job=job,
        cluster=cluster,
        settings=settings,
        order=tuple(arranged.order),
        groups=dict(arranged.groups),
        predicted=predict(settings, evaluator),
        binds=binds(ranking, evaluator, limits),
        reasons=reasons(ranking, evaluator, limits),
        alternatives=tuple(Alternative(one.settings, one.seconds, one.peak) for one in ranking.candidates[1:]),
        sensitivity=sensitivity(ranking, evaluator, limits) if vary else (),
    )
    return Made(plan, ranking, time)


def predict(settings: Settings, evaluator: Evaluator) -> Prediction:
    """What the models say of settings."""
    time = evaluator.time(settings)
    stages = tuple({**asdict(memory), "total": memory.total} for memory in evaluator.memory(settings))
    return Prediction(
        step_seconds=time.total,
        tokens_per_second=time.tokens_per_second,
        flops_utilization=time.flops_utilization,
        parts=time.parts,
        memory_limit=evaluator.limit,
        memory=stages,
    )
