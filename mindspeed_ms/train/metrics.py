"""metrics.jsonl: what happened in a run, one JSON object a line, and the same numbers as TensorBoard events.

Every line has `kind`, `step` (steps taken when it was written, from 0) and `time` (seconds since 1970). Steps never
fall from one line to the next. A number that JSON cannot hold is one of the strings "NaN", "Infinity" and "-Infinity".
By kind, a line has beside these

start       environment (environment.py), model, data and config: mappings that `run` fills; once, the first line
resume      environment, config, changes: list of sentences; a run went on here, its lines of later steps were cut off
step        every step: loss, tokens (that the loss counts), learning_rate, grad_norm, clipped, skipped, loss_scale,
            step_seconds, wait_seconds (for the batch), length (tokens of the longest row), rows (real ones),
            data_tokens (without padding), places (with padding and empty rows), tokens_per_second (of data_tokens,
            waiting included), epoch, rss_bytes; buckets: [[length, rows, tokens, places]] where lengths differ
compile     graph, shapes, reason, seconds: a graph was compiled in this step, whose step_seconds include them
skip        reason, which says where it began, and samples: of each batch its length and the numbers of its rows
eval        loss, perplexity, tokens, seconds
sample      prompt, text, tokens, seconds
checkpoint  path, of (the step that it holds; `step` is when it was there), bytes (written for it), raw_bytes (of its
            tensors), seconds (in the background), blocked (seconds that the run waited), base (false: differences)
operators   operators: name -> [seconds, calls] of native operators since the line of this kind before
end         reason ("complete", "interrupted" or an error's line), seconds of this process
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from mindspeed_ms.errors import TrainError
from mindspeed_ms.paths import open_regular
from mindspeed_ms.train.events import EventWriter

if TYPE_CHECKING:
    from mindspeed_ms.data.loader import Batch
    from mindspeed_ms.train.step import StepResult

OpTimes = dict[str, tuple[float, int]]  # operator: seconds, calls

NAME = "metrics.jsonl"
EVENTS = "events"
KINDS = ("start", "resume", "step", "compile", "skip", "eval", "sample", "checkpoint", "operators", "end")

# Some readers take these for ends of lines; the others of that sort JSON escapes anyway.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}

# What TensorBoard gets of a line: field to tag.
_TAGS: dict[str, dict[str, str]] = {
    "step": {
        "loss": "train/loss",
        "learning_rate": "train/learning_rate",
        "grad_norm": "train/grad_norm",
        "loss_scale": "train/loss_scale",
        "skipped": "train/skipped",
        "tokens_per_second": "speed/tokens_per_second",
        "step_seconds": "speed/step_seconds",
        "wait_seconds": "speed/wait_seconds",
        "rss_bytes": "memory/rss_bytes",
    },
    "eval": {"loss": "eval/loss", "perplexity": "eval/perplexity"},
    "checkpoint": {
        "seconds": "checkpoint/seconds",
        "blocked": "checkpoint/blocked",
        "bytes": "checkpoint/bytes",
    },
}


class MetricsWriter:
    """Appends lines to a run's metrics.jsonl, and their numbers to event files in its folder `events`.

    folder: of the run, which exists.
    resume_step: steps that the run has taken which goes on here; what is written of later ones is cut off, and so is a
        last line that a crash has torn. None: a new run, whose folder may hold no lines yet.
    op_times: the counters of operators (`mindspeed_ms.ops.native.build.op_times`); None where none are counted.

    One process writes at a time. Raises TrainError when a line cannot be written; the file then ends with the line
    before.
    """

    def __init__(
        self, folder: str | Path, resume_step: int | None = None, op_times: Callable[[], OpTimes] | None = None
    ) -> None:
        self.path = Path(folder) / NAME
        self._file: IO[bytes] | None = None
        try:
            if resume_step is not None:
                self._size = _cut(self.path, resume_step)
            elif self.path.exists() and self.path.stat().st_size:
                raise TrainError(f"{self.path}: holds another run; resume that one or train into another folder")
            else:
                self._size = 0
            self._file = open(self.path, "ab", buffering=0)
        except OSError as error:
            raise TrainError(f"{self.path}: cannot be opened ({error.strerror}); give a folder to write in") from None
        self._events = EventWriter(Path(folder) / EVENTS, None if resume_step is None else resume_step + 1)
        self._op_times = op_times
        self._operators = op_times() if op_times else {}  # of what this process did before

    def write(self, kind: str, step: int, **fields: Any) -> None:
        """Append one line; the values are what JSON can hold, NumPy's numbers, paths and mappings of those."""
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r}; expected {', '.join(KINDS)}")
        now = time.time()
        line = {"kind": kind, "step": step, "time": round(now, 3), **{key: _plain(fields[key]) for key in fields}}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
        self._append(text.encode("utf-8", "backslashreplace") + b"\n")  # a lone surrogate becomes JSON's escape of it
        tags = _TAGS.get(kind, {})
        values = {tag: float(fields[field]) for field, tag in tags.items() if fields.get(field) is not None}
        if values:
            self._events.scalars(step, values, now)

    def write_step(self, result: StepResult, batches: Sequence[Batch], *, wait_seconds: float) -> None:
        """The line of a step, after one for each graph that was compiled for it.

        batches: of the step, one a micro-batch.
        wait_seconds: that the step waited for them.
        """
        for compiled in result.compiled:
            shapes, seconds = [list(shape) for shape in compiled.shapes], round(compiled.seconds, 6)
            reason, graph = compiled.reason, compiled.graph
            self.write("compile", result.step, graph=graph, shapes=shapes, reason=reason, seconds=seconds)
        buckets = _buckets(batches)
        rows, data_tokens, places = (sum(bucket[column] for bucket in buckets) for column in (1, 2, 3))
        self.write(
            "step",
            result.step,
            loss=result.loss,
            tokens=result.tokens,
            learning_rate=result.learning_rate,
            grad_norm=result.grad_norm,
            clipped=result.clipped,
            skipped=result.skipped,
            loss_scale=result.loss_scale,
            step_seconds=round(result.seconds, 6),
            wait_seconds=round(wait_seconds, 6),
            length=buckets[-1][0],
            rows=rows,
            data_tokens=data_tokens,
            places=places,
            **({"buckets": buckets} if len(buckets) > 1 else {}),
            tokens_per_second=round(data_tokens / max(result.seconds + wait_seconds, 1e-9), 1),
            epoch=batches[-1].epoch,
            rss_bytes=resident_bytes(),
        )

    def write_operators(self, step: int) -> None:
        """The time of native operators since this was called last: now and then, and when the run ends."""
        if self._op_times is None:
            return
        now = self._op_times()
        spent = {}
        for name, (seconds, calls) in now.items():
            before, called = self._operators.get(name, (0.0, 0))
            if calls > called:
                spent[name] = [round(seconds - before, 6), calls - called]
        self._operators = now
        if spent:
            self.write("operators", step, operators=spent)

    def sync(self) -> None:
        """Have on the disk what was written: before a checkpoint says that these steps are taken."""
        os.fsync(self._open().fileno())

    def close(self) -> None:
        """Close both files."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        if self._file is None:
            raise ValueError(f"{self.path}: closed")
        return self._file

    def _append(self, data: bytes) -> None:
        file = self._open()
        try:
            written = 0
            while written < len(data):
                written += file.write(data[written:])
        except OSError as error:
            file.truncate(self._size)
            raise TrainError(
                f"{self.path}: cannot be written ({error.strerror}); make room and resume the run"
            ) from None
        self._size += len(data)


def _buckets(batches: Sequence[Batch]) -> list[list[int]]:
    """Length, rows, tokens and places of batches, those of equal length together, the shortest first."""
    sums: dict[int, list[int]] = {}
    for batch in batches:
        of_length = sums.setdefault(batch.length, [batch.length, 0, 0, 0])
        of_length[1] += batch.rows
        of_length[2] += batch.tokens
        of_length[3] += len(next(iter(batch.columns.values()))) * batch.length
    return [sums[length] for length in sorted(sums)]


def resident_bytes() -> int:
    """Memory of this process that is resident now; where the system does not say, the most that ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _cut(path: Path, step: int) -> int:
    """End the file before the first line of a later step, and before a torn last line; returns its size."""
    keep = 0
    try:
        with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
            for line in file:
                if not line.endswith(b"\n") or _step(line) > step:
                    break
                keep += len(line)
    except FileNotFoundError:
        return 0
    if keep < path.stat().st_size:
        os.truncate(path, keep)
    return keep


def _step(line: bytes) -> int:
    """The step of a line; of one that cannot be read -1, so that it hides none of those after it."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1
    return step if isinstance(step, int) else -1


def _plain(value: Any) -> Any:
    """What json writes of a value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):  # NumPy's numbers
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Path) else value
