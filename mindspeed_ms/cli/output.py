"""What the commands print: results on stdout, as a person or a program reads them; progress on stderr."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_stderr = Console(stderr=True)


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
    shown = Table(box=None, pad_edge=False)
    for key in rows[0]:
        shown.add_column(key.replace("_", " "), justify="right" if isinstance(rows[0][key], (int, float)) else "left")
    for row in rows:
        shown.add_row(*(_text(value) for value in row.values()))
    Console().print(shown)


def next_step(command: str, as_json: bool = False) -> None:
    """What to run next; on stderr, so that it never mixes with a result."""
    if not as_json:
        _stderr.print(f"Next: {command}", markup=False, highlight=False, soft_wrap=True)


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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value)
