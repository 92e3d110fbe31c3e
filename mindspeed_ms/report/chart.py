"""Curves over the steps of a run as SVG, readable without a script; the page's script adds what a pointer shows."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindspeed_ms.report.html import Markup, amount, escape, join, tag
from mindspeed_ms.report.series import bounds, extremes, log_ticks, ticks

WIDTH, HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 26, 12, 38
_STRETCHES = 300  # of a curve: nobody sees more than two of its points a pixel or two


@dataclass(frozen=True)
class Curve:
    """One curve of a run: `style` is line, faint or points (a line with a dot at each)."""

    label: str
    x: np.ndarray  # ascending [n]
    y: np.ndarray  # [n]
    run: int  # 0 or 1: its colour
    style: str = "line"


@dataclass(frozen=True)
class Marks:
    """Moments on the x axis: `style` is clip or skip."""

    label: str
    x: np.ndarray
    style: str


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str = "step",
    log: bool = False,
    marks: Sequence[Marks] = (),
    level: tuple[float, str] | None = None,
) -> Markup:
    """A figure of curves over one axis, or that there is nothing to show.

    log: a logarithmic axis, if the values are positive and far apart. level: a height to mark, and its name.
    """
    shown = [(curve, *extremes(curve.x, curve.y, _STRETCHES)) for curve in curves]
    shown = [entry for entry in shown if len(entry[1])]
    caption = tag("figcaption", title)
    if not shown:
        return tag("figure", join([caption, tag("p", "nothing to show yet", class_="note")]))
    axes = _Axes(shown, log)
    parts = [axes.grid(), axes.ends(x_label)]
    if level is not None and axes.y0 <= axes.place(level[0]) <= axes.y1:
        parts.append(axes.level(*level))
    parts += [axes.marks(entry) for entry in marks if len(entry.x)]
    parts += [axes.curve(curve, x, y) for curve, x, y in shown]
    svg = tag(
        "svg",
        join(parts),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
        data_plot=axes.data(shown, x_label),
    )
    legend = _legend([entry[0] for entry in shown], [entry for entry in marks if len(entry.x)])
    return tag("figure", join([caption, legend, svg, axes.outside(shown)]))


class _Axes:
    """Where values are on the picture."""

    def __init__(self, shown: Sequence[tuple[Curve, np.ndarray, np.ndarray]], log: bool) -> None:
        self.x0 = min(float(x[0]) for _, x, _ in shown)
        self.x1 = max(float(x[-1]) for _, x, _ in shown)
        if self.x0 == self.x1:
            self.x0, self.x1 = self.x0 - 1, self.x1 + 1
        values = np.concatenate([y for _, _, y in shown])
        self.log = log and bool((values > 0).all()) and _far_apart(values)
        self.y0, self.y1 = bounds(np.log10(values) if self.log else values)
        edge = (self.y1 - self.y0) * 0.04
        self.y0, self.y1 = self.y0 - (0 if not self.log and 0 <= self.y0 < edge else edge), self.y1 + edge

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def at_x(self, x: np.ndarray) -> np.ndarray:
        return _LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - _LEFT - _RIGHT)

    def at_y(self, y: np.ndarray) -> np.ndarray:
        """Values beyond an end are at that end."""
        placed = np.clip(np.log10(y) if self.log else y, self.y0, self.y1)
        return HEIGHT - _BOTTOM - (placed - self.y0) / (self.y1 - self.y0) * (HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Markup:
        found = log_ticks(10**self.y0, 10**self.y1) if self.log else ticks(self.y0, self.y1, 5)
        parts = []
        for value, y in zip(found, self.at_y(np.array(found)), strict=True):
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="left" x="{_LEFT - 7}" y="{y + 4:.1f}">{_short(value)}</text>')
        return join(parts)

    def ends(self, x_label: str) -> Markup:
        found = ticks(self.x0, self.x1, 7)
        y = HEIGHT - _BOTTOM
        parts = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>']
        for value, x in zip(found, self.at_x(np.array(found)), strict=True):
            parts.append(f'<text class="below" x="{x:.1f}" y="{y + 16}">{_short(value)}</text>')
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        return join([*parts, f'<text class="below name" x="{middle}" y="{HEIGHT - 5}">{escape(x_label)}</text>'])

    def level(self, value: float, name: str) -> Markup:
        y = float(self.at_y(np.array(value)))
        line = f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        return join([line, f'<text class="left" x="{WIDTH - _RIGHT - 2}" y="{y - 4:.1f}">{escape(name)}</text>'])

    def marks(self, entry: Marks) -> Markup:
        inside = entry.x[(entry.x >= self.x0) & (entry.x <= self.x1)]
        top, bottom = (_TOP, HEIGHT - _BOTTOM) if entry.style == "skip" else (HEIGHT - _BOTTOM - 7, HEIGHT - _BOTTOM)
        path = "".join(f"M{x:.1f} {top}V{bottom}" for x in np.unique(np.round(self.at_x(inside), 1)))
        return Markup(f'<path class="{entry.style}" d="{path}"/>')

    def curve(self, curve: Curve, x: np.ndarray, y: np.ndarray) -> Markup:
        points = list(zip(self.at_x(x), self.at_y(y), strict=True))
        path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in points)
        parts = [f'<path class="curve {curve.style} run{curve.run}" d="{path}"/>']
        if curve.style == "points" or len(points) == 1:
            parts += [
                f'<circle class="dot run{curve.run}" cx="{left:.1f}" cy="{top:.1f}" r="3.5"/>' for left, top in points
            ]
        return join(parts)

    def outside(self, shown: Sequence[tuple[Curve, np.ndarray, np.ndarray]]) -> Markup:
        # A mean is of values that are drawn as well.
        faint = [curve for curve, _, _ in shown if curve.style == "faint"]
        values = np.concatenate([curve.y for curve in faint or [curve for curve, _, _ in shown]])
        lost = int((~np.isfinite(values)).sum())
        values = values[np.isfinite(values)]
        placed = np.log10(values) if self.log else values
        beyond = int(((placed < self.y0) | (placed > self.y1)).sum())
        said = [f"beyond the ends of the axis, drawn there: {beyond:,}"] if beyond else []
        said += [f"not finite, not drawn: {lost:,}"] if lost else []
        return tag("p", "; ".join(said), class_="note") if said else Markup("")

    def data(self, shown: Sequence[tuple[Curve, np.ndarray, np.ndarray]], x_label: str) -> Markup:
        """What the page's script needs to say what is below a pointer."""
        plot = {
            "x": [self.x0, self.x1],
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "top": _TOP,
            "bottom": HEIGHT - _BOTTOM,
            "name": x_label,
            "curves": [
                {
                    "label": curve.label,
                    "run": curve.run,
                    "x": [round(float(value), 3) for value in x],
                    "y": [float(f"{value:.5g}") for value in y],
                    "at": [round(float(value), 1) for value in self.at_y(y)],
                }
                for curve, x, y in shown
            ],
        }
        return Markup(html.escape(json.dumps(plot, separators=(",", ":"))))


def _legend(curves: Sequence[Curve], marks: Sequence[Marks]) -> Markup:
    entries = [_entry(f"key {curve.style} run{curve.run}", curve.label) for curve in curves]
    seen = {entry.style: entry.label for entry in marks}
    entries += [_entry(f"key {style}", label) for style, label in seen.items()]
    return tag("ul", join(entries), class_="legend") if len(entries) > 1 else Markup("")


def _entry(kind: str, label: str) -> Markup:
    return tag("li", join([tag("i", class_=kind), escape(label)]))


def _far_apart(values: np.ndarray) -> bool:
    low, high = np.quantile(values, [0.01, 0.99])
    return bool(high > 30 * low)


def _short(value: float) -> str:
    """What fits beside an axis: 12k, 3.4M, 2e-05."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.4g}{unit}" if abs(scaled) < 1e6 else f"{value:.0e}"
    return f"{value:.0e}" if value and abs(value) < 1e-4 else amount(value)
