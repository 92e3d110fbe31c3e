"""Whether the best plan stays the best when links, memory or the devices' speed are a fifth more or less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.fit import fitted
from mindspeed_ms.parallel.plan.plan_data import Variation
from mindspeed_ms.parallel.plan.search import Candidate, Ranking, timed
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.topology.cluster import SELF, Cluster

FACTORS = (0.8, 1.2)


def sensitivity(ranking: Ranking, evaluator: Evaluator, limits: Limits) -> tuple[Variation, ...]:
    """For each figure, lower and higher, the best of the ranked plans then; ZeRO and recomputation are chosen anew.

    Degrees, micro-batch, schedule and layers are those of the ranked plans: nothing is searched again.
    """
    return tuple(_variation(what, factor, varied, ranking, limits) for what, factor, varied in _varied(evaluator))


def _variation(what: str, factor: float, evaluator: Evaluator, ranking: Ranking, limits: Limits) -> Variation:
    found = [one for candidate in ranking.candidates for one in _anew(candidate.settings, evaluator, limits)]
    if not found:
        return Variation(what, factor, None, None, False)
    best = min(found, key=lambda one: one.order)
    return Variation(what, factor, best.seconds, best.settings, best.settings == ranking.best.settings)


def _anew(settings: Settings, evaluator: Evaluator, limits: Limits) -> Iterator[Candidate]:
    plain = replace(settings, zero=0, recompute="none", recompute_layers=None)
    for fits in fitted(plain, evaluator, limits):
        yield timed(fits, evaluator)


def _varied(evaluator: Evaluator) -> Iterator[tuple[str, float, Evaluator]]:
    cluster = evaluator.cluster
    for kind in kinds(cluster):
        for factor in FACTORS:
            link = cluster.links[kind]
            links = {**cluster.links, kind: replace(link, bandwidth=link.bandwidth * factor)}
            yield f"bandwidth of {kind}", factor, evaluator.varied(cluster=replace(cluster, links=links))
    for factor in FACTORS:
        yield "memory", factor, evaluator.varied(memory_limit=int(evaluator.limit * factor))
    for factor in FACTORS:
        yield "speed of computation", factor, evaluator.varied(efficiency=factor)


def kinds(cluster: Cluster) -> list[str]:
    """The kinds of link that occur in a cluster."""
    seen = {id(server.kinds): server.kinds for server in cluster.servers}
    found = {word for rows in seen.values() for row in rows for word in row} - {SELF}
    if cluster.pods and cluster.within_pod:
        found.add(cluster.within_pod)
    if len(cluster.servers) > 1:
        found.add(cluster.between)
    return [kind for kind in cluster.links if kind in found]
