"""The dynamic loss scale of float16 training: as large as the gradients bear (Micikevicius et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspeed_ms.errors import ConfigError

_LEAST, _MOST = 1.0, 2.0**24


class DynamicLossScale:
    """A scale that falls by `factor` at a step whose gradients overflow, and rises after `window` steps without one.

    `value` is the scale of the next step; it stays from 1 to 2^24. The rule is that of MindSpore's DynamicLossScaler
    and of PyTorch's GradScaler. Raises ConfigError.
    """

    def __init__(self, initial: float = 65536.0, factor: float = 2.0, window: int = 1000) -> None:
        if not _LEAST <= initial <= _MOST:
            raise ConfigError(f"loss scale: initial is {initial}, expected a number from 1 to {_MOST:.0f}")
        if not 1 < factor <= 1024:
            raise ConfigError(f"loss scale: factor is {factor}, expected a number above 1, such as 2")
        if window < 1:
            raise ConfigError(f"loss scale: window is {window}, expected a number of steps from 1")
        self.factor, self.window = float(factor), window
        self.value = float(initial)
        self._good = 0  # steps without overflow since the scale last changed

    def update(self, finite: bool) -> None:
        """Tell whether the gradients of the step that was made at `value` were all finite."""
        if not finite:
            self.value = max(self.value / self.factor, _LEAST)
            self._good = 0
            return
        self._good += 1
        if self._good == self.window:
            self.value = min(self.value * self.factor, _MOST)
            self._good = 0

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on as if it had not stopped: plain values."""
        return {"value": self.value, "good": self._good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Raises ConfigError when it is something else."""
        value, good = state.get("value"), state.get("good")
        if not isinstance(value, (int, float)) or not _LEAST <= value <= _MOST:
            raise ConfigError(f"loss scale: the saved value is {value!r}, expected a number from 1 to {_MOST:.0f}")
        if not isinstance(good, int) or isinstance(good, bool) or not 0 <= good < self.window:
            raise ConfigError(f"loss scale: {good!r} good steps were saved, expected 0 to {self.window - 1}")
        self.value, self._good = float(value), good
