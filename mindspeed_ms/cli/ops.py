"""mindspeed-ms ops: the native kernels."""

from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The native kernels: build them, or ask about them.")


@app.command()
def build(
    force: Annotated[bool, typer.Option("--force", help="Build again, even if they are built.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Build the native kernels now rather than at their first use, and print the library's path."""
    from mindspeed_ms.cli.output import busy, report
    from mindspeed_ms.ops.native.build import build as build_library

    with busy("Building the native kernels"):
        path = build_library(force=force)
    if as_json:
        report({"library": str(path)}, as_json)
    else:
        print(path)


@app.command()
def info(as_json: o.AsJson = False) -> None:
    """Say which library is in use, for which instruction set, with how many threads."""
    from mindspeed_ms.cli.output import busy, report
    from mindspeed_ms.ops.native.build import info as describe

    with busy("Building the native kernels"):
        found = describe()
    report(found, as_json)
