"""mindspeed-ms checkpoint import."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o


def import_(
    source: Annotated[
        str, typer.Argument(help="A .safetensors or .ckpt file, or a folder of MindFormers.", metavar="SOURCE")
    ],
    to: Annotated[str, typer.Option("--to", help="The new folder; or a run's, for a whole checkpoint.")],
    config: Annotated[
        Path | None,
        typer.Option(help="Of weights alone: their config.json or its folder; of MindFormers' the model's YAML."),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The step that a whole checkpoint must be of.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Make of a checkpoint what one goes on with; what it is, is seen by its content.

    A whole commit that `export` wrote becomes a folder of checkpoints with that commit: with a run's folder for --to
    it is the run's, and `train FOLDER --resume` goes on from it. Weights alone, by Hugging Face's or MindFormers'
    names, become a Hugging Face directory for `model.from`, `generate` and `quantize`; optimizer state of MindFormers
    is left out.
    """
    from mindspeed_ms.cli.output import busy, next_step, report
    from mindspeed_ms.errors import WeightsError
    from mindspeed_ms.train.import_commit import import_commit

    if not source.strip():
        raise WeightsError("SOURCE is empty; give a .safetensors or .ckpt file, or a folder of MindFormers")
    if not to.strip():
        raise WeightsError("--to is empty; give a new folder, or that of a run")
    with busy("Importing"):
        done = import_commit(Path(source), Path(to), config=config, step=step)
    values = {"path": str(done.path), "made": done.made, "from": done.source, "tensors": done.tensors}
    report({**values, **({"step": done.step} if done.step is not None else {})}, as_json)
    if done.made == "checkpoint" and done.path.name == "checkpoints":
        next_step("mindspeed-ms", "train", to, "--resume")
