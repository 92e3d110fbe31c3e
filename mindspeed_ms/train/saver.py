"""Checkpoints of a run, made in the background: what is in one, when it is there, and what is left when one fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from mindspeed_ms.checkpoint.store import Checkpoint, CheckpointStore, NotFinite, Saved
from mindspeed_ms.errors import MindSpeedError, TrainError
from mindspeed_ms.log import get_logger
from mindspeed_ms.ops.aot import kernels_in_use
from mindspeed_ms.train.build import Training
from mindspeed_ms.train.run_folder import digest

log = get_logger(__name__)


class Saver:
    """Hands the state of a step to a store, and tells of each checkpoint that has come to be.

    `told` is called with it, in the thread of the run. aside: in the background, from a copy.
    Raises CheckpointError, and TrainError for a weight that is not finite.
    """

    def __init__(
        self, store: CheckpointStore, training: Training, told: Callable[[Saved], None], aside: bool = True
    ) -> None:
        self._store, self._training, self._told, self._aside = store, training, told, aside
        self._committed: int | None = None  # the newest checkpoint that is known to be there
        self.asked = 0  # the step of the last save, which may still be at work
        self._frozen = self._frozen_names() if training.lora else frozenset()
        tensors = training.step.tensors()
        # Of the weights that an adapter belongs to, which no checkpoint holds.
        self.digest = digest({name: tensors[name] for name in self._frozen}) if training.lora else None

    def save(self, state: Mapping[str, Any], metric: float | None) -> None:
        """Save the present state: after it is copied the run goes on, where there is memory for a copy."""
        step = self._training.step
        tensors = {name: array for name, array in step.tensors().items() if name not in self._frozen}
        finite = [f"model.{name}" for name in step.trained]
        # What nothing but the optimizer's own kernel changes, that one copies: it reads it all anyway.
        late = {*finite, *(n for n in tensors if n.startswith("optimizer."))} if kernels_in_use() == "native" else ()
        if metric is not None and not math.isfinite(metric):
            metric = None
        with self._explained():
            self._store.save(step.step, tensors, state, metric=metric, finite=finite, late=late, wait=not self._aside)
        step.release()
        self.asked = step.step
        self.poll()

    def poll(self) -> None:
        """Tell of what has come to be since, and of what has failed; waits for nothing."""
        with self._explained():
            self._tell(self._store.poll())

    def wait(self) -> None:
        """After this the last save is there, or has failed."""
        with self._explained():
            self._tell(self._store.wait())

    def kept(self) -> str:
        """What there is to go on from."""
        self.settle()
        return self._kept()

    def settle(self) -> None:
        """As `wait`, when the run ends for another reason than a failure of the save."""
        try:
            self.wait()
        except MindSpeedError as error:
            log.warning("%s", error)

    def restore(self, found: Checkpoint) -> None:
        """Read a checkpoint's tensors into the step. Raises CheckpointError, TrainError."""
        step = self._training.step
        room = step.room(found.tensors)
        tensors = found.tensors
        if room.keys() == tensors.keys():  # else they are another model's, and the step says which
            again = self._store.load(found.step, into=room)
            assert again is not None
            tensors = again.tensors
        frozen = {name: array for name, array in step.tensors().items() if name in self._frozen}
        step.load_tensors({**frozen, **tensors} if frozen else tensors)
        self._committed = self.asked = found.step

    def _kept(self) -> str:
        return (
            "there is no checkpoint yet"
            if self._committed is None
            else (f"the checkpoint of step {self._committed} is kept")
        )

    def _tell(self, done: list[Saved]) -> None:
        for saved in done:
            self._committed = saved.step
            self._told(saved)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NotFinite as error:
            raise TrainError(
                f"step {error.step}: weight {error.name.removeprefix('model.')} is not finite, so no checkpoint is "
                f"made; {self._kept()}; lower optimizer.learning_rate or warm up longer"
            ) from None

    def _frozen_names(self) -> frozenset[str]:
        """Of the model's parameters that are not trained and do not change: all but the trained ones and seeds."""
        step = self._training.step
        trained = {f"model.{name}" for name in step.trained}
        return frozenset(
            name
            for name, array in step.tensors().items()
            if name.startswith("model.") and name not in trained and array.dtype.kind == "f"
        )


def saved_fields(saved: Saved) -> dict[str, Any]:
    """The line of a checkpoint; `of` is its step, for the line itself is of the step at which that was known."""
    fields = asdict(saved)
    fields["of"] = fields.pop("step")
    for key in ("seconds", "blocked"):
        fields[key] = round(fields[key], 6)
    return fields
