"""What the commands print: results on stdout, as a person or a program reads them; progress on stderr."""

import dataclasses
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mindspeed_ms.errors import ConfigError, RequestError
from mindspeed_ms.paths import read_regular

_stderr = Console(stderr=True)
_SECONDS_A_LINE = 30


def report(values: Mapping[str, Any], as_json: bool) -> None:
    """One result: a line of JSON, or a name and a value a line."""
    if as_json:
        print(json.dumps(values, ensure_ascii=False))
        return
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        print(f"{key.replace('_', ' '):<{width}}  {_text(value)}")


def table(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Several results of one kind: a line of JSON each, or one table."""
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        return
    if not rows:
        return
    # Plain columns as wide as their content: a name that is cut off to fit a terminal is of no use in a file.
    lines = [[key.replace("_", " ") for key in rows[0]], *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [isinstance(value, (int, float)) for value in rows[0].values()]
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        print("  ".join(text.rjust(width) if number else text.ljust(width) for text, width, number in cells).rstrip())


def stream(chunks: Iterable[Any]) -> str:
    """Print the pieces of an answer as they come, then its speed on a terminal; returns the whole text."""
    started = time.perf_counter()
    text, output = "", None
    for chunk in chunks:
        print(chunk.text, end="", flush=True)
        text += chunk.text
        output = chunk.output or output
    print()
    if output is not None and output.finish_reason == "error":
        raise RequestError(output.error)
    if output is not None and _stderr.is_terminal:
        seconds = time.perf_counter() - started
        speed = output.completion_tokens / seconds
        _stderr.print(f"{output.completion_tokens} tokens, {speed:.1f} a second", style="dim", highlight=False)
    return text


def answers(prompts: Sequence[str], outputs: Sequence[Any], as_json: bool) -> None:
    """The answers of a batch: a line of JSON each, or each after its prompt. Raises RequestError if one failed."""
    for prompt, output in zip(prompts, outputs, strict=True):
        if as_json:
            print(json.dumps({"prompt": prompt, **dataclasses.asdict(output)}, ensure_ascii=False))
        elif output.finish_reason != "error":
            print(f"== {prompt}\n{output.text}")
    failed = [(prompt, output.error) for prompt, output in zip(prompts, outputs, strict=True) if output.error]
    if failed:
        prompt, error = failed[0]
        shown = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        raise RequestError(f"{len(failed)} of {len(outputs)} prompts failed; {shown!r}: {error}")


def read_text(path: Path, most: int | None = None) -> str:
    """A file's text in UTF-8; with `most`, a plain file of so many bytes. Raises ConfigError that names the file."""
    try:
        return path.read_text(encoding="utf-8") if most is None else read_regular(path, most).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give the path of a text file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; convert it first") from None


def ready(address: str, name: str, as_json: bool) -> None:
    """That a service answers now, and where; flushed, since somebody may wait for it in a pipe."""
    if as_json:
        print(json.dumps({"grpc": address, "name": name}), flush=True)
    else:
        print(f"serving {name} at {address} (gRPC; Ctrl-C stops it)", flush=True)


def need_extra(module: str, extra: str) -> None:
    """Raises ConfigError that names the extra, if what it installs is not there."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{module} is not installed; run pip install 'mindspeed-ms[{extra}]'")


def next_step(*command: str) -> None:
    """What to run next, as a shell reads it; for a person at a terminal, on stderr: it never mixes with a result."""
    if sys.stdout.isatty():
        sys.stdout.flush()
        _stderr.print(f"Next: {shlex.join(command)}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing elsewhere."""
    with _stderr.status(what):
        yield


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; yields `advance(done, total)`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_stderr, transient=True, disable=not _stderr.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def phases() -> Iterator[Callable[[str, int, int | None, str], None]]:
    """A bar a phase on a terminal, with speed and time left; yields `advance(phase, done, total, unit)`."""
    amount = _AmountColumn("")
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=_stderr, transient=True, disable=not _stderr.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(phase: str, done: int, total: int | None, unit: str) -> None:
            if phase not in tasks:
                # What an earlier run has done is no speed of this one's: a bar begins where its first report is.
                tasks[phase] = bar.add_task(phase, total=total, completed=done, unit=unit)
            bar.update(tasks[phase], completed=done, total=total)

        yield advance if _stderr.is_terminal else _lines()


def _lines() -> Callable[[str, int, int | None, str], None]:
    """Where nobody watches a bar: a line on stderr now and then, for the log of a job that takes hours."""
    begin: dict[str, tuple[float, int]] = {}
    last = time.monotonic()

    def advance(phase: str, done: int, total: int | None, unit: str) -> None:
        nonlocal last
        now = time.monotonic()
        since, first = begin.setdefault(phase, (now, done))
        if now - last < _SECONDS_A_LINE:
            return
        last = now
        speed = (done - first) / max(now - since, 1e-9)
        left = f", {(total - done) / speed:.0f} s left" if total is not None and speed > 0 else ""
        print(f"{phase} {_amount(done, total, unit, speed)}{left}", file=sys.stderr, flush=True)

    return advance


def _amount(done: float, total: float | None, unit: str, speed: float | None) -> str:
    """How much is done, and how much a second: bytes in MB, all else by number."""
    scale, digits = 1.0, 0
    if unit == "bytes":
        unit, scale, digits = "MB", 1e6, 1
    text = f"{done / scale:,.{digits}f}"
    text += f"/{total / scale:,.{digits}f} {unit}" if total is not None else f" {unit}"
    return text if speed is None else f"{text}  {speed / scale:,.{digits}f} {unit}/s"


class _AmountColumn(TextColumn):
    """How much is done, and how much a second."""

    def render(self, task: Task) -> Text:
        return Text(_amount(task.completed, task.total, task.fields["unit"], task.finished_speed or task.speed))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value)
