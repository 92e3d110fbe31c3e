"""What a training run shows: its progress on stderr, a line now and then where nobody watches, and what it came to."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from mindspeed_ms.cli.output import report

if TYPE_CHECKING:
    from mindspeed_ms.train.plan import Plan
    from mindspeed_ms.train.run import Summary

_MOST_CHARS = 300  # of a sample that is shown


class Watch:
    """Takes what a run tells and shows it; on a terminal below its lines a bar, elsewhere lines alone.

    log_every: steps between two lines of a file; a terminal's bar follows each step.
    """

    def __init__(self, log_every: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task: TaskID | None = None
        self._log_every = log_every
        self._tokens, self._spent, self._waited, self._steps = 0, 0.0, 0.0, 0
        self._pace = 0.0  # seconds of a step, without compilation, lately
        self._shown = time.monotonic()

    def __enter__(self) -> "Watch":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """One thing that has happened."""
        if kind == "step":
            self._step(step, fields)
        elif kind == "stop":
            self._say("finishing this batch, then a checkpoint is committed; once more to leave at once")
        elif kind == "start":
            model, memory = fields["model"], fields["model"]["memory_bytes"]
            self._say(
                f"{model['model']}, {model['parameters']:,} parameters, {model['trained_parameters']:,} trained; "
                f"{model['steps']:,} steps are {model['epochs']:g} epochs; about {memory / 1e9:.2f} GB"
            )
            self._say(f"compiling a graph for each of {len(model['batch_shapes'])} batch shapes as it comes")
        elif kind == "resume":
            self._say(f"going on after step {step}")
            for sentence in fields["changes"]:
                self._say(f"  {sentence}")
        elif kind == "skip":
            self._say(f"step {step} skipped, nothing was changed: {fields['reason']}")
        elif kind == "eval":
            self._say(f"step {step}: held-out loss {fields['loss']:.4f}, perplexity {fields['perplexity']:.2f}")
        elif kind == "sample":
            self._say(f"step {step}: {_line(fields['prompt'])} » {_line(fields['text'])}")
        elif kind == "checkpoint":
            self._say(
                f"step {fields['of']}: checkpoint, {fields['bytes'] / 1e6:.1f} MB written for "
                f"{fields['raw_bytes'] / 1e6:.1f} MB in {fields['seconds']:.1f} s beside the run, which it held up for "
                f"{1000 * fields['blocked']:.0f} ms"
            )

    def _step(self, step: int, fields: Mapping[str, Any]) -> None:
        spent = fields["seconds"] + fields["wait_seconds"]
        self._tokens += fields["data_tokens"]
        self._spent += spent
        self._waited += fields["wait_seconds"]
        self._steps += 1
        if not fields["compiled"]:
            self._pace = spent if not self._pace else 0.95 * self._pace + 0.05 * spent
        for compiled in fields["compiled"]:
            self._say(f"step {step}: compiled in {compiled['seconds']:.1f} s: {compiled['reason']}")
        line = self._line(step, fields)
        if self._console.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task("", total=fields["steps"])
            self._bar.update(self._task, completed=step, description=line)
        elif step % self._log_every == 0 or step == fields["steps"]:
            self._say(f"step {step}/{fields['steps']}  {line}")
        if step % self._log_every == 0:
            self._tokens, self._spent, self._waited, self._steps = 0, 0.0, 0.0, 0

    def _line(self, step: int, fields: Mapping[str, Any]) -> str:
        spent = max(self._spent, 1e-9)
        left = _duration(self._pace * (fields["steps"] - step)) if self._pace else "?"
        return (
            f"loss {fields['loss']:.4f}  lr {fields['learning_rate']:.2e}  {self._tokens / spent:,.0f} tokens/s  "
            f"{1000 * self._spent / self._steps:.0f} ms a step  wait {self._waited / spent:.1%}  "
            f"{fields['rss_bytes'] / 1e9:.2f} GB  {left} left"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
        sys.stderr.flush()


def show_plan(plan: "Plan") -> None:
    """What a run would do, and the memory it would take."""
    found = plan.summary()
    memory = plan.memory
    report(
        {
            "model": found["model"],
            "parameters": f"{found['parameters']:,}",
            "trained": f"{found['trained_parameters']:,}",
            "rows": f"{found['rows']:,}",
            "tokens": f"{found['tokens']:,}",
            "batches": ", ".join(f"{rows} x {length}" for rows, length in found["batch_shapes"]),
            "steps": f"{found['steps']:,}",
            "epochs": found["epochs"],
            "checkpoints": found["checkpoints"],
        },
        as_json=False,
    )
    rows, length = memory.shape
    print("\nmemory, estimated")
    report(
        {
            "parameters": _megabytes(memory.parameters),
            "gradients": _megabytes(memory.gradients),
            "optimizer": _megabytes(memory.optimizer),
            f"activations of {rows} x {length}": _megabytes(memory.activations),
            "block of logits": _megabytes(memory.loss),
            "process and graphs": _megabytes(memory.graphs),
            "checkpoints": _megabytes(memory.snapshot),
            "of this not at once": _megabytes(memory.overlap),
            "in all": _megabytes(memory.total),
            "there is": "unknown" if plan.available is None else _megabytes(plan.available),
        },
        as_json=False,
    )


def show_summary(done: "Summary", as_json: bool) -> None:
    """What a run came to."""
    values: dict[str, Any] = {
        "out": str(done.out),
        "steps": done.step,
        "tokens": done.tokens,
        "seconds": round(done.seconds, 1),
        "loss": done.loss,
    }
    if done.evaluation is not None:
        values["held_out_loss"] = done.evaluation.loss
        values["perplexity"] = done.evaluation.perplexity
    if as_json or done.stopped is not None:
        values["complete"] = done.stopped is None
    for name, path in (("model", done.model), ("adapter", done.adapter)):
        if path is not None:
            values[name] = str(path)
    report(values, as_json)


def resume_command(folder: Path) -> str:
    """What to type to go on."""
    return shlex.join(["mindspeed-ms", "train", str(folder), "--resume"])


def _line(text: str) -> str:
    """A text on one line, without what a terminal would obey."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]} ..."


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
