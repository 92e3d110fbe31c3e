"""How the bytes of a chunk are stored: as they are, in fewer bits, or as their difference to a base."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mindspeed_ms.errors import CheckpointError

CODECS = ("raw", "block", "block-delta", "bytes", "bytes-delta")
Base = Callable[[], np.ndarray]  # reads a base's bytes when they are wanted


def takes_base(codec: str) -> bool:
    """Whether a codec stores a difference."""
    return codec.endswith("-delta")


class Encoder:
    """Chooses a codec for each chunk by a sample and stores it; what it learnt of a tensor is kept for its next chunks."""

    def encode(
        self, name: str, data: np.ndarray, itemsize: int, base: Base | None, out: np.ndarray, *, plain: bool = False
    ) -> tuple[str, int]:
        """(codec, used bytes) of `data` uint8 [n] written to `out` uint8 [>= n]; ("same", 0) where it equals the base.

        itemsize: of the tensor. base: gives uint8 [n], or None where there is none. plain: it shall be a base: raw, or
        what needs no base and is far smaller.
        """
        if base is not None and np.array_equal(base(), data):
            return "same", 0
        out[: data.size] = data
        return "raw", data.size


def decode(codec: str, stored: np.ndarray, itemsize: int, base: np.ndarray | None, out: np.ndarray) -> None:
    """Bring back what `encode` stored: uint8 [used] to `out` uint8 [n]. Raises CheckpointError for bytes that it cannot have made."""
    if codec != "raw" or stored.size != out.size:
        raise CheckpointError(
            f"codec {codec!r} of {stored.size} bytes for {out.size}: cannot be; the checkpoint is damaged"
        )
    out[:] = stored
