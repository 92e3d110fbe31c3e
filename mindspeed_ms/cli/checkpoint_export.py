"""mindspeed-ms checkpoint export."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o
from mindspeed_ms.cli.checkpoint_folder import Folder, Step, open_store


def export(
    folder: Folder,
    to: Annotated[str, typer.Option("--to", help="The new file or folder, which must not exist yet.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors or ckpt (MindSpore's): one file; hf: a model directory with config and tokenizer, of "
            "LoRA the adapter's directory; mindformers: a folder of a .ckpt with its names and the model's YAML.",
        ),
    ] = "hf",
    step: Step = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="Of safetensors and ckpt: only the model's weights, by Hugging Face's names. Without it all of the "
            "commit, which `checkpoint import` makes the same commit of.",
        ),
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Write a checkpoint in a format of others. It is verified first; an interrupted export leaves nothing."""
    from mindspeed_ms.cli.output import busy, next_step, report
    from mindspeed_ms.errors import WeightsError
    from mindspeed_ms.train.export_commit import export_commit

    if not to.strip():
        raise WeightsError("--to is empty; give the name of a new file or folder")
    out, store = Path(to), open_store(folder)
    with busy("Exporting"):
        done = export_commit(store, out, form, step=step, weights=weights)
    report(
        {"path": str(done.path), "format": form, "step": done.step, "tensors": done.tensors, "bytes": done.bytes},
        as_json,
    )
    if form == "hf" and (out / "config.json").exists():
        next_step("mindspeed-ms", "generate", to, "Once upon a time")
