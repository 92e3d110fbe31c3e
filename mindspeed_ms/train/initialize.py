"""Weights to start from nothing with: each parameter's come of its name and the seed alone.

So they are the same whatever the order, the number of processes or the other parameters of the network.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mindspore import nn

STD = 0.02  # Hugging Face's `initializer_range`, unless config.json says otherwise


def initial_value(name: str, shape: tuple[int, ...], seed: int, std: float = STD) -> np.ndarray:
    """float32 of a parameter: biases zero, scales of norms (all other vectors) one, the rest normal with mean 0."""
    if name.endswith("bias"):
        return np.zeros(shape, np.float32)
    if len(shape) < 2:
        return np.ones(shape, np.float32)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    values = random.standard_normal(shape, np.float32)
    values *= np.float32(std)
    return values


def initialize(network: nn.Cell, seed: int, std: float = STD) -> None:
    """Give all parameters of a network their first values, by name."""
    from mindspore import Tensor

    for name, parameter in network.parameters_and_names():
        parameter.set_data(Tensor(initial_value(name, tuple(parameter.shape), seed, std)))
