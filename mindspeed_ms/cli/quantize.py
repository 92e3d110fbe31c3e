"""mindspeed-ms quantize: make a model's weights small."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def quantize(
    model: Annotated[Path, typer.Argument(help="A Hugging Face directory or GGUF file.")],
    out: Annotated[Path, typer.Argument(help="Folder for the quantized model, which must not exist yet.")],
    scheme: Annotated[str, typer.Option(help="w8a8, w4a8, w8a16 or w4a16: bits of weights and of activations.")],
    group: Annotated[
        int | None,
        typer.Option(
            help="How many weights share a scale: 32, 64 or 128; 0, for w8, a whole row. Default: w4 32, w8 0.",
            show_default=False,
        ),
    ] = None,
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="Give each group of w4 a minimum too.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Round a model's weights to 8 or 4 bits; reports the size and the error of each layer."""
    import dataclasses

    from mindspeed_ms.cli.output import next_step, progress, report, table
    from mindspeed_ms.compress.quantize import quantize_model

    with progress("Quantizing") as advance:
        done = quantize_model(model, out, scheme, group, asymmetric, progress=advance)
    if as_json:
        report({**dataclasses.asdict(done), "path": str(done.path), "lossless": done.lossless}, as_json)
        return
    columns = ("name", "form", "bytes", "relative_rms", "max_error")
    table([{column: getattr(layer, column) for column in columns} for layer in done.layers], as_json)
    print()
    summary = ("path", "scheme", "bytes_before", "bytes_after", "lossless")
    report({column: getattr(done, column) for column in summary}, as_json)
    next_step("mindspeed-ms", "export", str(out), f"{out}-bundle")
