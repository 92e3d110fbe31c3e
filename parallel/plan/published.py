"""Whether published plans fit the cards they ran on, by this memory model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import memory, rules
from mindspeed_ms.parallel.plan.published_rows import Plan, Row, excuse, plan_of

Verdict = Literal["fits", "too large", "not modelled"]

# Words of a row's note for which this model of memory has no term.
_UNMODELLED = {
    "swap-attention": "its activations are kept by the host (swap-attention)",
    "seq_split_num": "its pipeline runs pieces of sequences (seqpipe), of which fewer are in flight",
    "moe-zero-memory": "it recomputes within its experts (moe-zero-memory)",
    "variable-seq-lengths": "its sequences are as long as its samples, up to seq",
}


@dataclass(frozen=True)
class Judged:
    """The verdict on one row: `reason` says why it does not fit or what was assumed; empty where nothing is to say."""

    name: str
    kind: str
    verdict: Verdict
    reason: str
    memory: memory.Memory | None = None
    card: int = 0
    cap: int | None = None  # what the configuration lets the framework take: a limit, not a use


def judge(rows: Iterable[Row]) -> list[Judged]:
    """A verdict on every row of a table that `published_rows.read` has read."""
    return [_judge(row) for row in rows]


def counts(judged: Iterable[Judged]) -> tuple[int, int]:
    """How many plans fit, and how many there are that this model of memory covers."""
    plans = [one for one in judged if one.verdict != "not modelled"]
    return sum(one.verdict == "fits" for one in plans), len(plans)


@dataclass(frozen=True)
class Measured:
    """A row with a measurement of used memory, in MB of 2^20 bytes, without what lies between tensors."""

    name: str
    kind: str  # as the row has it: real or dryrun
    recompute: str
    measured: int
    fullest: float  # as predicted for the stage that needs most
    first: float  # as predicted for the first stage, whose rank 0 writes the log that is usually read

    @property
    def error(self) -> float:
        """Of the fullest stage, as a share of what was measured."""
        return self.fullest / self.measured - 1


def measured(rows: Iterable[Row]) -> list[Measured]:
    """What is predicted for the rows of whole plans whose memory was measured without fragments."""
    found = []
    for row in rows:
        match = re.match(r"(\w+): (\d+) MB without", row["published"])
        if row["kind"] != "measured-memory" or match is None or excuse(row):
            continue
        plan = plan_of(row)
        pools = [stage.pool / (1 << 20) for stage in memory.stages(plan.shape, plan.settings, plan.job)]
        kind, used = match.group(1), int(match.group(2))
        found.append(Measured(plan.name, kind, plan.settings.recompute, used, max(pools), pools[0]))
    return found


def _judge(row: Row) -> Judged:
    reason = excuse(row)
    if reason:
        return Judged(row["model"], row["kind"], "not modelled", reason)
    try:
        plan = plan_of(row)
        rules.validate(plan.shape, plan.settings, int(row["devices"]), plan.job)
    except ConfigError as error:
        return Judged(row["model"], row["kind"], "not modelled", str(error))
    return _fit(row, plan)


def _fit(row: Row, plan: Plan) -> Judged:
    """A plan that ran needs no margin: what it cannot do without must be there."""
    notes = list(plan.notes)
    if "minimum-cards" in row["kind"]:
        plan = _least(plan)
        notes.append(f"recomputation is not given; with {plan.settings.recompute}")
    needed = memory.peak(plan.shape, plan.settings, plan.job)
    room = memory.usable(plan.card)
    verdict: Verdict = "fits" if needed.needed <= room else "too large"
    if verdict == "fits" and needed.total > room:
        notes.append("with less to spare than the margin")
    if verdict == "too large":
        over = (needed.needed - room) / (1 << 30)
        notes.insert(0, f"{over:.1f} GiB above what a card of {plan.card >> 30} GiB offers")
        notes += _explain(row, plan)
        if "swap-attention" in row["note"]:
            verdict = "not modelled"
    return Judged(plan.name, row["kind"], verdict, "; ".join(notes), needed, plan.card, plan.cap)


def _explain(row: Row, plan: Plan) -> list[str]:
    """What a row says that this model has no term for, and which setting, not in the row, would make it fit."""
    reasons = [reason for word, reason in _UNMODELLED.items() if word in row["note"]]
    if row["model"].startswith("tune_") and "pack" not in row["model"]:
        reasons.append("its seq is a limit: samples for tuning that are not packed are shorter")
    settings = plan.settings
    if settings.recompute == "none":
        less = replace(settings, recompute="selective")
        if _fits(replace(plan, settings=less)):
            reasons.append("it would fit if it recomputed the activation function, of which the row says nothing")
    if settings.pipeline > 1 and settings.virtual == 1:
        layers = _balanced(plan)
        if layers and _fits(replace(plan, settings=replace(settings, layers=layers))):
            split = ",".join(map(str, layers))
            reasons.append(f"it would fit with fewer layers on its first stages, such as {split}")
    if settings.recompute != "full" or settings.recompute_layers:
        all_of_it = replace(settings, recompute="full", recompute_layers=None)
        if not reasons and _fits(replace(plan, settings=all_of_it)):
            reasons.append("it would fit if it recomputed every layer, of which the row says nothing")
    return reasons


def _balanced(plan: Plan) -> tuple[int, ...]:
    """Layers moved one by one from the fullest stage to the emptiest, while that lowers the fullest."""
    layers = [stop - first for first, stop in plan.settings.chunks(plan.shape.layers)]
    best: tuple[int, ...] = ()
    least = memory.peak(plan.shape, plan.settings, plan.job).needed
    while True:
        settings = replace(plan.settings, layers=tuple(layers))
        needs = [stage.needed for stage in memory.stages(plan.shape, settings, plan.job)]
        if max(needs) <= least:
            best, least = tuple(layers), max(needs)
        elif best:
            return best
        full, empty = needs.index(max(needs)), needs.index(min(needs))
        if full == empty or layers[full] == 1 or sum(layers) > 10_000:
            return best
        layers[full] -= 1
        layers[empty] += 1
        if tuple(layers) == best:
            return best


def _fits(plan: Plan) -> bool:
    return memory.peak(plan.shape, plan.settings, plan.job).needed <= memory.usable(plan.card)


def _least(plan: Plan) -> Plan:
    """The plan with as little recomputation as makes it fit; all of it where nothing does."""
    for recompute in ("none", "selective", "full"):
        tried = replace(plan, settings=replace(plan.settings, recompute=recompute))
        if _fits(tried):
            break
    return tried
