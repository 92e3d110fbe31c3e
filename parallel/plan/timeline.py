"""The step of a pipeline as a picture (SVG): what each stage does when, with its waiting left blank."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Colours that differ in lightness as well, for readers who do not see all hues.
COLORS = {
    "forward": "#2a78d6",
    "backward": "#1baf7a",
    "weight": "#8fd6bb",
    "recompute": "#d9a400",
    "communication": "#d9622b",
    "data": "#d55181",
    "optimizer": "#7d6fd6",
}
_OTHER = "#a3a29c"
_WIDTH, _ROW, _GAP, _LEFT, _BOTTOM = 1200, 18, 4, 70, 22
_MOST_ROWS, _MOST_BARS = 16, 2500


@dataclass(frozen=True)
class Bar:
    """What a stage does from one second of a step to another."""

    stage: int
    start: float
    end: float
    kind: str  # a key of COLORS
    label: str = ""


def timeline(bars: Sequence[Bar], total: float) -> str:
    """An `<svg>` of the step; of a long one its begin and its end, of many stages a selection, and it says so.

    bars: of all stages, in seconds from the step's begin. total: seconds of the step.
    """
    if not bars or total <= 0:
        return ""
    stages = sorted({bar.stage for bar in bars})
    shown = _selection(stages)
    chosen = [bar for bar in bars if bar.stage in set(shown)]
    span = total
    while sum(bar.start < span or bar.end > total - span for bar in chosen) > _MOST_BARS and span > total / 4096:
        span /= 2
    windows = [(0.0, total)] if span >= total / 2 else [(0.0, span), (total - span, total)]
    panel = len(shown) * (_ROW + _GAP) + _BOTTOM
    parts = [_panel(chosen, shown, window, at * panel) for at, window in enumerate(windows)]
    height = panel * len(windows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="timeline of a step" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )


def legend(bars: Iterable[Bar]) -> list[tuple[str, str]]:
    """Kinds that occur and their colours, in the order of COLORS."""
    kinds = {bar.kind for bar in bars}
    known = [(kind, color) for kind, color in COLORS.items() if kind in kinds]
    return known + [(kind, _OTHER) for kind in sorted(kinds - set(COLORS))]


def omitted(bars: Sequence[Bar], total: float) -> str:
    """What the picture leaves out, as a sentence; empty when it shows all."""
    stages = sorted({bar.stage for bar in bars})
    said = []
    if len(stages) > _MOST_ROWS:
        said.append(f"{_MOST_ROWS} of {len(stages)} stages")
    if timeline(bars, total).count("<polyline") > 1:
        said.append("the begin and the end of the step")
    return f"Shown are {' and '.join(said)}." if said else ""


def _selection(stages: Sequence[int]) -> list[int]:
    if len(stages) <= _MOST_ROWS:
        return list(stages)
    return sorted({stages[round(at * (len(stages) - 1) / (_MOST_ROWS - 1))] for at in range(_MOST_ROWS)})


def _panel(bars: Sequence[Bar], stages: Sequence[int], window: tuple[float, float], top: float) -> str:
    begin, end = window
    scale = (_WIDTH - _LEFT - 10) / (end - begin)
    parts = []
    for row, stage in enumerate(stages):
        y = top + row * (_ROW + _GAP)
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 13:.1f}" text-anchor="end" fill="#777">stage {stage}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{y:.1f}" width="{_WIDTH - _LEFT - 10}" height="{_ROW}" fill="#888" opacity="0.12"/>'
        )
        for bar in bars:
            if bar.stage == stage and bar.start < end and bar.end > begin:
                parts.append(_bar(bar, max(bar.start, begin), min(bar.end, end), begin, scale, y))
    axis = top + len(stages) * (_ROW + _GAP)
    parts.append(f'<polyline points="{_LEFT},{axis} {_WIDTH - 10},{axis}" fill="none" stroke="#999"/>')
    for tick in range(6):
        second = begin + (end - begin) * tick / 5
        anchor = "start" if tick == 0 else "end" if tick == 5 else "middle"
        x = _LEFT + (second - begin) * scale
        parts.append(f'<text x="{x:.1f}" y="{axis + 14}" text-anchor="{anchor}" fill="#777">{second:.4g} s</text>')
    return "".join(parts)


def _bar(bar: Bar, start: float, end: float, begin: float, scale: float, y: float) -> str:
    said = html.escape(f"{bar.label or bar.kind}: {bar.start:.4g} to {bar.end:.4g} s")
    x, width = _LEFT + (start - begin) * scale, max((end - start) * scale - 0.4, 0.3)
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_ROW}" fill="{COLORS.get(bar.kind, _OTHER)}">'
        f"<title>{said}</title></rect>"
    )
