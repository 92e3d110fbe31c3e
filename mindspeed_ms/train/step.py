"""One optimizer step of any network: gradients, accumulation, clipping, loss scale, guard and update in one graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from mindspeed_ms.errors import ConfigError, TrainError
from mindspeed_ms.train.accumulate import TOTALS, Accumulation, Paused, fill
from mindspeed_ms.train.graph import ApplyStep, ScaledLoss, Update, WholeStep, zeros
from mindspeed_ms.train.inputs import Batch, inputs_of
from mindspeed_ms.train.launch import launch
from mindspeed_ms.train.loss_scale import DynamicLossScale
from mindspeed_ms.train.offload import OffloadedUpdate
from mindspeed_ms.train.optimizer import Optimizer

_NO_CLIP = 3.0e38


@dataclass(frozen=True)
class Compilation:
    """A graph that MindSpore compiled, its input shapes, why, and how many seconds its first run took."""

    graph: str
    shapes: tuple[tuple[int, ...], ...]
    reason: str
    seconds: float


@dataclass(frozen=True)
class StepResult:
    """What a step did.

    step: how many have been made, this one included. loss: the mean over `tokens`. grad_norm: of the mean gradient,
    before clipping. skipped: something was not finite, or there was no token to learn, and nothing was changed.
    """

    step: int
    loss: float
    tokens: int
    learning_rate: float
    grad_norm: float
    clipped: bool
    skipped: bool
    loss_scale: float
    seconds: float
    compiled: tuple[Compilation, ...]


class TrainStep:
    """Trains a network, a step a call: `step(batch)`, or `step([batch, batch])` for one step over micro-batches.

    network: a Cell of the batch's `columns`, in this order. It returns (loss summed over tokens, tokens), so that
        every token weighs the same whatever the micro-batches; or one scalar, a mean, and each micro-batch weighs 1.
    optimizer: of train/optimizer.py. schedule: the learning rate, or a function of the number of steps made before.
    max_grad_norm: gradients are scaled down to this global norm.
    loss_scale: a number or a DynamicLossScale, for float16.
    columns: of a batch that is a mapping; a batch may also be a sequence of arrays.
    group: a communication group whose processes hold the same weights and see other batches.
    offload: a folder for the optimizer's state, which then takes no memory but for the part at work.

    The parameters that require gradients when it is made are trained, in place. Raises ConfigError.

    `pause` is asked before each micro-batch but the first of a call; when it says so, the call raises Paused.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: Optimizer,
        schedule: float | Callable[[int], float],
        *,
        max_grad_norm: float | None = None,
        loss_scale: float | DynamicLossScale | None = None,
        columns: Sequence[str] = ("input_ids", "labels", "position_ids"),
        group: str | None = None,
        offload: str | Path | None = None,
    ) -> None:
        if ms.get_context("mode") != ms.GRAPH_MODE:
            raise ConfigError(
                "mode: a step is one graph, and MindSpore is set to run operators one by one; call "
                "mindspore.set_context(mode=mindspore.GRAPH_MODE) first"
            )
        if max_grad_norm is not None and not 0 < max_grad_norm < _NO_CLIP:
            raise ConfigError(f"max_grad_norm: {max_grad_norm}: expected a number above 0, or None")
        self.network, self.optimizer, self.columns = network, optimizer, tuple(columns)
        self.schedule = schedule if callable(schedule) else lambda step: float(schedule)
        self.max_grad_norm, self.loss_scale = max_grad_norm, loss_scale
        self.weights = ParameterTuple(network.trainable_params())
        if not self.weights:
            raise ConfigError("network: none of its parameters requires a gradient; expected at least one to train")
        self.trained: list[str] = [weight.name for weight in self.weights]
        if len(set(self.trained)) != len(self.trained):
            twice = next(name for name in self.trained if self.trained.count(name) > 1)
            raise ConfigError(f"network: two parameters are named {twice!r}; give each a name of its own")
        network.set_train(True)
        self._loss = ScaledLoss(network)
        decay = [optimizer.decays(w.name, w.shape) for w in self.weights]
        self._states: dict[str, np.ndarray | Parameter] = {}
        if offload is None:
            states = {
                kind: ParameterTuple(
                    [zeros(_state(kind, w), optimizer.state_shape(kind, w.shape)) for w in self.weights]
                )
                for kind in optimizer.kinds
            }
            self._states = {p.name: p for state in states.values() for p in state}
            self._update = Update(optimizer.update(decay), self.weights, list(states.values()), group)
            self._whole = WholeStep(self._loss, self.weights, self._update)
        else:
            if group is not None:
                raise ConfigError("offload: not together with a group of processes; leave one of them out")
            self._offloaded = OffloadedUpdate(optimizer, self.weights, decay, Path(offload))
            for kind, views in self._offloaded.states.items():
                self._states |= {_state(kind, w): view for w, view in zip(self.weights, views, strict=True)}
        self.offloaded = offload is not None
        self._micro: Accumulation | None = None
        self._apply: ApplyStep | None = None
        self.step, self.applied, self.skipped = 0, 0, 0
        self.pending = 0  # micro-batches of the next step that are in its sums already
        self._half_loaded = False  # whether those sums came from `load_tensors`
        self.pause: Callable[[], bool] = lambda: False
        self.compilations: list[Compilation] = []
        self._seen: set[tuple[str, tuple[tuple[int, ...], ...]]] = set()
        self.before_batch: Callable[[int], None] = lambda number: None  # called with the micro-batch's number
        self.probe: nn.Cell | None = None  # what guard.py compiles once
        self.squares = np.zeros(len(self.weights), np.float32)  # of the last step's gradients, one a tensor

    def __call__(self, batch: Batch | list[Batch]) -> StepResult:
        """Make one step, or go on with the one that has paused: then with all of its batches again.

        Raises DeviceLostError when a kernel refuses its input, such as an unknown token; Paused.
        """
        started, compiled = time.perf_counter(), len(self.compilations)
        scale = self._scale()
        learning_rate = float(self.schedule(self.step))
        numbers = Tensor(np.array(self.optimizer.numbers(self.applied + 1, learning_rate), np.float64))
        clip = _one(self.max_grad_norm or _NO_CLIP)
        batches = batch if isinstance(batch, list) else [batch]
        if not batches:
            raise ConfigError("batch: an empty list of micro-batches: expected at least one")
        if self.pending >= len(batches):
            raise ConfigError(
                f"batch: {len(batches)} micro-batches, but {self.pending} of this step are done already; "
                "give all of the step, these too"
            )
        report, squares = self._take(batches, numbers, _one(scale), clip)
        loss, tokens, norm, taken = (float(x) for x in report.asnumpy())
        self.squares = squares.asnumpy()
        self._count(taken > 0, tokens)
        return StepResult(
            step=self.step,
            loss=loss / tokens if tokens else float("nan"),
            tokens=int(tokens) if np.isfinite(tokens) else 0,
            learning_rate=learning_rate,
            grad_norm=norm,
            clipped=taken > 0 and self.max_grad_norm is not None and norm > self.max_grad_norm,
            skipped=taken == 0,
            loss_scale=scale,
            seconds=time.perf_counter() - started,
            compiled=tuple(self.compilations[compiled:]),
        )

    def _take(self, batches: list[Batch], numbers: Tensor, scale: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
        if len(batches) == 1 and not self.offloaded:
            self.before_batch(0)
            return self._run("step", 3, self._whole, numbers, scale, clip, *inputs_of(batches[0], self.columns))
        micro = self._accumulating()
        first, self.pending = self.pending, 0  # an error within leaves sums that no step may go on from
        for number in range(first, len(batches)):
            if number > first and self.pause():
                self.pending = number
                raise Paused(number)
            self.before_batch(number)
            inputs = inputs_of(batches[number], self.columns)
            self._run("micro-batch", 2, micro.cell, _one(float(number > 0)), scale, *inputs)
        if self.offloaded:
            loss, tokens = (Tensor(micro.totals.asnumpy()[i : i + 1].copy()) for i in (0, 1))
            return self._offloaded(loss, tokens, micro.sums, numbers, scale, clip)
        return self._run("update", 3, self._apply, numbers, scale, clip)

    def tensors(self) -> dict[str, np.ndarray]:
        """All parameters ("model.NAME") and the optimizer's state ("optimizer.KIND.NAME"): views, not copies.

        Of a step that has paused also its sums ("gradient.NAME" and "totals").
        """
        return self._views(self.pending > 0)

    def room(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Where `load_tensors` would put what is named so: arrays to read into. Other names are passed over."""
        views = self._views(TOTALS in names)
        return {name: views[name] for name in names if name in views}

    def load_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what `tensors` gave. Raises TrainError for a name too few or too many, and for another shape."""
        half = TOTALS in tensors
        named = self._named(half)
        disputed = sorted(set(named) ^ set(tensors))
        if disputed:
            where = "is not in the checkpoint" if disputed[0] in named else "is in the checkpoint only"
            raise TrainError(f"{disputed[0]}: {where}; it belongs to another model, optimizer or adapter")
        for name, parameter in named.items():
            if tensors[name].shape != parameter.shape:
                raise TrainError(f"{name}: shape {tensors[name].shape} in the checkpoint, expected {parameter.shape}")
        for name, parameter in named.items():
            if isinstance(parameter, Parameter):
                fill(parameter, tensors[name])
            elif parameter is not tensors[name]:
                parameter[...] = tensors[name]
        self.pending, self._half_loaded = 0, half
        self.release()

    def release(self) -> None:
        """Give back the memory of offloaded state that `tensors` or `load_tensors` was read or written by."""
        if self.offloaded:
            self._offloaded.release()

    def state_dict(self) -> dict[str, Any]:
        """What `tensors` does not hold: plain values."""
        scale = self.loss_scale
        return {
            "step": self.step,
            "applied": self.applied,
            "skipped": self.skipped,
            "pending": self.pending,
            "loss_scale": scale.state_dict() if isinstance(scale, DynamicLossScale) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the step that `state_dict` was taken at; `load_tensors` comes first.

        `pending` may be left out: none. Raises ConfigError, TrainError.
        """
        state = {"pending": 0, **state}
        for key in ("step", "applied", "skipped", "pending"):
            if type(state.get(key)) is not int or state[key] < 0:
                raise TrainError(f"{key}: {state.get(key)!r} in the checkpoint, expected a whole number from 0")
        if (state["pending"] > 0) != self._half_loaded:
            has = "holds" if self._half_loaded else "does not hold"
            raise TrainError(f"pending: {state['pending']} micro-batches, but the checkpoint {has} sums of gradients")
        if isinstance(self.loss_scale, DynamicLossScale) and state.get("loss_scale") is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
        self.step, self.applied, self.skipped = state["step"], state["applied"], state["skipped"]
        self.pending = state["pending"]

    def _named(self, half: bool) -> dict[str, Parameter | np.ndarray]:
        sums = self._accumulating().named() if half else {}
        return {f"model.{p.name}": p for p in self.network.get_parameters()} | self._states | sums

    def _views(self, half: bool) -> dict[str, np.ndarray]:
        return {name: x.asnumpy() if isinstance(x, Parameter) else x for name, x in self._named(half).items()}

    def _scale(self) -> float:
        scale = self.loss_scale
        return 1.0 if scale is None else scale.value if isinstance(scale, DynamicLossScale) else float(scale)

    def _count(self, taken: bool, tokens: float) -> None:
        self.step += 1
        self.applied += taken
        self.skipped += not taken
        if isinstance(self.loss_scale, DynamicLossScale) and tokens != 0:
            self.loss_scale.update(taken)

    def _accumulating(self) -> Accumulation:
        if self._micro is None:
            self._micro = Accumulation(self._loss, self.weights)
            self._apply = None if self.offloaded else ApplyStep(self._micro.sums, self._micro.totals, self._update)
        return self._micro

    def _run(self, name: str, before: int, graph: nn.Cell | None, *inputs: Tensor) -> Any:
        """Run a graph; the batch is what comes after `before` other inputs."""
        shapes = tuple(tuple(x.shape) for x in inputs[before:])
        new = (name, shapes) not in self._seen
        started = time.perf_counter()
        result = launch(graph, *inputs)
        if new:
            self._seen.add((name, shapes))
            what = f"first {name}" + (f" of {list(shapes[0])}" if shapes else "")
            self.compilations.append(Compilation(name, shapes, what, time.perf_counter() - started))
        return result


def _state(kind: str, weight: Parameter) -> str:
    return f"optimizer.{kind}.{weight.name}"


def _one(value: float) -> Tensor:
    return Tensor(np.array([value], np.float32), ms.float32)
