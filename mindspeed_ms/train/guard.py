"""When a run that goes wrong has to end, and where a step that was skipped went bad.

That is a weight, the first layer whose output is not finite, or a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspeed_ms.config.train import GuardConfig
from mindspeed_ms.errors import TrainError
from mindspeed_ms.models.layers import document_starts
from mindspeed_ms.train.launch import launch
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.loss_scale import DynamicLossScale
from mindspeed_ms.train.step import StepResult, TrainStep


class LayerPeaks(nn.Cell):
    """input_ids, labels, position_ids [B, T] int32 -> [layers + 3] float32.

    The largest magnitudes after the embedding, after each layer and after the norm; then the loss.
    """

    def __init__(self, network: CausalLMLoss) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> Tensor:
        model = self.network.model.model
        table = model.rotary_table(input_ids, position_ids)
        starts = document_starts(position_ids)
        x = model.embed_tokens(input_ids)
        peaks = (_peak(x),)
        for layer in model.layers:
            x = layer(x, table, starts)
            peaks += (_peak(x),)
        loss, _ = self.network(input_ids, labels, position_ids)
        return ops.concat((*peaks, _peak(model.norm(x)), loss.astype(ms.float32)))


def _peak(x: Tensor) -> Tensor:
    # a maximum of NaN and numbers may be a number; their sum is not
    x = ops.abs(x.astype(ms.float32)).reshape((-1,))
    return (x.max() + (0.0 * x).sum()).reshape((1,))


def where_bad(step: TrainStep, result: StepResult, batch: Mapping[str, Any]) -> str:
    """What is known of a skipped step's cause, in one phrase; empty where another of its micro-batches is to blame."""
    if result.tokens == 0 and not np.isnan(result.grad_norm):
        return "no token to learn in the batch"
    for weight in step.network.get_parameters():
        if not np.isfinite(weight.asnumpy()).all():
            return f"weight {weight.name} is not finite"
    network = getattr(step.network, "_backbone", step.network)  # below what mixed precision puts around it
    if not np.isfinite(result.loss) and isinstance(network, CausalLMLoss):
        columns = (batch[name] for name in step.columns)
        inputs = [column if isinstance(column, Tensor) else Tensor(column) for column in columns]
        step.probe = step.probe or LayerPeaks(network)
        *peaks, loss = launch(step.probe, *inputs).asnumpy()
        bad = np.flatnonzero(~np.isfinite(peaks))
        if not len(bad) and np.isfinite(loss):
            return ""
        names = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(len(peaks) - 2)), "model.norm"]
        where = names[bad[0]] if len(bad) else "lm_head"
        largest = float(np.max(peaks, where=np.isfinite(peaks), initial=0.0))
        return f"the output of {where} is not finite (largest magnitude before it {largest:.3g})"
    bad = [name for name, square in zip(step.trained, step.squares, strict=True) if not np.isfinite(square)]
    if bad:
        # gradients flow backwards: what comes last in the network went bad first
        return f"the gradient of {bad[-1]} is not finite ({len(bad)} of {len(step.trained)} gradients are not)"
    return "the loss is not finite" if not np.isfinite(result.loss) else "the gradients' norm overflowed"


class Guard:
    """Ends a run after too many bad steps in a row; `bad` counts them by what is wrong, and belongs to a checkpoint."""

    def __init__(self, limits: GuardConfig, vocabulary: int, step: TrainStep) -> None:
        self._limits, self._vocabulary, self._step = limits, vocabulary, step
        self.bad = {"skipped": 0, "diverged": 0, "dead": 0}

    def check(self, result: StepResult, where: str, kept: Callable[[], str]) -> None:
        """Count a step; `where` it went bad, and `kept` says what is left of the run. Raises TrainError."""
        limits, bad = self._limits, self.bad
        ratio = limits.max_loss_ratio
        diverged = ratio is not None and result.loss > ratio * math.log(self._vocabulary)
        # Gradients that are too large for float16 are what a dynamic scale finds its value by.
        dynamic = isinstance(self._step.loss_scale, DynamicLossScale)
        falling = dynamic and math.isfinite(result.loss) and result.loss_scale > 1
        dead = result.tokens > 0 and result.grad_norm == 0
        for kind, holds in (("skipped", result.skipped and not falling), ("diverged", diverged), ("dead", dead)):
            bad[kind] = bad[kind] + 1 if holds else 0
        if max(bad.values()) < limits.max_skipped:
            return
        first = result.step - limits.max_skipped + 1
        advice = f"lower optimizer.learning_rate ({result.learning_rate:.3g} at this step) or warm up longer"
        if bad["skipped"] >= limits.max_skipped and not result.tokens:
            raise TrainError(
                f"data.train: {limits.max_skipped} steps in a row, from step {first} on, were skipped, the last one "
                f"had no token to learn; {kept()}: prepare a set whose loss mask leaves some, or raise "
                "guard.max_skipped"
            )
        if bad["skipped"] >= limits.max_skipped:
            what = f"{limits.max_skipped} steps in a row, from step {first} on, were not finite: {where}"
        elif bad["dead"] >= limits.max_skipped:
            what = f"no gradient has reached any weight from step {first} on (loss {result.loss:.4g}): what the layers "
            what += "give has overflowed or died"
        else:
            what = f"the loss has diverged: from step {first} on it was above {ratio:g} times that of guessing, "
            what += f"{result.loss:.3g} at step {result.step}"
        raise TrainError(f"{what}; {kept()}; {advice}")
