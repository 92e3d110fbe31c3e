"""The tables of a page: what two runs differ in, where time went, what was skipped, what the model says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mindspeed_ms.report import bars
from mindspeed_ms.report.figures import (
    Figure,
    by_length,
    figures,
    flat,
    operator_seconds,
    otherwise,
    phase_seconds,
    seconds_blocked,
    written_share,
)
from mindspeed_ms.report.html import Markup, amount, bar, duration, escape, join, section, share, size, table, tag
from mindspeed_ms.report.read import Run, number

_MOST_ROWS = 200  # of a table about single steps
_MOST_SAMPLES = 40


def summary(runs: Sequence[Run], names: Sequence[str], smooth: int) -> Markup:
    """The figures of a run, or of two beside each other with their ratio."""
    columns = [figures(run, smooth) for run in runs]
    known = [entries for entries in zip(*columns, strict=True) if any(not math.isnan(entry.value) for entry in entries)]
    if len(runs) == 1:
        tiles = [tag("div", join([escape(entry.name), tag("b", entry.text())])) for (entry,) in known]
        return tag("div", join(tiles), class_="tiles")
    rows = [[first.name, first.text(), second.text(), _change(first, second)] for first, second in known]
    note = f"The change is from {names[0]} to {names[1]}: green is better, red is worse, by more than a hundredth."
    return section("Side by side", table(["", *names, "change"], rows), note=note)


def _change(first: Figure, second: Figure) -> Markup:
    """Of losses and shares the difference, of all else the ratio."""
    if not (math.isfinite(first.value) and math.isfinite(second.value)):
        return escape("-")
    if first.kind in ("loss", "share"):
        change = second.value - first.value
        text = f"{change:+.4f}" if first.kind == "loss" else f"{100 * change:+.1f} points"
    elif first.value:
        change = second.value / first.value - 1
        text = f"{1 + change:.3f}×"
    else:
        return escape("-")
    better = change * first.better
    return tag("span", text, class_="good" if better > 0.01 else "bad" if better < -0.01 else None)


def time_spent(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Phases as bars, native operators as a table with bars."""
    parts: list[str] = [bars.phases([(name, phase_seconds(run)) for run, name in zip(runs, names, strict=True)])]
    spent = [operator_seconds(run) for run in runs]
    known = sorted(
        {name for one in spent for name in one}, key=lambda name: -max(one.get(name, _NONE)[0] for one in spent)
    )
    if known:
        parts.append(tag("h3", "Native operators"))
        parts.append(_operators(runs, names, spent, known))
    note = "The time of a step holds its compilations and its native operators; other is what no line accounts for."
    return section("Where the time went", *parts, note=note)


_NONE = (0.0, 0.0)


def _operators(
    runs: Sequence[Run], names: Sequence[str], spent: Sequence[Mapping[str, tuple[float, float]]], known: Sequence[str]
) -> Markup:
    wholes, rests = [], []
    for run, one in zip(runs, spent, strict=True):
        phases, counted = phase_seconds(run), sum(seconds for seconds, _ in one.values())
        # Operators are counted wherever the model runs.
        wholes.append(max(phases["steps"] + phases["evaluation"] + phases["samples"], counted, 1e-9))
        rests.append(wholes[-1] - counted)
    longest = max([*rests, *(seconds for one in spent for seconds, _ in one.values()), 1e-9])
    head = ["operator", ""]
    for name in names:
        head += [f"{name}: seconds" if len(runs) > 1 else "seconds", "share", "calls", "ms a call"]
    rows = []
    for operator in [*known, None]:
        drawn, cells = [], []
        for at, one in enumerate(spent):
            seconds, calls = (rests[at], math.nan) if operator is None else one.get(operator, _NONE)
            a_call = seconds / calls * 1e3 if calls else math.nan
            drawn.append(bar(seconds / longest, at))
            cells += [amount(seconds), share(seconds / wholes[at]), amount(calls, 9), amount(a_call, 3)]
        rows.append(["all else" if operator is None else operator, join(drawn), *cells])
    return table(head, rows, text_columns=2)


def lengths(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Rows and padding by length."""
    found = [by_length(run) for run in runs]
    known = sorted({length for one in found for length in one})
    if not known:
        return Markup("")
    empty = {"rows": 0.0, "tokens": 0.0, "places": 0.0, "steps": 0.0, "seconds": math.nan}
    groups = []
    for one in found:
        entries = [one.get(length, empty) for length in known]
        groups.append([(entry["tokens"], max(entry["places"] - entry["tokens"], 0.0)) for entry in entries])
    note = "Shares of all places in batches: solid are tokens, pale is padding."
    drawn = bars.columns("Places by length of row", [f"{length:,}" for length in known], groups, note)
    rows = []
    for length in known:
        for one, name in zip(found, names, strict=True):
            if length in one:
                entry = one[length]
                places = entry["places"]
                rows.append(
                    [
                        f"{length:,}",
                        name,
                        f"{entry['rows']:,.0f}",
                        f"{entry['tokens']:,.0f}",
                        share(1 - entry["tokens"] / places if places else math.nan),
                        f"{entry['steps']:,.0f}",
                        duration(entry["seconds"]),
                    ]
                )
    head = ["length", "run", "rows", "tokens", "padding", "steps", "step, median"]
    if len(runs) == 1:
        head, rows = head[:1] + head[2:], [row[:1] + row[2:] for row in rows]
    return section("Rows", tag("div", join([drawn, table(head, rows, text_columns=len(runs))]), class_="grid"))


def compilations(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Which graphs were compiled, when and why."""
    rows = [
        [
            name,
            line["step"],
            line.get("graph", "-"),
            _shapes(line.get("shapes")),
            _text(line.get("reason")),
            duration(seconds),
        ]
        for run, name in zip(runs, names, strict=True)
        for line in run.lines.get("compile", [])[:_MOST_ROWS]
        for seconds in [number(line.get("seconds"))]
    ]
    head = ["run", "step", "graph", "shapes", "why", "seconds"]
    return _of_runs("Compilations", runs, head, rows, 5)


def skips(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Steps that changed nothing, and why."""
    rows = [
        [name, line["step"], _text(line.get("reason")), _text(line.get("samples"))]
        for run, name in zip(runs, names, strict=True)
        for line in run.lines.get("skip", [])[:_MOST_ROWS]
    ]
    return _of_runs("Skipped steps", runs, ["run", "step", "why", "samples of the batch"], rows, 4)


def evaluations(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Loss and perplexity on held-out data."""
    rows = [
        [
            name,
            f"{line['step']:,}",
            *(amount(number(line.get(key)), 5) for key in ("loss", "perplexity", "tokens", "seconds")),
        ]
        for run, name in zip(runs, names, strict=True)
        for line in run.lines.get("eval", [])[-_MOST_ROWS:]
    ]
    return _of_runs("Held-out data", runs, ["run", "step", "loss", "perplexity", "tokens", "seconds"], rows, 1)


def checkpoints(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """How often a run was saved, and what it cost."""
    rows = []
    for run, name in zip(runs, names, strict=True):
        steps, seconds, bytes_ = run.of("checkpoint", "seconds", "bytes")
        if len(steps):
            of = otherwise(run.of("checkpoint", "of")[1], steps)
            times = [duration(float(column.mean())) for column in (seconds, seconds_blocked(run))]
            written = [size(float(bytes_[-1])), share(written_share(run))]
            rows.append([name, f"{len(steps):,}", f"{of[-1]:,.0f}", *times, *written])
    head = [
        "run",
        "number",
        "last of step",
        "mean time",
        "of it the run waited",
        "bytes of the last",
        "of its raw size",
    ]
    return _of_runs("Checkpoints", runs, head, rows, 1)


def samples(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """What the model said, the latest first."""
    parts = []
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        lines = run.lines.get("sample", [])[-_MOST_SAMPLES:][::-1]
        if not lines:
            continue
        texts = [
            join(
                [
                    tag("dt", f"step {line['step']:,}"),
                    tag("dd", join([tag("b", _text(line.get("prompt", ""))), escape(_text(line.get("text", "")))])),
                ]
            )
            for line in lines
        ]
        heading = tag("h3", name, class_=f"run{at}") if len(runs) > 1 else ""
        parts.append(tag("div", join([heading, tag("dl", join(texts), class_="samples")])))
    note = "The prompt is in bold; what the model goes on with follows. The latest come first."
    return section("Samples", tag("div", join(parts), class_="grid"), note=note) if parts else Markup("")


def circumstances(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Environment, model, data and configuration: of one run all, of two what differs, and the rest folded away."""
    tables = []
    for title, key in (
        ("Environment", "environment"),
        ("Model", "model"),
        ("Data", "data"),
        ("Configuration", "config"),
    ):
        given = [flat(run.start.get(key)) for run in runs]
        keys = list(dict.fromkeys(name for one in given for name in one))
        rows = [[name, *(_text(one[name]) if name in one else "-" for one in given)] for name in keys]
        differ = [row for row in rows if len(runs) > 1 and row[1] != row[2]]
        head = ["", *names] if len(runs) > 1 else ["", "value"]
        if differ:
            tables += [tag("h3", f"{title}: what differs"), table(head, differ, len(head))]
        if rows:
            folded = join([tag("summary", f"{title}: all"), table(head, rows, len(head))])
            tables.append(tag("details", folded, open=None if len(runs) > 1 or key == "config" else ""))
    for run, name in zip(runs, names, strict=True):
        resumed = [
            [f"{line['step']:,}", _text(line.get("changes") or "nothing")] for line in run.lines.get("resume", [])
        ]
        if resumed:
            tables += [
                tag("h3", f"Resumed{'' if len(runs) == 1 else f', {name}'}"),
                table(["at step", "changed"], resumed, 2),
            ]
    return section("Circumstances", *tables) if tables else Markup("")


def _of_runs(title: str, runs: Sequence[Run], head: list[str], rows: list[list[Any]], text_columns: int) -> Markup:
    """A section with a table, whose first column says which run where there are two; nothing where it has no row."""
    if not rows:
        return Markup("")
    if len(runs) == 1:
        return section(title, table(head[1:], [row[1:] for row in rows], max(text_columns - 1, 1)))
    return section(title, table(head, rows, max(text_columns, 2)))


def _text(value: Any) -> str:
    """A value of a line, in words."""
    if isinstance(value, (list, tuple)):
        return ("; " if any(isinstance(inner, dict) for inner in value) else ", ").join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}" if value.bit_length() <= 64 else "a number of more than 64 bits"
    return "-" if value is None else str(value)


def _shapes(value: Any) -> str:
    shapes = value if isinstance(value, list) else [value]
    return ", ".join(dict.fromkeys(f"[{_text(shape)}]" for shape in shapes))
