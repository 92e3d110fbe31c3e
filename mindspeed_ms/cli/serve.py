"""mindspeed-ms serve: answer over gRPC."""

from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    bundle: o.Model,
    grpc: Annotated[str, typer.Option(help="host:port or unix:path; port 0 takes a free one.")] = "127.0.0.1:5500",
    name: Annotated[str | None, typer.Option(help="The servable's name; default: the folder's name.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that calls get to finish when stopped.")] = 10.0,
    max_seqs: Annotated[int, typer.Option(min=1, help="Most sequences that run together.")] = 64,
    token_budget: Annotated[int, typer.Option(min=1, help="Most tokens of one step.")] = 512,
    threads: o.Threads = None,
    kv_tokens: o.KvTokens = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="Print address and name as JSON when ready.")] = False,
) -> None:
    """Answer over gRPC by the MindSpore Serving protocol, until Ctrl-C or SIGTERM. There is no authentication."""
    from mindspeed_ms.cli.output import need_extra, ready

    need_extra("grpc", "serve")
    from mindspeed_ms.serving.api.server import serve as run

    run(
        bundle,
        grpc,
        name=name,
        grace=grace,
        on_ready=lambda address, servable: ready(address, servable, as_json),
        max_seqs=max_seqs,
        token_budget=token_budget,
        threads=threads,
        kv_tokens=kv_tokens,
    )
