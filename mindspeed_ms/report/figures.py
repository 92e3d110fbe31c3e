"""What is counted of a run: the few numbers that say how it went, and where its time went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspeed_ms.report.html import amount, duration, share, size
from mindspeed_ms.report.read import Run, number
from mindspeed_ms.report.series import moving_mean

_SHAPES = {"amount": amount, "loss": amount, "share": share, "size": size, "duration": duration}


@dataclass(frozen=True)
class Figure:
    """One number of a run. better: -1 if less of it is better, 1 if more, 0 if neither."""

    key: str  # for programs
    name: str  # for people
    value: float
    kind: str  # amount, loss, share, size, duration
    better: int = 0

    def text(self) -> str:
        """As a person reads it."""
        return _SHAPES[self.kind](self.value)


def figures(run: Run, smooth: int) -> list[Figure]:
    """The numbers that sum a run up; NaN where nothing is known. smooth: steps that the last loss is a mean of."""
    steps = run.steps
    seconds = steps["step_seconds"] + np.nan_to_num(steps["wait_seconds"])
    usual = ~np.isin(steps["step"], run.of("compile")[0])  # a step that compiles says nothing of speed
    _, evaluation = run.of("eval", "loss")
    loss = moving_mean(steps["loss"], steps["tokens"], smooth)
    compiled = run.of("compile", "seconds")[1]
    return [
        Figure("steps", "steps", _last(steps["step"]), "amount"),
        Figure(
            "train_loss",
            f"training loss, mean of {smooth} steps" if smooth > 1 else "training loss",
            _last(loss),
            "loss",
            -1,
        ),
        Figure("eval_loss", "held-out loss, last", _last(evaluation), "loss", -1),
        Figure("best_eval_loss", "held-out loss, best", _least(evaluation), "loss", -1),
        Figure("perplexity", "held-out perplexity, last", _last(run.of("eval", "perplexity")[1]), "amount", -1),
        Figure("tokens", "tokens learnt from", _sum(steps["data_tokens"]), "amount"),
        Figure(
            "tokens_per_second",
            "tokens a second, median",
            _median((steps["data_tokens"] / seconds)[usual]),
            "amount",
            1,
        ),
        Figure("step_seconds", "seconds a step, median", _median(steps["step_seconds"][usual]), "duration", -1),
        Figure(
            "wait_share", "share of waiting for data", _part(steps["wait_seconds"][usual], seconds[usual]), "share", -1
        ),
        Figure("padding_share", "share of padding", 1 - _part(steps["data_tokens"], steps["places"]), "share", -1),
        Figure("peak_rss_bytes", "resident memory, highest", _highest(steps["rss_bytes"]), "size", -1),
        Figure("highest_grad_norm", "gradient norm, highest", _highest(steps["grad_norm"]), "amount"),
        Figure("clipped", "steps clipped", _sum(steps["clipped"]), "amount"),
        Figure("skipped", "steps skipped", _sum(steps["skipped"]), "amount", -1),
        Figure("compilations", "graphs compiled", float(len(compiled)), "amount", -1),
        Figure("compile_seconds", "time of compilations", _sum(compiled), "duration", -1),
        Figure("seconds", "time in all", run.seconds, "duration", -1),
    ]


def state(run: Run) -> str:
    """How the run stands, in a few words."""
    total = number(run.config("run", "steps"))
    done = _last(run.steps["step"])
    of = f" of {total:,.0f}" if math.isfinite(total) else ""
    where = f"{done:,.0f}{of} steps" if math.isfinite(done) else "before its first step"
    if run.end is None:
        return f"running, or killed: {where}"
    return f"{run.end[:200]}: {where}"


def phase_seconds(run: Run) -> dict[str, float]:
    """Where the time of a run's processes went; what no line accounts for is `other`."""
    compiled = _sum(run.of("compile", "seconds")[1])
    spent = {
        "steps": max(0.0, _sum(run.steps["step_seconds"]) - compiled),
        "compilation": compiled,
        "waiting for data": _sum(run.steps["wait_seconds"]),
        "evaluation": _sum(run.of("eval", "seconds")[1]),
        "samples": _sum(run.of("sample", "seconds")[1]),
        "checkpoints": _sum(seconds_blocked(run)),
    }
    spent["other"] = max(0.0, run.seconds - sum(spent.values()))
    return spent


def seconds_blocked(run: Run) -> np.ndarray:
    """How long the run waited for each checkpoint: for all of one that was not made in the background."""
    _, seconds, blocked = run.of("checkpoint", "seconds", "blocked")
    return otherwise(blocked, seconds)


def written_share(run: Run) -> float:
    """What was written for the last checkpoint, as a share of its tensors' bytes; NaN where that is not known."""
    _, written, raw = (column[-1:] for column in run.of("checkpoint", "bytes", "raw_bytes"))
    return float(written[0] / raw[0]) if len(raw) and raw[0] > 0 else math.nan


def otherwise(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Values, and where they say nothing the others."""
    return np.where(np.isnan(values), others, values)


def operator_seconds(run: Run) -> dict[str, tuple[float, float]]:
    """Seconds and calls of each native operator over the run, the longest first."""
    sums: dict[str, tuple[float, float]] = {}
    for line in run.lines.get("operators", []):
        given = line.get("operators")
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if isinstance(value, list) and len(value) == 2:
                seconds, calls = (number(part) for part in value)
                if 0 <= seconds < math.inf and 0 <= calls < math.inf:
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = (before[0] + seconds, before[1] + calls)
    return dict(sorted(sums.items(), key=lambda entry: -entry[1][0]))


def by_length(run: Run) -> dict[int, dict[str, float]]:
    """For each length of rows: rows, tokens, places, and the median seconds of steps that had it as their longest."""
    usual = ~np.isin(run.steps["step"], run.of("compile")[0])
    found = {}
    for length in sorted(run.buckets):
        rows, tokens, places, steps = run.buckets[length]
        mine = usual & (run.steps["length"] == length)
        seconds = _median(run.steps["step_seconds"][mine])
        found[length] = {"rows": rows, "tokens": tokens, "places": places, "steps": steps, "seconds": seconds}
    return found


def flat(mapping: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys and plain values."""
    if not isinstance(mapping, Mapping) or not mapping:
        return {prefix: mapping} if prefix else {}
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found.update(flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return found


def _sum(values: np.ndarray) -> float:
    """Of what can be added up: nothing that is not finite, and nothing below 0."""
    return float(values[np.isfinite(values) & (values > 0)].sum())


def _last(values: np.ndarray) -> float:
    return float(values[-1]) if len(values) else math.nan


def _least(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(values.min()) if len(values) else math.nan


def _highest(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.max()) if len(values) else math.nan


def _median(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def _part(values: np.ndarray, whole: np.ndarray) -> float:
    known = np.isfinite(values) & np.isfinite(whole)
    total = float(whole[known].sum())
    return float(values[known].sum()) / total if total > 0 else math.nan
