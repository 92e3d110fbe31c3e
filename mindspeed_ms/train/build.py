"""A plan's network, with its weights, and the step that trains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import WeightsError
from mindspeed_ms.models import build_model
from mindspeed_ms.train.decode import Adapters
from mindspeed_ms.train.initialize import STD, initialize
from mindspeed_ms.train.lora import SEED, LoraConfig, LoraReport, apply_lora, lora_layers, merge_lora
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.loss_scale import DynamicLossScale
from mindspeed_ms.train.plan import Plan
from mindspeed_ms.train.precision import apply_amp
from mindspeed_ms.train.run_folder import OFFLOAD
from mindspeed_ms.train.schedule import make_schedule
from mindspeed_ms.train.step import TrainStep
from mindspeed_ms.weights.load import load_model


@dataclass(frozen=True)
class Training:
    """A model, the network that gives its loss, and the step that trains it."""

    model: nn.Cell
    network: nn.Cell
    step: TrainStep
    lora: LoraReport | None

    def weights(self) -> dict[str, np.ndarray]:
        """All parameters of the model by Hugging Face's names: views. LoRA's are not among them."""
        return {p.name: p.asnumpy() for p in self.model.get_parameters() if "lora_" not in p.name}

    def adapters(self) -> Adapters | None:
        """What LoRA adds to the output of a layer, as samples are written."""
        layers = lora_layers(self.model)
        if not layers:
            return None
        parts = {
            path: (layer.lora_A.weight.asnumpy(), layer.lora_B.weight.asnumpy(), np.float32(layer.scaling))
            for path, layer in layers.items()
        }

        def added(path: str, x: np.ndarray) -> np.ndarray | None:
            if path not in parts:
                return None
            a, b, scaling = parts[path]
            result: np.ndarray = (x @ a.T * scaling) @ b.T
            return result

        return added

    def merge(self) -> dict[str, np.ndarray]:
        """The weights with LoRA's part added to them, in place; it cannot be trained on after that."""
        merge_lora(self.model)
        return self.weights()


def build(plan: Plan) -> Training:
    """Read or draw the weights and make the training step of a plan. Raises WeightsError, ConfigError."""
    ms.set_context(mode=ms.GRAPH_MODE)
    config = plan.config
    if plan.source is not None:
        model = load_model(plan.source)
        check_finite(model, str(plan.source.path))
    else:
        model = build_model(plan.spec)
        initialize(model, config.run.seed, float(plan.hf_config.get("initializer_range") or STD))
    report = None
    if config.lora is not None:
        lora = config.lora
        report = apply_lora(model, LoraConfig(lora.rank, lora.alpha, lora.dropout, lora.targets), config.run.seed)
    if config.step.recompute:
        for layer in model.model.layers:
            layer.recompute()
    network = apply_amp(CausalLMLoss(model), config.step.amp)
    step = TrainStep(
        network,
        plan.optimizer,
        make_schedule(config.schedule, config.optimizer.learning_rate, plan.steps),
        max_grad_norm=config.step.max_grad_norm,
        loss_scale=_loss_scale(config),
        offload=Path(config.run.out) / OFFLOAD if config.step.offload_optimizer else None,
    )
    vary_dropout(step, model, config.step.micro_batches)
    return Training(model, network, step, report)


def vary_dropout(step: TrainStep, model: nn.Cell, micro_batches: int) -> None:
    """Have each micro-batch drop other inputs than the one before, and the same when it is made again."""
    seed = model._params.get(SEED)
    if seed is None:
        return

    def vary(number: int) -> None:
        seed.asnumpy()[1] = (step.step * micro_batches + number) & 0x7FFFFFFF

    step.before_batch = vary


def check_finite(model: nn.Cell, where: str) -> None:
    """Raises WeightsError that names the first parameter with a value that is not a number or infinite."""
    for name, parameter in model.parameters_and_names():
        bad = ~np.isfinite(parameter.asnumpy())
        if bad.any():
            raise WeightsError(
                f"{where}: tensor {name!r} holds {int(bad.sum())} values that are not finite; the file is damaged or "
                "the model's training has failed: take another"
            )


def _loss_scale(config: TrainConfig) -> float | DynamicLossScale | None:
    given = config.step.loss_scale
    if given == "dynamic":
        return DynamicLossScale()
    return None if given is None else float(given)
