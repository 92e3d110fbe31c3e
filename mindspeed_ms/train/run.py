"""The life of a training run: steps, evaluations, samples, checkpoints, interruption and resumption."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mindspeed_ms.checkpoint.store import Checkpoint, CheckpointStore
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import MindSpeedError, TrainError
from mindspeed_ms.ops.native.interrupt import restore_interrupt
from mindspeed_ms.train import run_folder as files
from mindspeed_ms.train.build import Training, build
from mindspeed_ms.train.environment import environment
from mindspeed_ms.train.evaluate import Evaluation
from mindspeed_ms.train.lock import only_run
from mindspeed_ms.train.loop import Loop
from mindspeed_ms.train.metrics import MetricsWriter
from mindspeed_ms.train.plan import Plan, make_plan
from mindspeed_ms.train.samples import Sampler
from mindspeed_ms.train.save_model import save_model
from mindspeed_ms.train.stop import stop_in_order

Observer = Callable[[str, int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Summary:
    """What a run came to. `stopped`: the number of the signal that ended it before its last step, or None."""

    out: Path
    step: int
    steps: int
    tokens: int
    seconds: float
    loss: float | None
    evaluation: Evaluation | None
    stopped: int | None
    model: Path | None
    adapter: Path | None


def train(config: TrainConfig, *, resume: bool = False, observe: Observer | None = None) -> Summary:
    """Make a run, or go on with the one in `config.run.out`, until its last step or a signal.

    observe(kind, step, fields) gets what metrics.jsonl gets, and "stop" when a signal has come. SIGINT and SIGTERM
    finish the micro-batch that runs and commit a checkpoint; a second one is KeyboardInterrupt.
    Raises MindSpeedError; what was committed before stays.
    """
    config = files.resolved(config)
    folder = Path(config.run.out)
    _check_folder(folder, resume)
    plan = make_plan(config)
    with only_run(folder):
        _check_folder(folder, resume)
        run = _Run(plan, folder, observe or (lambda kind, step, fields: None))
        try:
            done = run.run(resume)
        except Exception:
            run.store.close()
            raise
        run.store.close()  # not of an interrupted one: that leaves at once, whatever is being saved
        return done


def _check_folder(folder: Path, resume: bool) -> None:
    """Raises TrainError when a run cannot begin, or be gone on with, in a folder."""
    if resume:
        files.read_run(folder)
    elif files.holds_run(folder):
        # A run that is still at it would refuse --resume as well, so that is what to say of it.
        with only_run(folder):
            steps = CheckpointStore(folder / files.CHECKPOINTS, write=False).steps()
        last = f"its last checkpoint is of step {steps[-1]}" if steps else "it has no checkpoint yet"
        raise TrainError(f"{folder}: holds a run already ({last}); go on with --resume, or give another folder")
    else:
        files.require_free(folder)


class _Run:
    def __init__(self, plan: Plan, folder: Path, observe: Observer) -> None:
        self.plan, self.folder, self.observe = plan, folder, observe
        rules = plan.config.run
        self.store = CheckpointStore(
            folder / files.CHECKPOINTS,
            keep=rules.keep,
            keep_every=rules.keep_every,
            keep_best=rules.keep_best,
            identity=self._identity(),
        )

    def run(self, resume: bool) -> Summary:
        started = time.monotonic()
        found, changed = self._resume() if resume else (None, [])
        restore_interrupt()
        sampler = Sampler(self.plan) if self.plan.config.run.samples else None
        training = build(self.plan)
        step = found.step if found else 0
        if not resume:
            files.forget_unbegun(self.folder)
            files.write_run(self.folder, self.plan.config, self._description())
        with MetricsWriter(self.folder, step if resume else None, _op_times()) as metrics:
            _cut_samples(self.folder / files.SAMPLES, step)
            loop = Loop(self.plan, training, self.store, metrics, self.folder, sampler, self.observe)
            if found:
                loop.restore(found)
            if resume:
                # Only now: a run that could not go on as it was asked to is left as it was.
                self._forget_after(step)
                files.write_run(self.folder, self.plan.config, self._description())
                plain = self.plan.config.plain()
                metrics.write("resume", step, environment=environment(), changes=changed, config=plain)
                self.observe("resume", step, {"changes": changed})
            else:
                fields = {**self._description(), "config": self.plan.config.plain()}
                metrics.write("start", 0, **fields)
                self.observe("start", 0, fields)
            return self._train(loop, training, metrics, started)

    def _train(self, loop: Loop, training: Training, metrics: MetricsWriter, started: float) -> Summary:
        def end(reason: str) -> None:
            metrics.write_operators(loop.step)
            metrics.write("end", loop.step, reason=reason, seconds=time.monotonic() - started)
            self.observe("end", loop.step, {"reason": reason})

        model = adapter = None
        try:
            with stop_in_order(lambda number: self.observe("stop", loop.step, {"signal": number})) as stop:
                loop.run(lambda: stop.number is not None)
                if loop.step == self.plan.steps:
                    model, adapter = self._save(training)
                    shutil.rmtree(self.folder / files.OFFLOAD, ignore_errors=True)  # the checkpoint holds it
        except MindSpeedError as error:
            with contextlib.suppress(MindSpeedError):  # on a full disk this line finds no place either
                end(str(error))
            raise
        stopped = stop.number if loop.step < self.plan.steps else None
        end("interrupted" if stopped is not None else "complete")
        return Summary(
            out=self.folder,
            step=loop.step,
            steps=self.plan.steps,
            tokens=loop.tokens,
            seconds=time.monotonic() - started,
            loss=loop.loss,
            evaluation=loop.evaluation,
            stopped=stopped,
            model=model,
            adapter=adapter,
        )

    def _forget_after(self, step: int) -> None:
        """Remove later checkpoints: damaged ones, which are not to stand before those that are made anew."""
        if any(later > step for later in self.store.steps()):
            self.store.forget_after(step)

    def _save(self, training: Training) -> tuple[Path | None, Path | None]:
        """The finished model; of LoRA the adapter, and the merged model if that is wanted."""
        lora = self.plan.config.lora
        if lora is None:
            save_model(self.folder / files.MODEL, self.plan, training.weights())
            return self.folder / files.MODEL, None
        from mindspeed_ms.train.adapter import save_adapter

        save_adapter(training.model, self.folder / files.ADAPTER, self.plan.config.model.source)
        if not lora.merge:
            return None, self.folder / files.ADAPTER
        save_model(self.folder / files.MODEL, self.plan, training.merge())
        return self.folder / files.MODEL, self.folder / files.ADAPTER

    def _description(self) -> dict[str, Any]:
        """run.json, and the first line of the metrics."""
        manifest = self.plan.manifest
        return {
            "identity": self._identity(),
            "model": self.plan.summary(),
            "data": {
                "folder": str(self.plan.folder),
                "sha256": manifest.checksum,
                "rows": manifest.rows,
                "tokens": manifest.tokens,
                "padding_share": manifest.padding_share,
                "buckets": [{"length": bucket.length, "rows": bucket.rows} for bucket in manifest.buckets],
            },
            "memory": asdict(self.plan.memory),
            "environment": environment(),
        }

    def _identity(self) -> dict[str, str]:
        """What a run that goes on has to find again."""
        spec = json.dumps(self.plan.spec.model_dump(mode="json"), sort_keys=True)
        return {
            "data.train": self.plan.manifest.checksum,
            "tokenizer of data.train": self.plan.manifest.tokenizer.identity,
            "architecture of the model": spec,
        }

    def _resume(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole checkpoint, and what has changed. Raises TrainError, CheckpointError."""
        before, values = files.read_run(self.folder)
        changed = files.changes(before, self.plan.config)
        files.check_identity(values["identity"], self._identity())
        found = self.store.load()
        if found is None:
            return None, [*changed, "there was no checkpoint yet: begun again"]
        if found.step > self.plan.steps:
            raise TrainError(
                f"run.steps: the checkpoint is of step {found.step}, expected at least that many steps, not "
                f"{self.plan.steps}"
            )
        return found, changed


def _op_times() -> Callable[[], dict[str, tuple[float, int]]] | None:
    """The counters of the kernels, where they are what runs."""
    from mindspeed_ms.ops.aot import kernels_in_use
    from mindspeed_ms.ops.native.build import op_times

    return op_times if kernels_in_use() == "native" else None


def _cut_samples(path: Path, step: int) -> None:
    """Take away the samples of later steps than the one that a run goes on from, and a torn last line."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = []
    for line in lines:
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        kept.append(line)
    if len(kept) < len(lines):
        files.write_whole(path, b"".join(kept))
