"""mindspeed-ms export: write a bundle, or remake its graph."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def export(
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face directory, GGUF file or quantized directory; or a bundle.")
    ],
    out: Annotated[Path | None, typer.Argument(help="The bundle's folder, which must not exist yet.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Remake a bundle's graph from its own weights.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Write a model as a bundle: one folder that holds all a service needs, on any machine."""
    from mindspeed_ms.cli.output import busy, next_step, report
    from mindspeed_ms.export.bundle import export_bundle, refresh_bundle

    if refresh == (out is not None):
        raise typer.BadParameter("give MODEL and OUT, or --refresh and the bundle alone")
    with busy("Writing the bundle"):
        bundle = export_bundle(model, out) if out is not None else refresh_bundle(model)
    files = sorted(bundle.path.iterdir())
    report(
        {
            "bundle": str(bundle.path),
            "bytes": sum(file.stat().st_size for file in files),
            "files": [file.name for file in files],
            "scheme": bundle.info.quantization.scheme,
            "kv_dtype": bundle.info.kv_dtype,
        },
        as_json,
    )
    if not as_json:
        next_step("mindspeed-ms", "serve", str(bundle.path), "--grpc", "127.0.0.1:5500")
