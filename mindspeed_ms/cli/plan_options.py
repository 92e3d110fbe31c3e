"""Options of `mindspeed-ms plan`, and the job and limits that they make."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from mindspeed_ms.parallel.plan.candidates import Limits

Recompute = Literal["none", "selective", "full"]
_FIX = "Fix what is otherwise searched"
_SEARCH = "The search"

Model = Annotated[
    str,
    typer.Argument(help="A Hugging Face directory or its config.json, or a name such as llama2-70b.", metavar="MODEL"),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sequences of one step, over all replicas; default: 64, or what --mindformers says.",
        show_default=False,
    ),
]
Seq = Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")]
Devices = Annotated[int | None, typer.Option(min=1, help="Use so many devices; default: all.", show_default=False)]
Memory = Annotated[
    str | None,
    typer.Option(help="What a job may take of a device, such as 58GB; default: 95 % of it.", show_default=False),
]
_FILES = "What --out writes"
Strategy = Annotated[
    bool,
    typer.Option(
        "--strategy", help="Export MODEL's graph with MindSpore and write strategy files.", rich_help_panel=_FILES
    ),
]
GraphFile = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        help="The network's exported MINDIR, for strategy files that name its operators.",
        show_default=False,
        rich_help_panel=_FILES,
    ),
]
Ips = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FILE for each server in turn: its hccn.conf, or what hccn_tool printed.", rich_help_panel=_FILES
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(help="Addresses or names of the servers, with commas.", show_default=False, rich_help_panel=_FILES),
]
Run = Annotated[str, typer.Option(help="The script that each rank runs, with its arguments.", rich_help_panel=_FILES)]


def fixed(help_text: str) -> Any:
    """An option that fixes a number of the plan."""
    return typer.Option(min=1, help=help_text, show_default=False, rich_help_panel=_FIX)


MindFormers = Annotated[
    Path | None,
    typer.Option(
        "--mindformers",
        help="A MindFormers configuration, whose parallel settings are all fixed; options beside it win.",
        show_default=False,
        rich_help_panel=_FIX,
    ),
]
Data = Annotated[int | None, fixed("Data-parallel ranks.")]
Tensor = Annotated[int | None, fixed("Tensor-parallel ranks.")]
Pipeline = Annotated[int | None, fixed("Pipeline stages.")]
Context = Annotated[int | None, fixed("Context-parallel ranks.")]
Expert = Annotated[int | None, fixed("Expert-parallel ranks, of data times context.")]
MicroBatch = Annotated[int | None, fixed("Sequences of one forward pass of a replica.")]
Virtual = Annotated[int | None, fixed("Chunks of a stage (interleaved schedule).")]
Zero = Annotated[
    int | None,
    typer.Option(min=0, max=3, help="ZeRO stage.", show_default=False, rich_help_panel=_FIX),
]
Recomputation = Annotated[
    Recompute | None,
    typer.Option("--recompute", help="What is computed again.", show_default=False, rich_help_panel=_FIX),
]
Sequence = Annotated[
    bool | None,
    typer.Option(
        "--sequence-parallel/--no-sequence-parallel",
        help="Split norms along the sequence.",
        show_default=False,
        rich_help_panel=_FIX,
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(help="Layers of each chunk, such as 11,12,12,5.", show_default=False, rich_help_panel=_FIX),
]
Schedules = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="Pipeline schedules to try, of gpipe, 1f1b, interleaved, zero_bubble. Default: 1f1b,interleaved.",
        show_default=False,
        rich_help_panel=_SEARCH,
    ),
]
Top = Annotated[int, typer.Option(min=1, max=100, help="How many plans to rank.", rich_help_panel=_SEARCH)]
Vary = Annotated[
    bool,
    typer.Option(
        "--sensitivity/--no-sensitivity",
        help="See what ±20 % of links, memory and speed change.",
        rich_help_panel=_SEARCH,
    ),
]

_MOST_BYTES = 4 << 20  # of a MindFormers configuration
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str, option: str = "--memory") -> int:
    """Bytes of a text such as 58GB or 59392MiB; units are powers of 1024, as device memory is told in."""
    from mindspeed_ms.errors import ConfigError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise ConfigError(f"{option} {text!r}: expected a size with its unit, such as 58GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def limits(
    given: Mapping[str, Any], memory: str | None, layers: str | None, schedules: str | None, top: int
) -> "Limits":
    """The search's limits of what was given on the command line."""
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan.candidates import Limits
    from mindspeed_ms.parallel.plan.pipeline_schedule import SCHEDULES

    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if memory is not None:
        values["memory"] = parse_bytes(memory)
    if layers is not None:
        if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", layers):
            raise ConfigError(f"--layers {layers!r}: expected numbers of layers with commas, such as 11,12,12,5")
        values["layers"] = tuple(map(int, layers.split(",")))
    if schedules:
        names = tuple(dict.fromkeys(name.strip() for name in schedules.split(",")))
        wrong = next((name for name in names if name not in SCHEDULES), None)
        if wrong is not None:
            raise ConfigError(f"--schedule {wrong!r}: expected one or more of {', '.join(SCHEDULES)}, with commas")
        values["schedules"] = names
    return Limits(**values, keep=top)


def with_mindformers(limits: "Limits", path: Path, schedule_given: bool) -> tuple["Limits", int]:
    """The limits with all that they leave open fixed as in a MindFormers file; and its global batch."""
    import dataclasses

    from mindspeed_ms.cli.output import read_text
    from mindspeed_ms.log import get_logger
    from mindspeed_ms.parallel.plan.mindformers import not_carried, read_parallel

    text = read_text(path, _MOST_BYTES)
    found = read_parallel(text, str(path))
    for left in not_carried(text, str(path)):
        get_logger(__name__).warning("%s: %s (left out)", path, left)
    values = {one.name: getattr(found, one.name) for one in dataclasses.fields(limits) if hasattr(found, one.name)}
    fixed = {name: value for name, value in values.items() if getattr(limits, name) is None}
    if not schedule_given:
        fixed["schedules"] = (found.schedule,)
    return dataclasses.replace(limits, **fixed), found.global_batch
