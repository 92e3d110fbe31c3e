"""The block codec in NumPy, to the same bytes as the kernel library's: for hosts without it, and as second opinion.

The functions are those of `mindspeed_ms.ops.native.checkpoint`; docs/checkpoint-format.md describes the bytes.
"""

from collections.abc import Sequence

import numpy as np

from mindspeed_ms.errors import KernelError

VALUES, LANES, HEADER = 512, 16, 8
PLAIN_BITS, SIGN_LOWEST, ORDERED_DELTA = 0, 1, 2
TIERS, STEPS, WIDTHS = 4, 4, 4  # beside the mode; planes before the nibbles; how many widths are tried
ESCAPE = STEPS + 15
_PLANES = VALUES // 8 * (STEPS + 4)  # bytes at most
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


def _plan(x: np.ndarray, base: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals, whole headers and the bytes of each block: of the widths of least cost, the widest."""
    residuals, headers = _residuals(x, base)
    over = np.array([(residuals > np.uint32(2**width - 1)).sum(axis=1) for width in range(33)])
    costs = 512 * np.arange(33)[:, None] + 48 * over
    headers["width"] = 32 - costs[::-1].argmin(axis=0)
    headers["exceptions"] = np.take_along_axis(over, headers["width"][None].astype(np.intp), axis=0)[0]
    sizes = HEADER + 64 * headers["width"].astype(np.int64) + 6 * headers["exceptions"].astype(np.int64)
    lowest = np.maximum(headers["width"].astype(np.uint32), WIDTHS) - np.uint32(WIDTHS)
    for width in (lowest + np.uint32(i) for i in reversed(range(WIDTHS))):
        above = residuals >> width[:, None]
        one, two, three, four, exceptions = ((above >= k).sum(axis=1) for k in (*range(1, STEPS + 1), ESCAPE))
        planes = VALUES // 8 + (one + two + three + 4 * four + 7) // 8
        tiered = HEADER + 64 * width.astype(np.int64) + planes + 4 * exceptions
        fewer = tiered < sizes
        sizes = np.where(fewer, tiered, sizes)
        headers["mode"] |= np.where(fewer, TIERS, 0).astype(np.uint8)
        headers["width"] = np.where(fewer, width, headers["width"])
        headers["exceptions"] = np.where(fewer, exceptions, headers["exceptions"])
    return residuals, headers, sizes


def _put_planes(above: np.ndarray) -> np.ndarray:
    """What is above the lowest bits, [512] of at most ESCAPE, as bytes."""
    planes = []
    for step in range(STEPS):
        planes.append(above > step)
        above = above[above > step]
    planes += [(above - np.uint32(STEPS)) >> np.uint32(bit) & _ONE == _ONE for bit in range(4)]
    return np.packbits(np.concatenate(planes), bitorder="little")


def _take_planes(stored: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """What is above the lowest bits, [512]; the bytes it takes, and whether the bits that fill the last are zeros."""
    bits = np.zeros(8 * _PLANES + 8, np.uint32)
    bits[: 8 * min(stored.size, _PLANES)] = np.unpackbits(stored[:_PLANES], bitorder="little")
    above, inside, at = np.zeros(VALUES, np.uint32), np.arange(VALUES), 0
    for plane in range(STEPS + 4):
        ones = bits[at : at + inside.size]
        at += inside.size
        above[inside] += ones << np.uint32(max(0, plane - STEPS))
        if plane < STEPS:
            inside = inside[ones == 1]
    used = -(-at // 8)
    return above, used, not bits[at : 8 * used].any()


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
    residuals, headers, sizes = _plan(x, base)
    ends = np.cumsum(sizes)
    if ends[-1] > out.size:
        return None
    starts = ends - sizes
    for width in np.unique(headers["width"]).tolist():
        rows = np.flatnonzero(headers["width"] == width)
        for row, packed in zip(rows.tolist(), _pack(residuals[rows], width), strict=True):
            parts, own = [headers[row : row + 1].view(np.uint8), packed], residuals[row]
            if headers["mode"][row] & TIERS:
                above = np.minimum(own >> np.uint32(width), np.uint32(ESCAPE))
                parts += [_put_planes(above), own[above == ESCAPE].astype("<u4").view(np.uint8)]
            elif headers["exceptions"][row]:
                at = np.flatnonzero(own > np.uint32(2**width - 1))
                parts += [at.astype("<u2").view(np.uint8), own[at].astype("<u4").view(np.uint8)]
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
        used += int(_plan(piece, None if base is None else base[part][:VALUES])[2][0])
    return used * total // seen


def _parse(
    stored: np.ndarray, lengths: np.ndarray, delta: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    """Headers of all blocks, where they begin and end, and what is above the lowest bits of those in tiers.

    Raises KernelError where they contradict the stream.
    """
    headers, starts, ends = np.zeros(len(lengths), _RECORD), np.zeros(len(lengths), int), np.zeros(len(lengths), int)
    tiers, at, stream = {}, 0, f"a block stream of {stored.size} bytes"
    for row, length in enumerate(lengths.tolist()):
        if stored.size - at < HEADER:
            raise KernelError(f"{stream} ends too early")
        header = headers[row : row + 1]
        header.view(np.uint8)[:] = stored[at : at + HEADER]
        width, mode, exceptions, _ = header[0].item()
        known = mode & ~TIERS == ORDERED_DELTA if delta else mode & ~TIERS in (PLAIN_BITS, SIGN_LOWEST)
        if width > (31 if mode & TIERS else 32) or exceptions > length or not known:
            raise KernelError(f"{stream} holds a block of no known width or mode")
        starts[row] = at
        at += HEADER + 64 * width
        if mode & TIERS and at <= stored.size:
            tiers[row], used, filled = _take_planes(stored[at:])
            at += used + 4 * exceptions
            if at <= stored.size and not (
                filled and (tiers[row] == ESCAPE).sum() == exceptions and not tiers[row][length:].any()
            ):
                raise KernelError(f"{stream} holds tiers that contradict its header")
        else:
            at += 6 * exceptions
        if at > stored.size:
            raise KernelError(f"{stream} ends too early")
        ends[row] = at
    if at != stored.size:
        raise KernelError(f"{stream} goes on after its last block")
    return headers, starts, ends, tiers


def block_decode(stored: np.ndarray, base: np.ndarray | None, out: np.ndarray) -> None:
    """Bring back what `block_encode` wrote: uint8 [used] to `out` uint32 [n]. Raises KernelError for other bytes."""
    lengths = _lengths(out.size)
    headers, starts, ends, tiers = _parse(stored, lengths, base is not None)
    residuals = np.zeros((len(lengths), VALUES), np.uint32)
    for width in np.unique(headers["width"]).tolist():
        rows = np.flatnonzero(headers["width"] == width)
        places = starts[rows, None] + HEADER + np.arange(64 * width)
        residuals[rows] = _unpack(stored[places], width)
    for row, above in tiers.items():
        residuals[row] += above << headers["width"][row].astype(np.uint32)
    for row in np.flatnonzero(headers["exceptions"]).tolist():
        count = int(headers["exceptions"][row])
        begin = int(ends[row]) - 4 * count
        if row in tiers:
            at = np.flatnonzero(tiers[row] == ESCAPE)
        else:
            at = stored[begin - 2 * count : begin].copy().view("<u2")
            if (at[1:] <= at[:-1]).any() or at[-1] >= lengths[row]:
                raise KernelError(f"a block stream of {stored.size} bytes names a value outside its block")
        residuals[row, at] = stored[begin : begin + 4 * count].copy().view("<u4")
    reference = headers["reference"][:, None].astype(np.uint32)
    if base is None:
        values = reference - residuals
        signed = headers["mode"][:, None] & np.uint8(255 - TIERS) == SIGN_LOWEST
        values = np.where(signed, values >> _ONE | values << np.uint32(31), values)
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
