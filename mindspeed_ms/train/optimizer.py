"""Optimizers as a user names them: their settings, the state each parameter needs, and the numbers of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar

from mindspeed_ms.errors import ConfigError

if TYPE_CHECKING:
    from mindspore import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What all optimizers share; which parameters decay is decided by name and rank.

    weight_decay: the decay's factor. no_decay: shell patterns of names; vectors never decay.
    """

    weight_decay: float = 0.0
    no_decay: tuple[str, ...] = ()
    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]  # of state tensors, in the order that the operator takes them

    def decays(self, name: str, shape: Shape) -> bool:
        """Whether weight decay applies to a parameter."""
        return len(shape) >= 2 and not any(fnmatchcase(name, pattern) for pattern in self.no_decay)

    def state_shape(self, kind: str, shape: Shape) -> Shape:
        """The shape of a parameter's state tensor of one kind, float32."""
        return shape

    def numbers(self, step: int, learning_rate: float) -> list[float]:
        """What the operator takes from the host at step `step` (from 1), float64."""
        raise NotImplementedError

    def update(self, decay: Sequence[bool]) -> nn.Cell:
        """The operator: (parameters, one tuple a kind, gradients, numbers, control) in place; `decay`, one a tensor."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        _check("weight_decay", self.weight_decay, lambda v: v >= 0, "a number from 0")


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as torch.optim.AdamW computes it."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    name = "adamw"
    kinds = ("m", "v")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        _check("eps", self.eps, lambda v: v > 0, "a number above 0")

    def numbers(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, *self.betas, self.eps, self.weight_decay, float(step)]

    def update(self, decay: Sequence[bool]) -> nn.Cell:
        from mindspeed_ms.ops.optimizers import AdamWUpdate

        return AdamWUpdate(decay)


@dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """The sign of an interpolated momentum (Chen et al., 2023, algorithm 2)."""

    betas: tuple[float, float] = (0.9, 0.99)
    name = "lion"
    kinds = ("m",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)

    def numbers(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, *self.betas, self.weight_decay]

    def update(self, decay: Sequence[bool]) -> nn.Cell:
        from mindspeed_ms.ops.optimizers import LionUpdate

        return LionUpdate(decay)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD computes it (its decay is not decoupled)."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    name = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("momentum", self.momentum, lambda v: 0 <= v < 1, "a number from 0 to below 1")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ConfigError("nesterov: true: expected a momentum above 0 and no dampening beside it")

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum",) if self.momentum else ()

    def numbers(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, self.momentum, self.dampening, self.weight_decay, float(step)]

    def update(self, decay: Sequence[bool]) -> nn.Cell:
        from mindspeed_ms.ops.optimizers import SGDUpdate

        return SGDUpdate(decay, momentum=self.momentum != 0, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """Factored second moments (Shazeer and Stern, 2018), as torch.optim.Adafactor computes it."""

    beta2_decay: float = -0.8
    eps: tuple[float, float] = (1e-10, 1e-3)
    clip: float = 1.0
    name = "adafactor"
    kinds = ("row", "column")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("beta2_decay", self.beta2_decay, lambda v: v <= 0, "a number up to 0")
        _check("clip", self.clip, lambda v: v >= 1, "a number from 1")

    def state_shape(self, kind: str, shape: Shape) -> Shape:
        if len(shape) < 2:
            return shape if kind == "row" else (1,)  # a vector keeps its whole second moment
        return shape[:1] if kind == "row" else shape[1:]

    def numbers(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, self.beta2_decay, *self.eps, self.clip, self.weight_decay, float(step)]

    def update(self, decay: Sequence[bool]) -> nn.Cell:
        from mindspeed_ms.ops.optimizers import AdafactorUpdate

        return AdafactorUpdate(decay)


OPTIMIZERS: dict[str, type[Optimizer]] = {cls.name: cls for cls in (AdamW, Lion, SGD, Adafactor)}


def _check(name: str, value: float, right: Callable[[float], bool], expected: str) -> None:
    if not right(value) or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{name}: {value}: expected {expected}")


def _check_betas(betas: tuple[float, float]) -> None:
    for beta in betas:
        _check("betas", beta, lambda v: 0 <= v < 1, "numbers from 0 to below 1")
