"""Published settings beside those that the search chooses for the same job on the same devices, by one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import memory, rules
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.describe import describe, gib
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.published_rows import Plan as Published
from mindspeed_ms.parallel.plan.published_rows import Row, excuse, plan_of
from mindspeed_ms.parallel.plan.search import Candidate, search
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.topology.cluster import Cluster

ClusterOf = Callable[[int, Published], Cluster]


@dataclass(frozen=True)
class Compared:
    """One published plan and ours. ours is None where nothing fits by the model, and `why` says so."""

    name: str
    devices: int
    published: Candidate
    published_fits: bool
    ours: Candidate | None
    why: str  # what differs, and which parts of the step that changes

    @property
    def at_least_as_fast(self) -> bool:
        """Whether ours is no slower."""
        return self.ours is not None and self.ours.seconds <= self.published.seconds * (1 + 1e-9)


def compare(rows: Iterable[Row], cluster_of: ClusterOf) -> list[Compared]:
    """Each row of a table that `published_rows.read` has read and that states a plan which can be modelled, once."""
    found: dict[tuple[object, ...], Compared] = {}
    for row in rows:
        if excuse(row):
            continue
        try:
            plan = plan_of(row)
            rules.validate(plan.shape, plan.settings, int(row["devices"]), plan.job)
        except ConfigError:
            continue
        key = (plan.shape, plan.settings, plan.job, plan.card)
        if key not in found:
            found[key] = _compare(plan, cluster_of(plan.settings.devices, plan))
    return list(found.values())


def share(compared: Iterable[Compared]) -> float:
    """The share of plans where ours is at least as fast; of none, 1."""
    flags = [one.at_least_as_fast for one in compared]
    return sum(flags) / len(flags) if flags else 1.0


def _compare(plan: Published, cluster: Cluster) -> Compared:
    devices = plan.settings.devices
    evaluator = Evaluator(plan.shape, cluster, plan.job, memory.usable(plan.card))
    theirs = Candidate(
        plan.settings,
        evaluator.time(plan.settings).total,
        memory.peak(plan.shape, plan.settings, plan.job).total,
    )
    fits = theirs.peak <= evaluator.limit
    limits = Limits(devices=devices, keep=1)
    try:
        ours = search(plan.shape, cluster, plan.job, limits, evaluator).best
    except ConfigError as error:
        return Compared(plan.name, devices, theirs, fits, None, str(error))
    why = f"{_differences(plan.settings, ours.settings)}: {_parts(theirs, ours, evaluator)}"
    if not fits:
        why += f"; the published one needs {gib(theirs.peak)} of {gib(evaluator.limit)}"
    return Compared(plan.name, devices, theirs, fits, ours, why)


def _differences(theirs: Settings, ours: Settings) -> str:
    names = (
        "data",
        "tensor",
        "pipeline",
        "context",
        "expert",
        "micro_batch",
        "zero",
        "recompute",
        "schedule",
        "virtual",
    )
    said = [
        f"{name} {getattr(theirs, name)} -> {getattr(ours, name)}"
        for name in names
        if getattr(theirs, name) != getattr(ours, name)
    ]
    return ", ".join(said) or f"{describe(theirs)} -> {describe(ours)}"


def _parts(theirs: Candidate, ours: Candidate, evaluator: Evaluator) -> str:
    """The two parts of a step that differ most, in seconds."""
    before, after = evaluator.time(theirs.settings).parts, evaluator.time(ours.settings).parts
    changes = sorted(((after[name] - before[name], name) for name in before), key=lambda one: -abs(one[0]))
    return ", ".join(f"{name} {change:+.3g} s" for change, name in changes[:2])
