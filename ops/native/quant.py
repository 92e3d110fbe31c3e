"""Integer weights with a scale (and a minimum) a group of inputs: the one form every quantized model takes here.

Imports no MindSpore. 8 bits are int8 [N, K]; 4 bits uint8 [N, ceil(K/2)], the even input in the low nibble.
"""

from dataclasses import dataclass

import numpy as np

from mindspeed_ms.errors import ConfigError, WeightsError

GROUPS = (32, 64, 128)
WIDEST_ROW = 1 << 16  # 255 * 127 * 2^16 fits the kernels' int32 sums
_FLOAT16_MAX = float(np.finfo(np.float16).max)


def check_scheme(bits: int, group: int, asymmetric: bool) -> None:
    """Refuses a combination of bits, group and symmetry that no kernel computes. Raises ConfigError."""
    if bits not in (4, 8):
        raise ConfigError(f"bits: {bits!r} is not supported, expected 4 or 8")
    if group not in GROUPS and not (group == 0 and bits == 8):
        whole = " (or 0: the whole row)" if bits == 8 else ""
        raise ConfigError(f"group: {group!r} is not supported for {bits} bits, expected 32, 64 or 128{whole}")
    if asymmetric and bits == 8:
        raise ConfigError("asymmetric: 8-bit weights are symmetric, drop asymmetric or use a 4-bit scheme")


@dataclass
class QuantTensor:
    """One quantized matrix [N, K]: N outputs, K inputs.

    q: uint8 [N, ceil(K/2)] (4 bits) or int8 [N, K] (8 bits); scales [N, G] float16, or float32 [N, 1] when group is 0;
    mins float16 [N, G] or None; G = ceil(K / group).
    A value is q*scale + min (4 bits, mins given), (q - 8)*scale (4 bits without mins), q*scale (8 bits).
    Raises WeightsError when the arrays contradict shape, bits or group.
    """

    q: np.ndarray
    scales: np.ndarray
    mins: np.ndarray | None
    bits: int
    group: int
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        check_scheme(self.bits, self.group, self.mins is not None)
        rows, columns = self.shape = (int(self.shape[0]), int(self.shape[1]))
        if self.group == 0 and columns > WIDEST_ROW:
            raise WeightsError(
                f"weight: {columns} inputs share one scale, the kernels take {WIDEST_ROW}; give it a group"
            )
        width = -(-columns // 2) if self.bits == 4 else columns
        scale_type = np.dtype(np.float16 if self.group else np.float32)
        for name, array, shape, dtype in (
            ("qweight", self.q, (rows, width), np.dtype(np.uint8 if self.bits == 4 else np.int8)),
            ("scales", self.scales, (rows, self.num_groups), scale_type),
            ("mins", self.mins, (rows, self.num_groups), np.dtype(np.float16)),
        ):
            if array is not None and (array.shape != shape or array.dtype != dtype):
                raise WeightsError(
                    f"{name}: {array.dtype} {list(array.shape)} does not fit a {self.bits}-bit weight "
                    f"of shape {list(self.shape)}, expected {dtype} {list(shape)}"
                )

    @property
    def asymmetric(self) -> bool:
        return self.mins is not None

    @property
    def num_groups(self) -> int:
        return -(-self.shape[1] // self.group) if self.group else 1

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scales.nbytes + (self.mins.nbytes if self.mins is not None else 0)

    def rows(self, start: int, stop: int) -> "QuantTensor":
        """Rows start..stop as a view."""
        stop = min(stop, self.shape[0])
        mins = None if self.mins is None else self.mins[start:stop]
        return QuantTensor(
            self.q[start:stop], self.scales[start:stop], mins, self.bits, self.group, (stop - start, self.shape[1])
        )

    def codes(self) -> np.ndarray:
        """The integers: uint8 [N, K] in 0..15 (4 bits) or int8 [N, K] (8 bits)."""
        return unpack_nibbles(self.q, self.shape[1]) if self.bits == 4 else self.q

    def dequantize(self) -> np.ndarray:
        """The values the integers stand for: float32 [N, K]."""
        rows, columns = self.shape
        width = self.group or columns
        values = np.zeros((rows, self.num_groups * width), np.float32)
        values[:, :columns] = self.codes()
        grouped = values.reshape(rows, self.num_groups, width)
        if self.bits == 4 and self.mins is None:
            grouped -= 8
        grouped *= self.scales.astype(np.float32)[:, :, None]
        if self.mins is not None:
            grouped += self.mins.astype(np.float32)[:, :, None]
        return values if values.shape[1] == columns else np.ascontiguousarray(values[:, :columns])


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """uint8 [N, K] of 0..15 -> uint8 [N, ceil(K/2)], even input in the low nibble."""
    rows, columns = codes.shape
    packed = np.zeros((rows, -(-columns // 2)), np.uint8)
    packed[:] = codes[:, 0::2]
    packed[:, : columns // 2] |= np.left_shift(codes[:, 1::2], 4, dtype=np.uint8)
    return packed


def unpack_nibbles(packed: np.ndarray, columns: int) -> np.ndarray:
    """uint8 [N, ceil(K/2)] -> uint8 [N, K] of 0..15."""
    codes = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, 0::2])
    np.right_shift(packed, 4, out=codes[:, 1::2])
    return codes[:, :columns]


def quantize_rtn(weight: np.ndarray, bits: int, group: int, asymmetric: bool = False) -> QuantTensor:
    """Rounds a float matrix [N, K] to the nearest integers of its groups, under scales already rounded as stored.

    Symmetric 4 bits spend the sixteenth level on the side of the largest magnitude; asymmetric ones span [min, max].
    Raises ConfigError for an unsupported combination, WeightsError for values that are not finite or too large for
    float16 scales.
    """
    check_scheme(bits, group, asymmetric)
    if weight.ndim != 2:
        raise WeightsError(f"weight: shape {list(weight.shape)} is not a matrix, expected [outputs, inputs]")
    rows, columns = weight.shape
    width = group or columns
    groups = -(-columns // width)
    values = np.zeros((rows, groups * width), np.float32)
    values[:, :columns] = weight
    if columns < groups * width:  # a short last group repeats a member: its minimum and maximum stay
        values[:, columns:] = values[:, columns - 1 : columns]
    values = values.reshape(rows, groups, width)
    low, high = values.min(axis=2), values.max(axis=2)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise WeightsError("weight: holds values that are not finite, expected finite numbers; check the checkpoint")
    if asymmetric:
        scales = (high - low) / 15
    elif bits == 4:
        scales = np.where(high > -low, high, low) / -8
    else:
        scales = np.maximum(high, -low) / 127
    if group:
        largest = max(np.abs(scales).max(initial=0), np.abs(low).max(initial=0) if asymmetric else 0)
        if largest > _FLOAT16_MAX:
            raise WeightsError(
                f"weight: a group scale of {largest:g} does not fit float16, expected at most 65504; "
                "use 8 bits with group 0"
            )
    mins = low.astype(np.float16) if asymmetric else None
    scales = scales.astype(np.float16 if group else np.float32)
    step = scales.astype(np.float32)
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)[:, :, None]
    if mins is not None:
        values -= mins.astype(np.float32)[:, :, None]
    values *= inverse
    np.rint(values, out=values)
    if bits == 4:
        codes = np.clip(values + (0 if asymmetric else 8), 0, 15).astype(np.uint8)
    else:
        codes = np.clip(values, -127, 127).astype(np.int8)
    codes = np.ascontiguousarray(codes.reshape(rows, -1)[:, :columns])
    return QuantTensor(pack_nibbles(codes) if bits == 4 else codes, scales, mins, bits, group, (rows, columns))
