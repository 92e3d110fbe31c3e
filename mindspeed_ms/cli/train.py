"""mindspeed-ms train: make a run that a YAML file describes, or go on with one."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def train(
    config: Annotated[
        Path, typer.Argument(help="A YAML file (configs/train has some to copy), or the folder of a run.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=VALUE instead of the file's, such as optimizer.learning_rate=1e-4; may be repeated."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, instead of the file's run.out.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder from its last checkpoint.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, print the plan and the memory it takes, and train nothing."),
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Train a model on a prepared set: from nothing, from a trained one, or adapters of one (LoRA).

    Ctrl-C and SIGTERM finish the micro-batch that runs and commit a checkpoint.

    --resume goes on from there as if nothing had happened, to the last bit.

    A second Ctrl-C ends at once, without a checkpoint.
    """
    import dataclasses

    from mindspeed_ms.cli.output import busy, next_step, report
    from mindspeed_ms.cli.train_options import read_config
    from mindspeed_ms.cli.train_output import Watch, resume_command, show_plan, show_summary

    loaded = read_config(config, settings or [], out)
    if dry_run:
        from mindspeed_ms.train.plan import make_plan

        with busy("Looking at model and data"):
            plan = make_plan(loaded)
        if as_json:
            report({**plan.summary(), "memory": dataclasses.asdict(plan.memory)}, as_json)
        else:
            show_plan(plan)
        return
    from mindspeed_ms.train.run import train as make_run

    with Watch(loaded.run.log_every) as watch:
        done = make_run(loaded, resume=resume, observe=watch)
    show_summary(done, as_json)
    if done.stopped is not None:
        # On stderr and always: a scheduler's log is where the one who goes on looks.
        typer.echo(f"stopped at step {done.step} of {done.steps}; go on with: {resume_command(done.out)}", err=True)
        raise typer.Exit(128 + done.stopped)
    if as_json:
        return
    if done.model is not None:
        next_step("mindspeed-ms", "generate", str(done.model), *loaded.run.samples[:1])
    next_step("mindspeed-ms", "report", str(done.out))
