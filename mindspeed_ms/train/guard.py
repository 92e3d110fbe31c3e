"""Says where a step that was skipped went bad: a weight, the first layer whose output is not finite, or a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspeed_ms.models.layers import document_starts
from mindspeed_ms.train.launch import launch
from mindspeed_ms.train.loss import CausalLMLoss
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
