"""How the bytes of a chunk are stored: as they are, in fewer bits, or as their difference to a base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mindspeed_ms.checkpoint import byte_planes
from mindspeed_ms.checkpoint.kernels import kernels
from mindspeed_ms.errors import CheckpointError, KernelError

CODECS = ("raw", "block", "block-delta", "bytes", "bytes-delta")
Base = Callable[[], np.ndarray]  # reads a base's bytes when they are wanted

SMALLEST = 256  # bytes below which a chunk is stored as it is
_WORTH, _WORTH_PLAIN = 0.92, 0.5  # of the raw bytes: more than this is not worth decoding, for a base not worth a read
_WORTH_BASE = 0.97  # of what needs no base
_WORTH_ZSTD = 0.75  # of what blocks take, which are ten times as fast
_SMALL = 0.25  # of the raw bytes
_BLOCKS, _BLOCK_BYTES = 16, 2048  # looked at for each chunk
_PIECES, _SAMPLE_BYTES = 8, 64 << 10  # packed to try how far zstandard gets


def takes_base(codec: str) -> bool:
    """Whether a codec stores a difference."""
    return codec.endswith("-delta")


@dataclass
class _Learnt:
    """What the chunks of a tensor so far say of the next."""

    family: str | None = None  # "block" or "bytes", by the first chunk that is stored
    partly_same: bool = False  # then every base is read
    reads_base: bool = True


class Encoder:
    """Chooses a codec for each chunk by a sample and stores it; what it learnt of a tensor is kept for its next chunks.

    Make one for each save: what a tensor's chunks have in common may be another in the next. For one thread.
    """

    def __init__(self) -> None:
        self._learnt: dict[str, _Learnt] = {}

    def encode(
        self, name: str, data: np.ndarray, itemsize: int, base: Base | None, out: np.ndarray, *, plain: bool = False
    ) -> tuple[str, int]:
        """(codec, used bytes) of `data` uint8 [n] written to `out` uint8 [>= n]; ("same", 0) where it equals the base.

        itemsize: of the tensor. base: gives uint8 [n], or None where there is none. plain: it shall be a base: raw, or
        what needs no base and is far smaller.
        """
        learnt = self._learnt.setdefault(name, _Learnt())
        before = base() if base is not None and learnt.reads_base else None
        if before is not None and before.size != data.size:
            raise CheckpointError(
                f"{name}: a base of {before.size} bytes for {data.size}; they are of different chunks"
            )
        near = before is not None and _near(data, before)
        learnt.partly_same |= near
        if before is not None and near and _equal(data, before):
            return "same", 0
        against, worth = (None, _WORTH_PLAIN) if plain else (before, _WORTH)
        codec, used = "raw", data.size
        if data.size >= SMALLEST and data.size % itemsize == 0:
            first = learnt.family is None
            if learnt.family is None:
                learnt.family = _family(data, itemsize, against, worth)
            codec, used = _store(learnt.family, data, itemsize, against, out, int(data.size * worth))
            if first and not learnt.partly_same and not takes_base(codec):
                learnt.reads_base = False
        if codec == "raw":
            out[: data.size] = data
        return codec, used


def _places(size: int, count: int, piece: int) -> list[slice]:
    """`count` pieces of a chunk, spread evenly, or all of it."""
    if size <= count * piece:
        return [slice(0, size)]
    starts = [piece * ((2 * i + 1) * (size // piece) // (2 * count)) for i in range(count)]
    return [slice(start, start + piece) for start in starts]


def _near(data: np.ndarray, base: np.ndarray) -> bool:
    """Whether a sampled piece equals the base's."""
    return any(np.array_equal(data[place], base[place]) for place in _places(data.size, _BLOCKS, _BLOCK_BYTES))


def _equal(data: np.ndarray, base: np.ndarray) -> bool:
    end = data.size // 8 * 8  # eight bytes at a time
    return np.array_equal(data[end:], base[end:]) and np.array_equal(data[:end].view("u8"), base[:end].view("u8"))


def _sample(data: np.ndarray) -> np.ndarray:
    return np.concatenate([data[place] for place in _places(data.size, _PIECES, _SAMPLE_BYTES // _PIECES)])


def _smaller(own: int, delta: int | None) -> tuple[int, bool]:
    """The size to expect and whether it is the difference's, which has to pay for reading the base."""
    return (delta, True) if delta is not None and delta <= _WORTH_BASE * own else (own, False)


def _bytes_sizes(data: np.ndarray, itemsize: int, base: np.ndarray | None) -> tuple[int, bool]:
    """As `_smaller`, by zstandard."""
    own = len(byte_planes.encode(data, itemsize, None))
    return _smaller(own, None if base is None else len(byte_planes.encode(data, itemsize, base)))


def _block_sizes(data: np.ndarray, base: np.ndarray | None, blocks: int = _BLOCKS) -> tuple[int, bool]:
    module, x = kernels(), data.view(np.uint32)
    own = module.block_estimate(x, None, blocks)
    return _smaller(own, None if base is None else module.block_estimate(x, base.view(np.uint32), blocks))


def _family(data: np.ndarray, itemsize: int, base: np.ndarray | None, worth: float) -> str:
    """The family of codecs for a tensor, by a sample of its first chunk."""
    if itemsize != 4:
        return "bytes"
    data, base = _sample(data), None if base is None else _sample(base)
    by_blocks, _ = _block_sizes(data, base, data.size)
    if by_blocks <= _SMALL * data.size:  # as when few rows changed: less is hardly of use, and takes far longer
        return "block"
    by_bytes, _ = _bytes_sizes(data, itemsize, base)
    limit = _WORTH_ZSTD * by_blocks if by_blocks <= worth * data.size else data.size
    return "bytes" if by_bytes <= min(limit, worth * data.size) else "block"


def _store(
    family: str, data: np.ndarray, itemsize: int, base: np.ndarray | None, out: np.ndarray, limit: int
) -> tuple[str, int]:
    """Codec and bytes written; ("raw", n), with nothing of use written, where a sample or the whole exceeds `limit`."""
    by_bytes = family == "bytes"
    if by_bytes:
        sample = _sample(data)
        expected, is_delta = _bytes_sizes(sample, itemsize, None if base is None else _sample(base))
        expected = expected * data.size // sample.size
    else:
        expected, is_delta = _block_sizes(data, base)
    used: int | None = None
    against = base if is_delta else None
    if expected <= limit and by_bytes:
        frame = byte_planes.encode(data, itemsize, against)
        if len(frame) <= limit:
            used = len(frame)
            out[:used] = np.frombuffer(frame, np.uint8)
    elif expected <= limit:
        x, y = data.view(np.uint32), None if against is None else against.view(np.uint32)
        used = kernels().block_encode(x, y, out[:limit])
    if used is None:
        return "raw", data.size
    return f"{family}-delta" if is_delta else family, used


def decode(codec: str, stored: np.ndarray, itemsize: int, base: np.ndarray | None, out: np.ndarray) -> None:
    """Bring back what `encode` stored: uint8 [used] to `out` uint8 [n].

    Raises CheckpointError for bytes that it cannot have made.
    """
    if codec not in CODECS:
        raise CheckpointError(
            f"codec {codec[:80]!r}: expected {', '.join(CODECS)}; a newer version may have written it"
        )
    before = base if takes_base(codec) else None
    if takes_base(codec) and (before is None or before.size != out.size):
        there = "none is there" if before is None else f"it has {before.size}"
        raise CheckpointError(f"codec {codec!r} needs a base of {out.size} bytes, {there}; the checkpoint is damaged")
    try:
        if codec == "raw":
            if stored.size != out.size:
                raise ValueError("as many are expected")
            out[:] = stored
        elif out.size % (4 if codec.startswith("block") else itemsize):
            raise ValueError(f"no whole number of items of {itemsize}")
        elif codec.startswith("block"):
            y = None if before is None else before.view(np.uint32)
            kernels().block_decode(stored, y, out.view(np.uint32))
        else:
            byte_planes.decode(stored, itemsize, before, out)
    except (ValueError, KernelError) as error:
        raise CheckpointError(
            f"codec {codec!r}: {stored.size} bytes for a chunk of {out.size}: {error}; the checkpoint is damaged"
        ) from error
