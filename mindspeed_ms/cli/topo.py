"""mindspeed-ms topo: what joins the devices of a cluster, and where the ranks of a job should sit on them."""

import typer

from mindspeed_ms.cli.topo_check import check, plot
from mindspeed_ms.cli.topo_rank_table import rank_table
from mindspeed_ms.cli.topo_show import pin, rings, show

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Read a cluster's links, find rings, check and draw a job's groups, write rank tables.",
)
for command in (show, rings, check, plot, pin):
    app.command()(command)
app.command("rank-table")(rank_table)
