"""The block codec in NumPy, to the same bytes as the kernel library's: for hosts without it, and as second opinion.

The functions are those of `mindspeed_ms.ops.native.checkpoint`; docs/checkpoint-format.md describes the bytes.
"""

from collections.abc import Sequence

import numpy as np

from mindspeed_ms.errors import KernelError

VALUES, LANES, HEADER = 512, 16, 8
PLAIN_BITS, SIGN_LOWEST, ORDERED_DELTA = 0, 1, 2
EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
_ONE = np.uint32(1)
_RECORD = np.dtype([("width", "u1"), ("mode", "u1"), ("exceptions", "<u2"), ("reference", "<u4")])


def _ordered(x: np.ndarray) -> np.ndarray:
    """Bits of floats as integers in the order of their values; its own inverse."""
    return np.where(x >> np.uint32(31), x ^ np.uint32(0x7FFFFFFF), x)


def _rotate_left(x: np.ndarray) -> np.ndarray:
    return x << _ONE | x >> np.uint32(31)


def _blocks(x: np.ndarray) -> np.ndarray:
    """[blocks, 512]; the last value is repeated to a whole block."""
    padded = np.full(-(-x.size // VALUES) * VALUES, x[-1] if x.size else 0, np.uint32)
    padded[: x.size] = x
    return padded.reshape(-1, VALUES)


def _lengths(n: int) -> np.ndarray:
    """How many values of each block are real."""
    lengths = np.full(-(-n // VALUES), VALUES)
    if n % VALUES:
        lengths[-1] = n % VALUES
    return lengths


def _residuals(x: np.ndarray, base: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Residuals [blocks, 512] and headers [blocks] with mode and reference."""
    lengths, values = _lengths(x.size), _blocks(x)
    headers = np.zeros(len(values), _RECORD)
    if base is None:
        signed = values.max(axis=1) >> np.uint32(31) != 0
        values = np.where(signed[:, None], _rotate_left(values), values)
        headers["mode"] = np.where(signed, SIGN_LOWEST, PLAIN_BITS)
        headers["reference"] = values.max(axis=1)
        residuals = headers["reference"][:, None] - values
    else:
        moved = _ordered(values) - _ordered(_blocks(base))
        sampled = np.arange(9) * (lengths[:, None] - 1) // 8
        nine = np.take_along_axis(moved, sampled, axis=1).view(np.int32)
        headers["mode"] = ORDERED_DELTA
        headers["reference"] = np.sort(nine, axis=1)[:, 4].view(np.uint32)
        off = moved - headers["reference"][:, None]
        residuals = off << _ONE ^ (off.view(np.int32) >> 31).view(np.uint32)
    residuals[np.arange(VALUES) >= lengths[:, None]] = 0
    return residuals, headers


def _plan(x: np.ndarray, base: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and whole headers: of the widths of least cost, the widest."""
    residuals, headers = _residuals(x, base)
    over = np.array([(residuals > np.uint32(2**width - 1)).sum(axis=1) for width in range(33)])
    costs = 512 * np.arange(33)[:, None] + 48 * over
    headers["width"] = 32 - costs[::-1].argmin(axis=0)
    headers["exceptions"] = np.take_along_axis(over, headers["width"][None].astype(np.intp), axis=0)[0]
    return residuals, headers


def _sizes(headers: np.ndarray) -> np.ndarray:
    return HEADER + 64 * headers["width"].astype(np.int64) + 6 * headers["exceptions"].astype(np.int64)


def _pack(residuals: np.ndarray, width: int) -> np.ndarray:
    """[rows, 512] -> [rows, 64 * width] bytes; the words of a lane are every sixteenth."""
    values = residuals.reshape(-1, VALUES // LANES, LANES) & np.uint32(2**width - 1)
    words = np.zeros((len(values), width, LANES), "<u4")
    for v in range(VALUES // LANES if width else 0):
        k, shift = divmod(v * width, 32)
        words[:, k] |= values[:, v] << np.uint32(shift)
        if shift + width > 32:
            words[:, k + 1] |= values[:, v] >> np.uint32(32 - shift)
    return words.reshape(len(values), -1).view(np.uint8)


def _unpack(packed: np.ndarray, width: int) -> np.ndarray:
    words = packed.reshape(len(packed), -1).view("<u4").reshape(len(packed), width, LANES)
    values = np.zeros((len(packed), VALUES // LANES, LANES), np.uint32)
    for v in range(VALUES // LANES if width else 0):
        k, shift = divmod(v * width, 32)
        values[:, v] = words[:, k] >> np.uint32(shift)
        if shift + width > 32:
            values[:, v] |= words[:, k + 1] << np.uint32(32 - shift)
    return values.reshape(-1, VALUES) & np.uint32(2**width - 1)


def block_encode(x: np.ndarray, base: np.ndarray | None, out: np.ndarray) -> int | None:
    """Bytes written to `out` uint8 [capacity] for x uint32 [n], or None when they do not fit; base: uint32 [n]."""
    if not x.size:
        return 0
    residuals, headers = _plan(x, base)
    ends = np.cumsum(_sizes(headers))
    if ends[-1] > out.size:
        return None
    starts = ends - _sizes(headers)
    for width in np.unique(headers["width"]).tolist():
        rows = np.flatnonzero(headers["width"] == width)
        for row, packed in zip(rows.tolist(), _pack(residuals[rows], width), strict=True):
            parts = [headers[row : row + 1].view(np.uint8), packed]
            if headers["exceptions"][row]:
                at = np.flatnonzero(residuals[row] > np.uint32(2**width - 1))
                parts += [at.astype("<u2").view(np.uint8), residuals[row, at].astype("<u4").view(np.uint8)]
            np.concatenate(parts, out=out[starts[row] : ends[row]])
    return int(ends[-1])


def block_estimate(x: np.ndarray, base: np.ndarray | None, blocks: int) -> int:
    """About how many bytes `block_encode` would write, from `blocks` blocks spread evenly."""
    total = -(-x.size // VALUES)
    seen = min(blocks, total)
    if seen <= 0:
        return 0
    used = 0
    for i in range(seen):
        part = slice((2 * i + 1) * total // (2 * seen) * VALUES, None)
        piece = x[part][:VALUES]
        used += int(_sizes(_plan(piece, None if base is None else base[part][:VALUES])[1])[0])
    return used * total // seen


def _parse(stored: np.ndarray, lengths: np.ndarray, delta: bool) -> tuple[np.ndarray, np.ndarray]:
    """Headers of all blocks and where they begin. Raises KernelError where they contradict the stream."""
    headers, starts, at = np.zeros(len(lengths), _RECORD), np.zeros(len(lengths), np.int64), 0
    for row, length in enumerate(lengths.tolist()):
        if stored.size - at < HEADER:
            raise KernelError(f"a block stream of {stored.size} bytes ends too early")
        header = headers[row : row + 1]
        header.view(np.uint8)[:] = stored[at : at + HEADER]
        width, mode, exceptions, _ = header[0].item()
        known = mode == ORDERED_DELTA if delta else mode in (PLAIN_BITS, SIGN_LOWEST)
        if width > 32 or exceptions > length or not known:
            raise KernelError(f"a block stream of {stored.size} bytes holds a block of no known width or mode")
        starts[row] = at
        at += HEADER + 64 * width + 6 * exceptions
        if at > stored.size:
            raise KernelError(f"a block stream of {stored.size} bytes ends too early")
    if at != stored.size:
        raise KernelError(f"a block stream of {stored.size} bytes goes on after its last block")
    return headers, starts


def block_decode(stored: np.ndarray, base: np.ndarray | None, out: np.ndarray) -> None:
    """Bring back what `block_encode` wrote: uint8 [used] to `out` uint32 [n]. Raises KernelError for other bytes."""
    lengths = _lengths(out.size)
    headers, starts = _parse(stored, lengths, base is not None)
    residuals = np.zeros((len(lengths), VALUES), np.uint32)
    for width in np.unique(headers["width"]).tolist():
        rows = np.flatnonzero(headers["width"] == width)
        places = starts[rows, None] + HEADER + np.arange(64 * width)
        residuals[rows] = _unpack(stored[places], width)
    for row in np.flatnonzero(headers["exceptions"]).tolist():
        count, begin = int(headers["exceptions"][row]), starts[row] + HEADER + 64 * int(headers["width"][row])
        at = stored[begin : begin + 2 * count].copy().view("<u2")
        if (at[1:] <= at[:-1]).any() or at[-1] >= lengths[row]:
            raise KernelError(f"a block stream of {stored.size} bytes names a value outside its block")
        residuals[row, at] = stored[begin + 2 * count : begin + 6 * count].copy().view("<u4")
    reference = headers["reference"][:, None].astype(np.uint32)
    if base is None:
        values = reference - residuals
        values = np.where(headers["mode"][:, None] == SIGN_LOWEST, values >> _ONE | values << np.uint32(31), values)
    elif out.size:
        off = residuals >> _ONE ^ -(residuals & _ONE).astype(np.int32).view(np.uint32)
        values = _ordered(_ordered(_blocks(base)) + reference + off)
    else:
        return
    out[:] = values.reshape(-1)[: out.size]


def all_finite(array: np.ndarray, dtype: str | None = None) -> bool:
    """Whether no value is NaN or infinite; dtype "bfloat16" says that uint16 holds its bits."""
    exponent = EXPONENTS[dtype or array.dtype.name]
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    return not ((bits & bits.dtype.type(exponent)) == exponent).any()


def copy_aside(targets: Sequence[np.ndarray], sources: Sequence[np.ndarray]) -> None:
    """Copy each source to the target of as many bytes; both contiguous."""
    for to, source in zip(targets, sources, strict=True):
        to.reshape(-1).view(np.uint8)[:] = source.reshape(-1).view(np.uint8)
