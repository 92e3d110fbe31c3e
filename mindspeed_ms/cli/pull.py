"""mindspeed-ms pull: fetch a model file."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="The model; without it, the known ones are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to put it in; default: the cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
) -> None:
    """Fetch a model file, check it against its pinned SHA-256 and print its path."""
    from mindspeed_ms.cli.output import busy, report, table
    from mindspeed_ms.weights.pull import MODELS
    from mindspeed_ms.weights.pull import pull as fetch

    if name is None:
        rows = [
            {"name": key, "about": model.about, "licence": model.licence, "bytes": model.size}
            for key, model in MODELS.items()
        ]
        table(rows, as_json)
        return
    with busy(f"Fetching {name}"):
        path = fetch(name, out)
    if as_json:
        report({"name": name, "path": str(path), "bytes": path.stat().st_size}, as_json)
    else:
        print(path)
