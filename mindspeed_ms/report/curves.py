"""The curves of one or two runs over their steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindspeed_ms.report.chart import Curve, Marks, line_chart
from mindspeed_ms.report.html import Markup, join, tag
from mindspeed_ms.report.read import Run, number
from mindspeed_ms.report.series import moving_mean


def curves(runs: Sequence[Run], names: Sequence[str], smooth: int) -> Markup:
    """All charts. names: before the names of a run's curves, to tell runs apart. smooth: steps of a moving mean."""
    skipped = [Marks("skipped", _where(run, "skipped"), "skip") for run in runs]
    clipped = [Marks("clipped", _where(run, "clipped"), "clip") for run in runs]
    limit = number(runs[0].config("step", "max_grad_norm"))
    level = (limit, f"clipped above {limit:g}") if len(runs) == 1 and limit > 0 else None
    charts = [
        line_chart("Loss", _losses(runs, names, smooth), marks=skipped),
        line_chart(
            "Gradient norm, before clipping",
            _plain(runs, names, "grad_norm", "norm"),
            log=True,
            marks=[*clipped, *skipped],
            level=level,
        ),
        line_chart("Learning rate", _plain(runs, names, "learning_rate", "learning rate")),
        line_chart("Tokens a second, without padding", _smoothed(runs, names, "tokens_per_second", smooth)),
        line_chart("Seconds a step", _smoothed(runs, names, "step_seconds", smooth), log=True),
        line_chart("Resident memory, GiB", _plain(runs, names, "rss_bytes", "memory", 1 / (1 << 30))),
    ]
    if len(runs) > 1:
        charts.insert(1, line_chart("Loss by time of training", _losses_by_time(runs, names, smooth), "minutes"))
    if any(_varies(run.steps["loss_scale"]) for run in runs):
        charts.append(line_chart("Loss scale", _plain(runs, names, "loss_scale", "loss scale"), log=True))
    return tag("div", join(charts), class_="grid")


def _losses(runs: Sequence[Run], names: Sequence[str], smooth: int) -> list[Curve]:
    found = _smoothed(runs, names, "loss", smooth)
    for at, run in enumerate(runs):
        when, held_out = run.of("eval", "loss")
        found.append(Curve(f"{names[at]}held out", when, held_out, at, "points"))
    return found


def _losses_by_time(runs: Sequence[Run], names: Sequence[str], smooth: int) -> list[Curve]:
    """Time of steps and of waiting, without evaluations and pauses."""
    found = []
    for at, run in enumerate(runs):
        steps = run.steps
        minutes = np.cumsum(np.nan_to_num(steps["step_seconds"]) + np.nan_to_num(steps["wait_seconds"])) / 60
        loss = moving_mean(steps["loss"], steps["tokens"], smooth)
        found.append(Curve(f"{names[at]}loss, mean of {smooth}", minutes, loss, at))
        when, held_out = run.of("eval", "loss")
        if len(minutes):
            found.append(Curve(f"{names[at]}held out", np.interp(when, steps["step"], minutes), held_out, at, "points"))
    return found


def _smoothed(runs: Sequence[Run], names: Sequence[str], column: str, smooth: int) -> list[Curve]:
    """The values themselves, faintly, and their moving mean: of losses by their tokens, else without compilations."""
    found = []
    for at, run in enumerate(runs):
        steps, values = run.steps["step"], run.steps[column]
        if smooth == 1:
            found.append(Curve(f"{names[at]}each step", steps, values, at))
            continue
        weights = run.steps["tokens"] if column == "loss" else (~np.isin(steps, run.of("compile")[0])).astype(float)
        found.append(Curve(f"{names[at]}each step", steps, values, at, "faint"))
        found.append(Curve(f"{names[at]}mean of {smooth}", steps, moving_mean(values, weights, smooth), at))
    return found


def _plain(runs: Sequence[Run], names: Sequence[str], column: str, label: str, factor: float = 1.0) -> list[Curve]:
    return [
        Curve(f"{names[at]}{label}", run.steps["step"], run.steps[column] * factor, at) for at, run in enumerate(runs)
    ]


def _where(run: Run, column: str) -> np.ndarray:
    return run.steps["step"][run.steps[column] > 0]


def _varies(values: np.ndarray) -> bool:
    values = values[~np.isnan(values)]
    return len(values) > 0 and not math.isclose(float(values.min()), float(values.max()))
