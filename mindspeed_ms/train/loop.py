"""Step after step, and what is due between them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindspeed_ms.checkpoint.store import Checkpoint, CheckpointStore, Saved
from mindspeed_ms.data.loader import Batch
from mindspeed_ms.errors import TrainError
from mindspeed_ms.ops.native.interrupt import restore_interrupt
from mindspeed_ms.train.accumulate import Paused
from mindspeed_ms.train.build import Training
from mindspeed_ms.train.evaluate import Evaluation, Evaluator
from mindspeed_ms.train.guard import Guard, where_bad
from mindspeed_ms.train.metrics import MetricsWriter, resident_bytes
from mindspeed_ms.train.plan import Plan
from mindspeed_ms.train.run_folder import SAMPLES
from mindspeed_ms.train.samples import Sampler
from mindspeed_ms.train.saved_state import checked_state
from mindspeed_ms.train.saver import Saver, saved_fields
from mindspeed_ms.train.step import StepResult

_MOST_IDS = 64  # of a skipped batch's rows that are written down


class Loop:
    """Makes the steps of a plan that are left; `run` may be called once."""

    def __init__(
        self,
        plan: Plan,
        training: Training,
        store: CheckpointStore,
        metrics: MetricsWriter,
        folder: Path,
        sampler: Sampler | None,
        observe: Callable[[str, int, Mapping[str, Any]], None],
    ) -> None:
        self.plan, self.training, self.metrics = plan, training, metrics
        self.folder, self._sampler, self.observe = folder, sampler, observe
        self.tokens = 0  # learnt from, without padding
        self.loss: float | None = None
        self.evaluation: Evaluation | None = None
        self._guard = Guard(plan.config.guard, plan.spec.vocab_size, training.step)
        self._saver = Saver(store, training, self._committed, plan.saves_aside)
        self._done = {"eval": 0, "sample": 0}  # the step of the last one
        self._loader_state = plan.loader.state_dict()  # after the last whole step
        self._batches: Iterator[Batch] | None = None
        data = plan.config.data
        self._evaluate = (
            Evaluator(training.network, plan.eval_loader, batches=data.eval_batches) if plan.eval_loader else None
        )

    @property
    def step(self) -> int:
        """Steps made."""
        return self.training.step.step

    def run(self, stop: Callable[[], bool]) -> None:
        """Make steps until the last one, or until `stop` says so, asked between micro-batches too; then all is saved.

        Raises TrainError, DataError, CheckpointError, DeviceLostError.
        """
        self.training.step.pause = stop
        paused = False
        try:
            while self.step < self.plan.steps and not stop() and not paused:
                try:
                    self._one()
                except Paused:
                    paused = True
                else:
                    self._due(last=self.step == self.plan.steps)
                    self._saver.poll()
            if paused or self._saver.asked < self.step:
                self._checkpoint()
            self._saver.wait()
        except Exception:
            self._saver.settle()  # whatever ends the run: a save that is at work is worth its end
            raise
        finally:
            self.plan.loader.close()

    def restore(self, found: Checkpoint) -> None:
        """Go on after a checkpoint. Raises CheckpointError, TrainError, DataError, ConfigError."""
        state, step = checked_state(found), self.training.step
        if state["frozen"] != self._saver.digest:
            raise TrainError(
                f"model.from: {self.plan.config.model.source} does not hold the weights that the run's adapter was "
                "trained on; give the same model"
            )
        self._saver.restore(found)
        step.load_state_dict(state["step"])
        self.plan.loader.load_state_dict(state["loader"])
        self._loader_state = state["loader"]
        self.tokens, self.loss = state["tokens"], state["loss"]
        self._guard.bad.update(state["bad"])
        self._done.update(state["done"])
        if state["evaluation"] is not None:
            self.evaluation = Evaluation(**state["evaluation"])

    def _one(self) -> None:
        loader, step = self.plan.loader, self.training.step
        waited = loader.wait_seconds
        batches = self._next_batches()
        waited = loader.wait_seconds - waited
        result = step(batches if len(batches) > 1 else batches[0])
        restore_interrupt()  # without the kernel library nobody has undone what MindSpore did to it
        self._loader_state = loader.state_dict()
        tokens = sum(batch.tokens for batch in batches)
        self.tokens += tokens
        self.loss = result.loss if math.isfinite(result.loss) else self.loss
        self.metrics.write_step(result, batches, wait_seconds=waited)
        self.observe(
            "step",
            self.step,
            {
                **asdict(result),
                "data_tokens": tokens,
                "wait_seconds": waited,
                "steps": self.plan.steps,
                "epoch": batches[0].epoch,
                "rss_bytes": resident_bytes(),
            },
        )
        where = self._skipped(result, batches) if result.skipped else ""
        self._guard.check(result, where, self._saver.kept)

    def _next_batches(self) -> list[Batch]:
        """The micro-batches of the next step; fewer where the run ends with its epochs. Raises TrainError."""
        loader, micro = self.plan.loader, self.plan.config.step.micro_batches
        wanted = min(micro, self.plan.batches - self.step * micro)
        batches: list[Batch] = []
        try:
            while len(batches) < wanted:
                if self._batches is None:
                    self._batches = iter(loader)
                batch = next(self._batches, None)
                if batch is None:
                    self._batches = None
                else:
                    batches.append(batch)
        except Exception as error:
            # Whatever the thread that makes batches died of: what was learnt until then is kept.
            what = f"{type(error).__name__}: {error}" if not str(error) or not hasattr(error, "errno") else str(error)
            self._checkpoint()
            self._saver.wait()
            raise TrainError(
                f"data.train: no batch could be made after step {self.step} ({what}); a checkpoint of that step is "
                "committed: put the set right and resume the run"
            ) from error
        return batches

    def _skipped(self, result: StepResult, batches: list[Batch]) -> str:
        """Write down which rows a skipped step had; returns where it went bad."""
        where = next((text for batch in batches if (text := where_bad(self.training.step, result, batch))), "")
        samples = [{"length": batch.length, "rows": [int(row) for row in batch.ids[:_MOST_IDS]]} for batch in batches]
        self._tell("skip", reason=where, samples=samples)
        return where

    def _due(self, last: bool) -> None:
        """What comes after a step; the checkpoint last, so that a run which goes on from it repeats nothing."""
        run, step = self.plan.config.run, self.step
        if step % run.log_every == 0:
            self.metrics.write_operators(step)
        if self._evaluate and self._done["eval"] < step and (last or _at(step, run.eval_every)):
            self.evaluation = self._evaluate()
            self._done["eval"] = step
            self._tell("eval", **asdict(self.evaluation))
        if self._sampler and self._done["sample"] < step and (last or _at(step, run.sample_every)):
            self._write_samples()
        # While the loss is far too high, a checkpoint would only push out one of before.
        if self._saver.asked < step and (last or _at(step, run.save_every) and not self._guard.bad["diverged"]):
            self._checkpoint()

    def _write_samples(self) -> None:
        assert self._sampler is not None
        for sample in self._sampler.write(self.step, self.training.weights(), self.training.adapters()):
            line = {"step": self.step, "prompt": sample.prompt, "text": sample.text}
            try:
                with open(self.folder / SAMPLES, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            except OSError as error:
                raise TrainError(f"{self.folder / SAMPLES}: cannot be written ({error.strerror})") from None
            self._tell("sample", **asdict(sample))
        self._done["sample"] = self.step

    def _checkpoint(self) -> None:
        """Have the present state saved in the background; of a step that has paused, what it has summed up too."""
        self.metrics.sync()
        evaluation = self.evaluation
        state = {
            "step": self.training.step.state_dict(),
            # Before the batches of a step that has paused: its rows are read again, and not learnt again.
            "loader": self._loader_state,
            "tokens": self.tokens,
            "loss": self.loss,
            "bad": dict(self._guard.bad),
            "done": dict(self._done),
            "evaluation": asdict(evaluation) if evaluation and math.isfinite(evaluation.perplexity) else None,
            "frozen": self._saver.digest,
        }
        self._saver.save(state, evaluation.loss if evaluation and self._done["eval"] == self.step else None)

    def _committed(self, saved: Saved) -> None:
        self._tell("checkpoint", **saved_fields(saved))

    def _tell(self, kind: str, **fields: Any) -> None:
        self.metrics.write(kind, self.step, **fields)
        self.observe(kind, self.step, fields)


def _at(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
