"""Columns and stacked bars as SVG: how rows are spread over lengths, and where the time of a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindspeed_ms.report.chart import HEIGHT, WIDTH
from mindspeed_ms.report.html import Markup, duration, escape, join, share, tag
from mindspeed_ms.report.series import ticks

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 26, 12, 38
_MOST_COLUMNS = 40


def columns(title: str, names: Sequence[str], groups: Sequence[Sequence[tuple[float, float]]], note: str) -> Markup:
    """A column a name and a group (a run): a solid part, and above it a pale one; heights are shares of a group's sum.

    groups: for each run (solid, pale) by name. note: what the parts are.
    """
    caption = tag("figcaption", title)
    totals = [sum(solid + pale for solid, pale in group) for group in groups]
    if not any(totals) or len(names) > _MOST_COLUMNS:
        why = "nothing to show yet" if not any(totals) else f"{len(names)} lengths: see the table"
        return tag("figure", join([caption, tag("p", why, class_="note")]))
    shares = [
        [(solid / (total or 1), pale / (total or 1)) for solid, pale in group]
        for group, total in zip(groups, totals, strict=True)
    ]
    highest = max(solid + pale for group in shares for solid, pale in group) * 1.05
    height, wide = HEIGHT - _TOP - _BOTTOM, (WIDTH - _LEFT - _RIGHT) / max(len(names), 4)
    parts = []
    for tick in ticks(0, highest, 5):
        y = HEIGHT - _BOTTOM - tick / highest * height
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="left" x="{_LEFT - 7}" y="{y + 4:.1f}">{100 * tick:.3g}%</text>')
    one = wide * 0.7 / len(groups)
    every = -(-len(names) // 12)
    for at, name in enumerate(names):
        begin = _LEFT + wide * (at + 0.15)
        if at % every == 0:
            parts.append(f'<text class="below" x="{begin + wide * 0.35:.1f}" y="{HEIGHT - 22}">{escape(name)}</text>')
        for run, group in enumerate(shares):
            solid, pale = (part / highest * height for part in group[at])
            x, bottom = begin + one * run, HEIGHT - _BOTTOM
            said = f"{name}: {share(group[at][0])} and {share(group[at][1])}"
            rectangles = [
                f'<rect class="{kind}run{run}" x="{x:.1f}" y="{y:.1f}" width="{one - 1.5:.1f}" height="{part:.1f}"/>'
                for kind, y, part in (("", bottom - solid, solid), ("pale ", bottom - solid - pale, max(pale - 1, 0)))
            ]
            parts.append(tag("g", join([tag("title", said), *rectangles])))
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="below name" x="{middle}" y="{HEIGHT - 5}">tokens of a row</text>')
    svg = tag("svg", join(parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)
    return tag("figure", join([caption, tag("p", note, class_="note"), svg]))


def phases(runs: Sequence[tuple[str, Mapping[str, float]]]) -> Markup:
    """Seconds by phase of each run, as one bar a run and their legend with figures."""
    names = list(dict.fromkeys(name for _, spent in runs for name in spent))
    parts = []
    for title, spent in runs:
        total = sum(spent.values())
        pieces = [
            tag("div", title=f"{name}: {duration(seconds)}", class_=f"phase{at}", style=f"flex:{seconds / total:.4f}")
            for at, name in enumerate(names)
            if (seconds := spent.get(name, 0.0)) > 0 and total > 0
        ]
        entries = [
            tag(
                "li",
                join([tag("i", class_=f"key phase{at}"), escape(f"{name} {duration(spent[name])}"), _of(spent, name)]),
            )
            for at, name in enumerate(names)
            if spent.get(name, 0.0) > 0
        ]
        parts += [tag("h3", f"{title}: {duration(total)}"), tag("div", join(pieces), class_="stack")]
        parts.append(tag("ul", join(entries), class_="legend"))
    return tag("figure", join(parts))


def _of(spent: Mapping[str, float], name: str) -> Markup:
    return escape(f" ({share(spent[name] / sum(spent.values()))})")
