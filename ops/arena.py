"""What the reference bodies read from the weight arena, once, when they are built."""

from collections.abc import Sequence

import numpy as np

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.native.pack import WeightDesc, unpack_weight
from mindspeed_ms.ops.native.quant import QuantTensor

Arena = np.ndarray
Weight = Sequence[int]  # offset, N, K, kind, group, asym, act


def _given(arena: Arena | None) -> Arena:
    if arena is None:
        raise ConfigError("arena: not given; a reference body reads its weights when it is built, pass arena=")
    return arena


def vector(arena: Arena | None, offset: int, length: int) -> np.ndarray:
    """The `length` float32 values that start at byte `offset`. Raises ConfigError outside the arena."""
    arena = _given(arena)
    if offset < 0 or offset + 4 * length > arena.size:
        raise ConfigError(f"offset {offset}: {length} floats do not fit an arena of {arena.size} bytes; pack it again")
    return np.array(arena[offset : offset + 4 * length]).view(np.float32)


def matrix(arena: Arena | None, weight: Weight) -> np.ndarray | QuantTensor:
    """The matrix of seven integers: float32 [N, K] or a QuantTensor. Raises ConfigError outside the arena."""
    arena, desc = _given(arena), WeightDesc(*weight)
    if desc.offset < 0 or desc.offset + desc.nbytes > arena.size:
        raise ConfigError(
            f"weight {list(weight)}: {desc.nbytes} bytes do not fit an arena of {arena.size} bytes; pack it again"
        )
    return unpack_weight(arena, desc)


def dense(arena: Arena | None, weight: Weight) -> np.ndarray:
    """The same matrix as float32 [N, K], dequantized."""
    found = matrix(arena, weight)
    return found.dequantize() if isinstance(found, QuantTensor) else found
