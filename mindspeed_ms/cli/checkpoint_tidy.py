"""mindspeed-ms checkpoint verify and prune."""

from typing import Annotated

import typer

from mindspeed_ms.cli import options as o
from mindspeed_ms.cli.checkpoint_folder import Folder, checkpoints, open_store, rules_of


def verify(
    folder: Folder,
    step: Annotated[int | None, typer.Option(min=0, help="Of this step alone; default: of all.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Read every byte of all checkpoints, the newest first. Exits with 2 where one is damaged, and names a good one."""
    import contextlib
    import sys

    from mindspeed_ms.cli.output import progress, report
    from mindspeed_ms.errors import CheckpointError

    store = open_store(folder)
    if step is not None and step not in store.steps():
        store.manifest(step)  # says which there are
    steps = [step] if step is not None else sorted(store.steps(), reverse=True)
    gone: list[int] = []
    problems, good, size = [], None, 0
    with progress("Verifying") as advance:
        for number, each in enumerate(steps):
            advance(number, len(steps))
            found = store.verify(each)
            if step is None and each not in store.steps():  # a run has removed it meanwhile
                gone.append(each)
                continue
            problems += found
            if not found:
                good = each if good is None else good
                with contextlib.suppress(CheckpointError):
                    size += store.manifest(each).raw_bytes
    steps = [each for each in steps if each not in gone]
    if as_json:
        report(
            {
                "checkpoints": len(steps),
                "bytes": size,
                "newest_good": good,
                "problems": [{"step": problem.step, "message": problem.message} for problem in problems],
            },
            as_json,
        )
    for problem in problems:
        print(f"step {problem.step}: {' '.join(problem.message.split())}", file=sys.stderr)
    if problems:
        named = "there is no good one among them" if good is None else f"the newest good one is that of step {good}"
        print(f"error: {len({p.step for p in problems})} of {len(steps)} checkpoints damaged; {named}", file=sys.stderr)
        raise typer.Exit(2)
    if not as_json:
        counted = "1 checkpoint" if len(steps) == 1 else f"{len(steps)} checkpoints"
        print(f"{counted}, {size:,} bytes of tensors verified")


def prune(
    folder: Folder,
    keep: Annotated[int | None, typer.Option(min=0, help="Keep the newest N; 0: all. Default: as the run.")] = None,
    keep_every: Annotated[int | None, typer.Option(min=1, help="Keep those of steps that N divides too.")] = None,
    keep_best: Annotated[int | None, typer.Option(min=0, help="Keep the N of the lowest metric too.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and change nothing.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Remove checkpoints that no rule keeps, but never the newest good one. A run must not be writing."""
    from mindspeed_ms.cli.output import report

    given = {"keep": keep, "keep_every": keep_every, "keep_best": keep_best}
    rules = {**rules_of(checkpoints(folder)), **{name: value for name, value in given.items() if value is not None}}
    with open_store(folder, write=not dry_run, **rules) as store:
        before = store.steps()
        gone = store.going() if dry_run else store.prune()
    report({"would_remove" if dry_run else "removed": gone, "kept": [s for s in before if s not in gone]}, as_json)
