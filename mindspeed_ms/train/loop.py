"""Step after step, and what is due between them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.store import Checkpoint, Store
from mindspeed_ms.data.loader import Batch
from mindspeed_ms.errors import TrainError
from mindspeed_ms.ops.native.interrupt import restore_interrupt
from mindspeed_ms.train.build import Training
from mindspeed_ms.train.evaluate import Evaluation, Evaluator
from mindspeed_ms.train.guard import where_bad
from mindspeed_ms.train.loss_scale import DynamicLossScale
from mindspeed_ms.train.metrics import MetricsWriter, resident_bytes
from mindspeed_ms.train.plan import Plan
from mindspeed_ms.train.run_folder import SAMPLES, digest
from mindspeed_ms.train.samples import Sampler
from mindspeed_ms.train.saved_state import checked_state
from mindspeed_ms.train.step import StepResult

_MOST_IDS = 64  # of a skipped batch's rows that are written down


class Loop:
    """Makes the steps of a plan that are left; `run` may be called once."""

    def __init__(
        self,
        plan: Plan,
        training: Training,
        store: Store,
        metrics: MetricsWriter,
        folder: Path,
        sampler: Sampler | None,
        observe: Callable[[str, int, Mapping[str, Any]], None],
    ) -> None:
        self.plan, self.training, self.store, self.metrics = plan, training, store, metrics
        self.folder, self._sampler, self.observe = folder, sampler, observe
        self.tokens = 0  # learnt from, without padding
        self.loss: float | None = None
        self.evaluation: Evaluation | None = None
        self._bad = {"skipped": 0, "diverged": 0, "dead": 0}  # steps in a row
        self._done = {"eval": 0, "sample": 0, "checkpoint": 0}  # the step of the last one
        self._loader_state = plan.loader.state_dict()  # after the last whole step
        self._batches: Iterator[Batch] | None = None
        self._frozen = self._frozen_digest()
        data = plan.config.data
        self._evaluate = (
            Evaluator(training.network, plan.eval_loader, batches=data.eval_batches) if plan.eval_loader else None
        )

    @property
    def step(self) -> int:
        """Steps made."""
        return self.training.step.step

    def run(self, stop: Callable[[], bool]) -> None:
        """Make steps until the last one, or until `stop` says so after one; then a checkpoint is committed.

        Raises TrainError, DataError, CheckpointError, DeviceLostError.
        """
        try:
            while self.step < self.plan.steps and not stop():
                self._one()
                self._due(last=self.step == self.plan.steps)
            if self._done["checkpoint"] < self.step:
                self._checkpoint()
        finally:
            self.plan.loader.close()

    def restore(self, found: Checkpoint) -> None:
        """Go on after a checkpoint. Raises CheckpointError, TrainError, DataError, ConfigError."""
        state, step = checked_state(found), self.training.step
        if state["frozen"] != self._frozen:
            raise TrainError(
                f"model.from: {self.plan.config.model.source} does not hold the weights that the run's adapter was "
                "trained on; give the same model"
            )
        # Of an adapter's checkpoint the frozen weights are not a part.
        step.load_tensors({**step.tensors(), **found.tensors} if self._frozen else found.tensors)
        step.load_state_dict(state["step"])
        self.plan.loader.load_state_dict(state["loader"])
        self._loader_state = state["loader"]
        self.tokens, self.loss = state["tokens"], state["loss"]
        self._bad, self._done = {**self._bad, **state["bad"]}, {**state["done"], "checkpoint": found.step}
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
        self._guard(result, batches)

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
            raise TrainError(
                f"data.train: no batch could be made after step {self.step} ({what}); a checkpoint of that step is "
                "committed: put the set right and resume the run"
            ) from error
        return batches

    def _guard(self, result: StepResult, batches: list[Batch]) -> None:
        """Say where a step went bad, and end the run when that goes on. Raises TrainError."""
        limits, vocabulary = self.plan.config.guard, self.plan.spec.vocab_size
        where = ""
        if result.skipped:
            where = next((text for batch in batches if (text := where_bad(self.training.step, result, batch))), "")
            samples = [
                {"length": batch.length, "rows": [int(row) for row in batch.ids[:_MOST_IDS]]} for batch in batches
            ]
            self._tell("skip", reason=where, samples=samples)
        diverged = limits.max_loss_ratio is not None and result.loss > limits.max_loss_ratio * math.log(vocabulary)
        # Gradients that are too large for float16 are what a dynamic scale finds its value by.
        scale = self.training.step.loss_scale
        falling = isinstance(scale, DynamicLossScale) and math.isfinite(result.loss) and result.loss_scale > 1
        self._bad["skipped"] = self._bad["skipped"] + 1 if result.skipped and not falling else 0
        self._bad["diverged"] = self._bad["diverged"] + 1 if diverged else 0
        dead = result.tokens > 0 and result.grad_norm == 0
        self._bad["dead"] = self._bad["dead"] + 1 if dead else 0
        first = self.step - limits.max_skipped + 1
        kept = self._kept()
        advice = f"{kept}; lower optimizer.learning_rate ({result.learning_rate:.3g} at this step) or warm up longer"
        if self._bad["skipped"] >= limits.max_skipped and not result.tokens:
            raise TrainError(
                f"data.train: {limits.max_skipped} steps in a row, from step {first} on, were skipped, the last one "
                f"had no token to learn; {kept}: prepare a set whose loss mask leaves some, or raise guard.max_skipped"
            )
        if self._bad["skipped"] >= limits.max_skipped:
            raise TrainError(
                f"{limits.max_skipped} steps in a row, from step {first} on, were not finite: {where}; {advice}"
            )
        if self._bad["dead"] >= limits.max_skipped:
            raise TrainError(
                f"no gradient has reached any weight from step {first} on (loss {result.loss:.4g}): what the layers "
                f"give has overflowed or died; {advice}"
            )
        if self._bad["diverged"] >= limits.max_skipped:
            raise TrainError(
                f"the loss has diverged: from step {first} on it was above {limits.max_loss_ratio:g} times that of "
                f"guessing, {result.loss:.3g} at step {self.step}; {advice}"
            )

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
        if self._done["checkpoint"] < step and (last or _at(step, run.save_every) and not self._bad["diverged"]):
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
        started, step = time.monotonic(), self.training.step
        self.metrics.sync()
        tensors = step.tensors()
        for weight in step.weights:
            if not np.isfinite(tensors[f"model.{weight.name}"]).all():
                raise TrainError(
                    f"step {self.step}: weight {weight.name} is not finite, so no checkpoint is made; {self._kept()}; "
                    "lower optimizer.learning_rate or warm up longer"
                )
        if self._frozen:
            frozen = self._frozen_names()
            tensors = {name: array for name, array in tensors.items() if name not in frozen}
        evaluation = self.evaluation
        state = {
            "step": step.state_dict(),
            "loader": self._loader_state,
            "tokens": self.tokens,
            "loss": self.loss,
            "bad": self._bad,
            "done": self._done,
            "evaluation": asdict(evaluation) if evaluation and math.isfinite(evaluation.perplexity) else None,
            "frozen": self._frozen,
        }
        saved = self.store.save(self.step, tensors, state)
        step.release()
        self._done["checkpoint"] = self.step
        self._tell("checkpoint", path=saved.path, bytes=saved.bytes, seconds=time.monotonic() - started)

    def _kept(self) -> str:
        saved = self._done["checkpoint"]
        return f"the checkpoint of step {saved} is kept" if saved else "there is no checkpoint yet"

    def _frozen_names(self) -> set[str]:
        """Of the model's parameters that are not trained and do not change: all but the trained ones and seeds."""
        step = self.training.step
        kept = {f"model.{name}" for name in step.trained}
        return {
            name
            for name, array in step.tensors().items()
            if name.startswith("model.") and name not in kept and array.dtype.kind == "f"
        }

    def _frozen_digest(self) -> str | None:
        """SHA-256 of the weights that an adapter belongs to; None where all weights are trained."""
        if self.training.lora is None:
            return None
        tensors, names = self.training.step.tensors(), self._frozen_names()
        return digest({name: tensors[name] for name in names})

    def _tell(self, kind: str, **fields: Any) -> None:
        self.metrics.write(kind, self.step, **fields)
        self.observe(kind, self.step, fields)


def _at(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
