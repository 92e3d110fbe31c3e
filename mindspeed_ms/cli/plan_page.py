"""The page about a plan: one file of HTML that needs nothing else, with its pictures inside."""

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from mindspeed_ms.report.html import Markup, amount, bar, duration, escape, join, section, share, size, table, tag

if TYPE_CHECKING:
    from mindspeed_ms.parallel.plan.plan_data import Plan
    from mindspeed_ms.parallel.plan.planner import Made

# Events of a schedule by their letter, as kinds of the timeline.
_KINDS = {"F": "forward", "B": "backward", "W": "weight"}
# Dimensions in pictures: the two chattiest that a plan has.
_PICTURED = ("tensor", "context", "expert", "data", "pipeline")
# Words are not torn on a narrow screen: what is too wide scrolls.
_STYLE = """figure svg { max-height: none; } img { max-width: 100%; background: #fff; }
td { overflow-wrap: break-word; }
@media (max-width: 600px) {
  td:has(> .bar) { min-width: 60px; }
  .tiles { grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); }
}"""


def page(made: "Made", files: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page. `files`: names and meanings of what was written beside it."""
    plan = made.plan
    title = f"{plan.model.name} on {plan.settings.devices} devices of {plan.cluster.name}"
    body = [
        _header(plan, title),
        _tiles(plan),
        section("Why", tag("ul", join(tag("li", line) for line in plan.reasons))),
        section("One step", _parts(plan.predicted.parts), note="Seconds on the critical path of the busiest stage."),
        _timeline(made),
        _memory(plan),
        _topology(plan),
        _groups(plan),
        _ranking(made),
        _sensitivity(plan),
        section("Files", table(("file", "what"), files, 2)) if files else "",
    ]
    style = resources.files("mindspeed_ms.report").joinpath("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", title),
        f"<style>\n{style}\n{_STYLE}\n</style>",
    ]
    return '<!doctype html>\n<html lang="en">\n' + "\n".join([*head, tag("main", join(body))]) + "\n</html>\n"


def _header(plan: "Plan", title: str) -> Markup:
    from mindspeed_ms.parallel.plan.describe import describe

    job = f"{plan.job.global_batch:,} sequences of {plan.job.seq:,} tokens a step"
    return tag("header", join([tag("h1", title), tag("p", describe(plan.settings)), tag("p", job)]))


def _tiles(plan: "Plan") -> Markup:
    predicted = plan.predicted
    peak = max(stage["total"] for stage in predicted.memory)
    values = {
        "a step": duration(predicted.step_seconds),
        "tokens a second and device": amount(predicted.tokens_per_second / plan.settings.devices, 4),
        "of the peak (model operations)": share(predicted.flops_utilization),
        f"of {size(predicted.memory_limit)} on the fullest device": size(peak),
        **{f"{what} binds": share(value) for what, value in plan.binds},
    }
    return tag(
        "div", join(tag("div", join([tag("b", value), escape(name)])) for name, value in values.items()), class_="tiles"
    )


def _parts(parts: Mapping[str, float]) -> Markup:
    total = sum(parts.values())
    rows = [
        (name, bar(value / total, 0), f"{value:.4g}", share(value / total)) for name, value in parts.items() if value
    ]
    return table(("part", "", "seconds", "share"), rows, 2)


def _timeline(made: "Made") -> Markup:
    from mindspeed_ms.parallel.plan import timeline

    total = made.time.total
    bars = [
        timeline.Bar(
            event.stage,
            event.start,
            event.end,
            _KINDS.get(event.kind, event.kind),
            f"{_KINDS.get(event.kind, event.kind)} of micro-batch {event.micro_batch}"
            + (f", chunk {event.chunk}" if made.plan.settings.virtual > 1 else ""),
        )
        for event in made.time.timeline
    ]
    last = max((one.end for one in bars), default=0.0)
    bars += [
        timeline.Bar(stage, last, total, "data", "gradients and optimizer") for stage in {one.stage for one in bars}
    ]
    keys = join(
        tag("li", join([tag("span", "", class_="key", style=f"border-color:{color}"), escape(kind)]))
        for kind, color in timeline.legend(bars)
    )
    note = f"Each micro-batch on each stage; pale is waiting. {timeline.omitted(bars, total)}"
    figure = tag("figure", join([Markup(timeline.timeline(bars, total)), tag("ul", keys, class_="legend")]))
    return section("Timeline", figure, note=note.strip())


def _memory(plan: "Plan") -> Markup:
    names = [name for name in plan.predicted.memory[0] if name != "total"]
    rows = []
    seen: dict[tuple[int, ...], list[int]] = {}
    for at, stage in enumerate(plan.predicted.memory):
        seen.setdefault(tuple(stage.values()), []).append(at)
    for stages in seen.values():
        stage = plan.predicted.memory[stages[0]]
        filled = stage["total"] / plan.predicted.memory_limit
        said = str(stages[0]) if len(stages) == 1 else f"{stages[0]} to {stages[-1]}" if _run(stages) else str(stages)
        rows.append((said, bar(filled, int(filled > 1)), *(size(stage[name]) for name in names), size(stage["total"])))
    note = f"Of one device of each stage; a job may use {size(plan.predicted.memory_limit)}."
    return section("Memory", table(("stage", "", *names, "total"), rows, 2), note=note)


def _run(stages: Sequence[int]) -> bool:
    return list(stages) == list(range(stages[0], stages[-1] + 1))


def _topology(plan: "Plan") -> Markup:
    from mindspeed_ms.errors import ConfigError

    try:
        return section("Topology", *_pictures(plan), note="A device has the colour of its group.")
    except ConfigError as error:  # matplotlib is not there, or a server is too large to draw
        return section("Topology", note=f"No picture: {error}.")


def pictured(plan: "Plan") -> list[str]:
    """The dimensions that have groups, the chattiest first."""
    return [dimension for dimension in _PICTURED if getattr(plan.settings, dimension) > 1]


def _pictures(plan: "Plan") -> list[Markup]:
    from mindspeed_ms.parallel.topology.groups import Arrangement
    from mindspeed_ms.parallel.topology.plot import render

    arrangement = Arrangement(plan.order, plan.groups)
    figures = []
    for dimension in pictured(plan)[:2]:
        image = _image(render(plan.cluster, arrangement, dimension, "png"), f"{dimension} groups on the cluster")
        figures.append(tag("figure", join([tag("figcaption", f"{dimension} groups"), image])))
    if not figures:
        figures.append(tag("figure", _image(render(plan.cluster, None, form="png"), "the cluster")))
    return figures


def _image(png: bytes, said: str) -> Markup:
    # Base64 needs no escaping, and is longer than what `escape` lets through.
    return Markup(f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{escape(said)}">')


def _groups(plan: "Plan") -> Markup:
    rows = []
    for name, groups in plan.groups.items():
        if len(groups[0]) > 1:
            kinds = sorted({_slowest(plan, group) for group in groups})
            rows.append((name, ", ".join(kinds), len(groups), len(groups[0]), ", ".join(map(str, groups[0][:16]))))
    if not rows:
        return Markup("")
    note = "Ranks; the whole list is in plan.json."
    return section("Groups", table(("dimension", "slowest link", "groups", "size", "the first"), rows, 2), note=note)


def _slowest(plan: "Plan", group: Sequence[int]) -> str:
    """The kind of the slowest link from a group's first member to another."""
    first, *others = (plan.order[rank] for rank in group)
    return min((plan.cluster.link(first, other) for other in others), key=lambda link: link.bandwidth).kind


def _ranking(made: "Made") -> Markup:
    from mindspeed_ms.parallel.plan.describe import describe

    best = made.ranking.best.seconds
    rows = [
        (at, describe(one.settings), f"{one.seconds:.4g}", f"{one.seconds / best - 1:+.1%}", size(one.peak))
        for at, one in enumerate(made.ranking.candidates, 1)
    ]
    note = "The best plan of each set of degrees."
    return section("Ranking", table(("", "settings", "seconds", "slower", "memory"), rows, 2), note=note)


def _sensitivity(plan: "Plan") -> Markup:
    from mindspeed_ms.parallel.plan.describe import describe

    if not plan.sensitivity:
        return Markup("")
    rows = [
        (
            f"{one.what} × {one.factor:g}",
            "nothing fits" if one.settings is None else "the same" if one.same else describe(one.settings),
            "-" if one.step_seconds is None else f"{one.step_seconds:.4g}",
        )
        for one in plan.sensitivity
    ]
    note = "The best of the ranked plans when a figure is another."
    return section("Sensitivity", table(("if", "best plan then", "seconds"), rows, 2), note=note)
