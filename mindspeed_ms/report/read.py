"""What a run has written so far: a run that is going on, has crashed or was damaged gives what can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.paths import open_regular

METRICS = "metrics.jsonl"  # train/metrics.py describes its lines
_MAX_LINE = 16 << 20
_MAX_STEP = 1 << 53
_MAX_DEPTH = 16
_KINDS = frozenset("start resume step compile skip eval sample checkpoint operators end".split())
# Of a step's line; what one lacks is NaN.
COLUMNS = (
    "loss tokens learning_rate grad_norm clipped skipped loss_scale step_seconds wait_seconds length rows data_tokens "
    "places tokens_per_second epoch rss_bytes time"
).split()


@dataclass(frozen=True)
class Run:
    """A run as its lines tell it.

    steps: float64 columns of equal length by name, ascending in `step`; NaN where a line says nothing.
    buckets: of each length its rows, tokens, places and steps, over all steps; a step of several lengths counts for
        the longest.
    lines: all others, by kind, as they were written.
    seconds: that its processes were at it.
    damaged: how many lines could not be read.
    """

    folder: Path
    name: str
    steps: dict[str, np.ndarray]
    buckets: dict[int, list[float]]
    lines: dict[str, list[dict[str, Any]]]
    seconds: float
    damaged: int

    @property
    def start(self) -> dict[str, Any]:
        """The first line of kind start, or an empty mapping."""
        return next(iter(self.lines.get("start", [])), {})

    @property
    def end(self) -> str | None:
        """The reason that the last process gave for its end; None while it runs, and when it was killed."""
        last = max(self.lines.get("end", []), key=lambda line: line["line"], default=None)
        resumed = max((line["line"] for line in self.lines.get("resume", [])), default=-1)
        return None if last is None or last["line"] < resumed else str(last.get("reason", "unknown"))

    def config(self, *keys: str) -> Any:
        """A value of the run's configuration, as it was last changed, or None."""
        told = [line["config"] for line in self.lines.get("resume", []) if "config" in line]
        value: Any = told[-1] if told else self.start.get("config")
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def of(self, kind: str, *fields: str) -> list[np.ndarray]:
        """`step` and number fields of the lines of a kind, as float64 arrays; NaN where one is missing."""
        lines = self.lines.get(kind, [])
        return [np.array([number(line.get(name)) for line in lines], np.float64) for name in ("step", *fields)]


@dataclass
class _Lines:
    rows: list[list[float]] = field(default_factory=list)
    buckets: dict[int, list[Any]] = field(default_factory=dict)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: float = 0.0
    last: float = math.nan
    damaged: int = 0


def read_run(folder: str | Path) -> Run:
    """Read a run's folder. Raises ConfigError when it is none."""
    folder = Path(folder)
    path = folder / METRICS
    found = _Lines()
    try:
        for count, line in enumerate(_lines(path)):
            _take(found, line, count)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder}: no {METRICS} in it, so it is no run; give the folder of one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); give the folder of a run") from None
    if not found.rows and not found.others:
        raise ConfigError(f"{path}: no line of a run in it; give the folder of a run that has begun")
    name = folder.name or folder.resolve().name
    steps = _columns(found.rows)
    buckets = _by_length(steps, found.buckets)
    return Run(folder, name, steps, buckets, found.others, found.seconds, found.damaged)


def number(value: Any) -> float:
    """A line's number; NaN if it is none."""
    if type(value) is float:  # nearly all are
        return value
    if isinstance(value, (bool, int)) or value in ("NaN", "Infinity", "-Infinity"):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return math.nan


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        while line := file.readline(_MAX_LINE):
            yield line


def _take(found: _Lines, data: bytes, count: int) -> None:
    """Add what one line says."""
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        # The last one may be half written: that is no damage. JSON of it without its end is never valid.
        found.damaged += data.endswith(b"\n")
        return
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str) or line["kind"] not in _KINDS:
        found.damaged += 1
        return
    step = line.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MAX_STEP:
        found.damaged += 1
        return
    time = number(line.get("time"))
    if line["kind"] not in ("start", "resume") and 0 <= time - found.last < math.inf:
        found.seconds += time - found.last
    found.last = time if math.isfinite(time) else found.last
    if line["kind"] == "step":
        found.rows.append([step, *(number(line.get(name)) for name in COLUMNS)])
        if isinstance(line.get("buckets"), list):
            found.buckets[step] = line["buckets"]
    elif _deep(line):
        found.damaged += 1
    else:
        found.others.setdefault(line["kind"], []).append({**line, "line": count})


def _deep(value: Any) -> bool:
    """Whether there is more inside one another than any run writes: who shows it would have to go down as deep."""
    layer = [value]
    for _ in range(_MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(layer)


def _by_length(steps: Mapping[str, np.ndarray], given: Mapping[int, Any]) -> dict[int, list[float]]:
    """Sums over steps; given: by step what a line says of several lengths."""
    sums: dict[int, list[float]] = {}
    table = np.stack([steps[name] for name in ("length", "rows", "data_tokens", "places")])
    good = ((table >= 0) & (table < _MAX_STEP)).all(axis=0)  # false for NaN
    for length in np.unique(table[0, good]):
        mine = good & (table[0] == length)
        alone = mine & ~np.isin(steps["step"], list(given))
        sums[int(length)] = [*(float(row[alone].sum()) for row in table[1:]), float(mine.sum())]
    for bucket in (bucket for buckets in given.values() for bucket in buckets):
        values = [number(value) for value in bucket] if isinstance(bucket, list) else []
        if len(values) == 4 and all(0 <= value < _MAX_STEP for value in values):
            of_length = sums.setdefault(int(values[0]), [0.0, 0.0, 0.0, 0.0])
            for column in range(3):
                of_length[column] += values[1 + column]
    return sums


def _columns(rows: list[list[float]]) -> dict[str, np.ndarray]:
    table = np.array(rows, np.float64).reshape(len(rows), 1 + len(COLUMNS))
    # Where two processes have written, or a run went on from an older step, the later line counts.
    backwards = table[::-1]
    _, last = np.unique(backwards[:, 0], return_index=True)
    table = backwards[last]
    return {name: table[:, at] for at, name in enumerate(("step", *COLUMNS))}
