"""mindspeed-ms data convert: to and from Megatron's files."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import data_options as d
from mindspeed_ms.cli import options as o


def convert(
    source: Annotated[Path, typer.Argument(help="A prepared set; or a pair X.bin and X.idx, by either name or X.")],
    out: Annotated[Path, typer.Argument(help="What to make: X of a set; of a pair, the folder of a set.")],
    tokenizer: Annotated[Path | None, typer.Option(help="Of a pair: the tokenizer that made its ids.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Of a pair: a YAML file as for prepare. Default: keep all documents."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Of a pair: processes; default: one a core.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Write a set as Megatron's and MindFormers' .bin and .idx, or make a set of such a pair."""
    from mindspeed_ms.cli.data_output import show_conversion
    from mindspeed_ms.cli.output import next_step, phases
    from mindspeed_ms.data.convert import convert as convert_data

    settings = None if config is None else d.prepare_config(config)
    with phases() as advance:
        done = convert_data(source, out, tokenizer, settings, workers, advance)
    show_conversion(done, as_json)
    if not as_json and done.made == "set":
        next_step("mindspeed-ms", "data", "inspect", str(done.out))
