"""mindspeed-ms report: a page about a training run, or about two beside each other."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindspeed_ms.cli import options as o

if TYPE_CHECKING:
    from mindspeed_ms.report.figures import Figure

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run: complete, going on or crashed.", metavar="RUN")],
    other: Annotated[
        Path | None, typer.Argument(help="Another run to compare with it.", metavar="[RUN2]", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File of the page; default: report.html in RUN, of two runs compare-RUN2.html.", show_default=False
        ),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Make one page of HTML of a run, or of two side by side: curves, speed, memory, samples."""
    from mindspeed_ms.cli.output import busy, table
    from mindspeed_ms.cli.output import report as show
    from mindspeed_ms.report.figures import figures, state
    from mindspeed_ms.report.page import run_names, write_report
    from mindspeed_ms.report.series import window

    folders = [run] if other is None else [run, other]
    if out is None:
        out = run / ("report.html" if other is None else f"compare-{other.resolve().name}.html")
    with busy("Reading the run" if other is None else "Reading the runs"):
        runs = write_report(folders, out)
    smooth = window(max(len(found.steps["step"]) for found in runs))
    columns = [figures(found, smooth) for found in runs]
    if as_json:
        for found, values in zip(runs, columns, strict=True):
            numbers = {entry.key: entry.value if math.isfinite(entry.value) else None for entry in values}
            show({"run": str(found.folder), "state": state(found), "page": str(out), **numbers}, True)
        return
    for found in runs:
        print(f"{found.folder}  {state(found)}")
    print()
    names = ["value"] if other is None else run_names(runs)
    known = [entries for entries in zip(*columns, strict=True) if not all(math.isnan(entry.value) for entry in entries)]
    table([{"": entries[0].name, **_texts(names, entries)} for entries in known], False)
    print(f"\npage  {out}")


def _texts(names: Sequence[str], entries: Sequence["Figure"]) -> dict[str, str]:
    return {name: entry.text() for name, entry in zip(names, entries, strict=True)}
