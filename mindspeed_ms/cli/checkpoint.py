"""mindspeed-ms checkpoint: look at a run's checkpoints, check them, take them out and in."""

import typer

from mindspeed_ms.cli.checkpoint_export import export
from mindspeed_ms.cli.checkpoint_import import import_
from mindspeed_ms.cli.checkpoint_look import diff, ls
from mindspeed_ms.cli.checkpoint_tidy import prune, verify

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, check, compare, remove, export and import checkpoints."
)
for command in (ls, verify, diff, prune, export):
    app.command()(command)
app.command("import")(import_)
