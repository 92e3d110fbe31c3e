"""mindspeed-ms data inspect: look at a set before hours are spent on it."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o


def inspect(
    folder: Annotated[Path, typer.Argument(help="A prepared set.", metavar="SET")],
    samples: Annotated[int, typer.Option(min=0, help="How many rows to show as text.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Another seed shows other rows.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the SHA-256 of every file.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Check that the set was made with this tokenizer.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw all of this but the rows: a .png or .svg file.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show lengths, buckets, padding, duplicates, tokens by source, and some rows as text."""
    from mindspeed_ms.cli.data_output import show_lengths, show_samples, show_sources, show_summary
    from mindspeed_ms.cli.output import busy
    from mindspeed_ms.data.inspect import inspect_set
    from mindspeed_ms.data.plots import plot_set

    with busy("Reading the set"):
        found = inspect_set(folder, samples, seed, verify, tokenizer)
        if plot is not None:
            plot_set(found, plot)
    show_summary(found, as_json)
    if as_json:
        return
    if tokenizer is not None:
        print(f"\ntokenizer  {tokenizer} is the set's")
    show_lengths(found)
    show_sources(found)
    show_samples(found)
    if plot is not None:
        print(f"\nplot  {plot}")
