"""Low-rank adaptation (LoRA; Hu et al., 2021): a frozen network and small trained matrices beside its linear layers.

y = base(x) + scaling * B A dropout(x), with scaling = alpha / rank, or alpha / sqrt(rank) for rank-stabilised LoRA
(Kalajdzievski, 2023).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.dense import Dense
from mindspeed_ms.ops.dropout import Dropout
from mindspeed_ms.train.cells import forget_graphs, hide, parameter_users, places, put

ALL_LINEAR = "all-linear"
OUTPUT_LAYER = "lm_head"  # the training loss reads its weight without calling it
SEED = "dropout_seed"


@dataclass(frozen=True)
class LoraConfig:
    """What is adapted, and how.

    rank: columns of B and rows of A. alpha: see the scaling above. dropout: share of the inputs of A that is dropped
    in training. targets: last parts of layer names, such as `q_proj`, or whole paths; `"all-linear"` takes all linear
    layers but the output layer. use_rslora: the rank-stabilised scaling. Raises ConfigError.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: Sequence[str] | str = ALL_LINEAR
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.rank, int) or self.rank < 1:
            raise ConfigError(f"lora.rank: {self.rank!r}: expected a whole number from 1, such as 8")
        if not _is_number(self.alpha, (int, float)) or not 0 < self.alpha < math.inf:
            raise ConfigError(f"lora.alpha: {self.alpha!r}: expected a number above 0, such as 16")
        if not _is_number(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ConfigError(f"lora.dropout: {self.dropout!r}: expected a number from 0 to below 1")
        if isinstance(self.targets, str) and self.targets != ALL_LINEAR:
            raise ConfigError(f"lora.targets: {self.targets!r}: expected a list of layer names, or {ALL_LINEAR!r}")
        if not self.targets or not all(isinstance(target, str) and target for target in self.targets):
            raise ConfigError(f"lora.targets: {self.targets!r}: expected one or more layer names, or {ALL_LINEAR!r}")

    @property
    def scaling(self) -> float:
        """The factor of B A."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


@dataclass(frozen=True)
class LoraReport:
    """What was wrapped, and how much of the network is trained now."""

    wrapped: tuple[str, ...]  # paths of the linear layers
    trained: tuple[str, ...]  # names of the Parameters
    trained_parameters: int
    all_parameters: int  # the trained ones included

    @property
    def share(self) -> float:
        """The trained share of all parameters."""
        return self.trained_parameters / self.all_parameters

    def __str__(self) -> str:
        return (
            f"LoRA on {len(self.wrapped)} layers: {self.trained_parameters:,} of {self.all_parameters:,} parameters "
            f"are trained ({self.share:.2%})"
        )


class LoraDense(nn.Cell):
    """x [..., in] float32 -> base(x) + scaling * B A dropout(x), [..., out].

    `weight` and `bias` are the base's own Parameters under their own names, frozen; `lora_A.weight` [rank, in] and
    `lora_B.weight` [out, rank] are trained. `seed` [2] int32 decides what is dropped, and `salt` tells layers apart.
    """

    def __init__(self, base: nn.Cell, config: LoraConfig, seed: Parameter | None = None, salt: int = 0) -> None:
        super().__init__(auto_prefix=False)
        for name, parameter in base._params.items():
            self.insert_param_to_cell(name, parameter)
        hide(self, "base", base)
        outputs, inputs = base.weight.shape
        self.config = config
        self.scaling = config.scaling
        self.lora_A = Dense(inputs, config.rank)
        self.lora_B = Dense(config.rank, outputs)
        self.dropout = None
        self.seed = seed
        if seed is not None:
            self.salt = Tensor([salt, 0], ms.int32)
            self.dropout = Dropout(config.dropout)

    def construct(self, x: Tensor) -> Tensor:
        y = self.base(x)
        if self.dropout is not None and self.training:
            x = self.dropout(x, self.seed + self.salt)
        return y + self.lora_B(self.lora_A(x) * self.scaling)


def apply_lora(model: nn.Cell, config: LoraConfig, seed: int = 0) -> LoraReport:
    """Wrap the linear layers that `config.targets` names, in place, and freeze all else.

    A is drawn as PEFT draws it (Kaiming uniform with a = sqrt 5), by `seed` and the layer's name; B is zero, so that
    outputs stay as they were. With dropout the model gets a Parameter `dropout_seed` [2] int32: (`seed`, 0). Its second
    number should differ from one forward pass to the next. Raises ConfigError.
    """
    report = wrap_layers(model, config, select_targets(model, config.targets), seed)
    for path, layer in lora_layers(model).items():
        bound = 1 / math.sqrt(layer.lora_A.weight.shape[1])
        values = _generator(seed, path).uniform(-bound, bound, layer.lora_A.weight.shape)
        layer.lora_A.weight.set_data(Tensor(values.astype(np.float32)))
    return report


def wrap_layers(model: nn.Cell, config: LoraConfig, paths: Sequence[str], seed: int = 0) -> LoraReport:
    """Wrap the layers at `paths` with A and B zero, and freeze all else. Raises ConfigError before it changes any."""
    if lora_layers(model):
        raise ConfigError("lora: the model has LoRA layers already; merge them first, or load the model again")
    layers = linear_layers(model)
    users = parameter_users(model)
    for path in paths:
        _check_layer(path, layers[path], users)
    for parameter in model.get_parameters():
        parameter.requires_grad = False
    shared = None
    if config.dropout:
        shared = Parameter(Tensor([seed & 0x7FFFFFFF, 0], ms.int32), name=SEED, requires_grad=False)
        model.insert_param_to_cell(SEED, shared)
    wrappers = {}
    for salt, path in enumerate(paths):
        wrapper = wrappers[id(layers[path])] = LoraDense(layers[path], config, shared, salt)
        wrapper.set_train(layers[path].training)
        wrapper.lora_A.update_parameters_name(f"{path}.lora_A.")
        wrapper.lora_B.update_parameters_name(f"{path}.lora_B.")
    for _, parent, name, cell in list(places(model)):
        if id(cell) in wrappers:
            put(parent, name, wrappers[id(cell)])
    forget_graphs(model)
    return _report(model, paths)


def merge_lora(model: nn.Cell) -> list[str]:
    """Add scaling * B A to the base weights and take the wrappers away, in place; returns the layers' paths.

    The sum is formed in float64. Parameters stay frozen. Raises ConfigError when there is nothing to merge.
    """
    layers = lora_layers(model)
    if not layers:
        raise ConfigError("lora: the model has no LoRA layers to merge")
    for layer in layers.values():
        a, b = (matrix.weight.asnumpy().astype(np.float64) for matrix in (layer.lora_A, layer.lora_B))
        merged = layer.weight.asnumpy() + layer.scaling * (b @ a)
        layer.weight.set_data(Tensor(merged.astype(np.float32)))
    for _, parent, name, cell in list(places(model)):
        if isinstance(cell, LoraDense):
            put(parent, name, cell.base)
    seed = next(iter(layers.values())).seed
    if seed is not None:
        del model._params[SEED]
    forget_graphs(model)
    return list(layers)


def lora_layers(model: nn.Cell) -> dict[str, LoraDense]:
    """The LoRA layers of a model by path."""
    return {path: cell for path, cell in model.cells_and_names() if isinstance(cell, LoraDense)}


def linear_layers(model: nn.Cell) -> dict[str, nn.Cell]:
    """What LoRA can wrap, by path: MindSpore's Dense and ours; of a layer in two places the first path."""
    return {path: cell for path, cell in model.cells_and_names() if path and type(cell) in (nn.Dense, Dense)}


def select_targets(model: nn.Cell, targets: Sequence[str] | str) -> list[str]:
    """The paths that targets name, in the order of the model. Raises ConfigError for a target that names none."""
    paths = list(linear_layers(model))
    if targets == ALL_LINEAR:
        chosen = [path for path in paths if _leaf(path) != OUTPUT_LAYER]
        if not chosen:
            raise ConfigError(f"lora.targets: {ALL_LINEAR!r}: the model has no linear layers besides its output layer")
        return chosen
    for target in targets:
        if not any(_names(target, path) for path in paths):
            known = ", ".join(dict.fromkeys(_leaf(path) for path in paths if _leaf(path) != OUTPUT_LAYER))
            raise ConfigError(f"lora.targets: no linear layer is named {target!r}; expected some of: {known or 'none'}")
    return [path for path in paths if any(_names(target, path) for target in targets)]


def _check_layer(path: str, layer: nn.Cell, users: dict[int, list[str]]) -> None:
    if _leaf(path) == OUTPUT_LAYER:
        raise ConfigError(
            f"lora.targets: {path!r} is the output layer, which the loss takes without LoRA; leave it out"
        )
    if getattr(layer, "activation", None) is not None:
        raise ConfigError(f"lora.targets: {path!r} has an activation inside, expected a linear layer; leave it out")
    if layer.weight.dtype != ms.float32:
        raise ConfigError(f"lora.targets: {path!r} is of {layer.weight.dtype}, expected Float32; convert it first")
    others = [user for user in users[id(layer.weight)] if user != path]
    if others:
        raise ConfigError(
            f"lora.targets: {path!r} shares its weight with {others[0]!r}, which a merge would change too"
        )


def _report(model: nn.Cell, paths: Sequence[str]) -> LoraReport:
    trained = [parameter for parameter in model.get_parameters() if parameter.requires_grad]
    return LoraReport(
        wrapped=tuple(paths),
        trained=tuple(parameter.name for parameter in trained),
        trained_parameters=sum(parameter.size for parameter in trained),
        all_parameters=sum(parameter.size for parameter in model.get_parameters() if parameter.name != SEED),
    )


def _generator(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on a name and not on the order in which layers are drawn."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))


def _names(target: str, path: str) -> bool:
    return path == target or path.endswith("." + target)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
