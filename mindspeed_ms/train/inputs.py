"""What a step's graphs take of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore import Tensor

from mindspeed_ms.errors import ConfigError

Batch = Mapping[str, Any] | Sequence[Any]


def inputs_of(batch: Batch, columns: Sequence[str]) -> list[Tensor]:
    """The columns of a batch in their order, or all arrays of one that is a sequence. Raises ConfigError."""
    if isinstance(batch, Mapping):
        missing = [name for name in columns if name not in batch]
        if missing:
            expected, known = ", ".join(columns), ", ".join(batch)
            raise ConfigError(f"batch: no column {missing[0]!r}, expected {expected}; it has {known}")
        batch = [batch[name] for name in columns]
    if isinstance(batch, (str, bytes)) or not isinstance(batch, Sequence):
        raise ConfigError(f"batch: a {type(batch).__name__}: expected a mapping of columns, or a tuple of arrays")
    return [value if isinstance(value, Tensor) else Tensor(value) for value in batch]
