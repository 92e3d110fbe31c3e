"""The weight arena: every weight of a model in one byte buffer, laid out for the native kernels. Imports no MindSpore.

A matrix [N, K] is cut into panels of 16 output rows (the lanes of a kernel), each a multiple of 64 bytes:
  F32  [K][16] float32
  W8   [Kp/4][16 lanes][4 inputs] uint8 = q + 128, then scales [G][16]
  W4   [Kp/32][4 j][16 lanes][4 kk] uint8: low nibble is input 32*s + 4*j + kk, high nibble 16 further on;
       then scales [G][16], then mins [G][16] when asymmetric
with Kp = K rounded up to 32, G = groups a row; scales float16, or float32 when one scale covers the row.
Rows past N have scale and minimum 0. Vectors are plain float32.
"""

from dataclasses import dataclass, field

import numpy as np

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor, pack_nibbles

LAYOUT_VERSION = 1
ALIGN = 64
LANES = 16
F32, W8, W4 = 0, 1, 2
_CHUNK_BYTES = 1 << 20  # panels packed together: their temporaries stay in the cache


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class WeightDesc:
    """What a kernel must know of a matrix: the seven integers of its `weight` attribute."""

    offset: int
    rows: int
    columns: int
    kind: int = F32
    group: int = 0
    asym: int = 0
    act: int = 0

    def as_list(self) -> list[int]:
        return [self.offset, self.rows, self.columns, self.kind, self.group, self.asym, self.act]

    @property
    def nbytes(self) -> int:
        return packed_nbytes(self.rows, self.columns, self.kind, self.group, self.asym)


def _parts(columns: int, kind: int, group: int, asym: int) -> tuple[int, int, int]:
    """Bytes of a panel's integers (or floats), of its scales, of its minima."""
    padded = _up(columns, 32)
    if kind == F32:
        return columns * LANES * 4, 0, 0
    groups = -(-padded // group) if group else 1
    scales = groups * LANES * (2 if group else 4)
    return padded * LANES // (1 if kind == W8 else 2), scales, scales if asym else 0


def panel_nbytes(columns: int, kind: int, group: int, asym: int) -> int:
    """Bytes of one panel of 16 rows, a multiple of 64."""
    return _up(sum(_parts(columns, kind, group, asym)), ALIGN)


def packed_nbytes(rows: int, columns: int, kind: int, group: int = 0, asym: int = 0) -> int:
    """Bytes a packed matrix [rows, columns] takes in the arena, a multiple of 64."""
    return -(-rows // LANES) * panel_nbytes(columns, kind, group, asym)


def describe(weight: "np.ndarray | QuantTensor", offset: int = 0, act: int = 0) -> WeightDesc:
    """The descriptor of a matrix put at `offset`; `act` 1 asks for int8 activations."""
    if isinstance(weight, QuantTensor):
        return WeightDesc(
            offset, *weight.shape, W4 if weight.bits == 4 else W8, weight.group, int(weight.asymmetric), act
        )
    return WeightDesc(offset, *weight.shape)


def pack_weight(weight: "np.ndarray | QuantTensor", out: np.ndarray) -> None:
    """Packs a matrix [N, K] (float or QuantTensor) into `out`, uint8 of exactly packed_nbytes, padding included."""
    desc = describe(weight)
    if out.dtype != np.uint8 or out.shape != (desc.nbytes,):
        raise WeightsError(
            f"arena: {out.dtype} {list(out.shape)} for a weight of {desc.nbytes} bytes, expected uint8 [{desc.nbytes}]"
        )
    panel = panel_nbytes(desc.columns, desc.kind, desc.group, desc.asym)
    step = max(1, _CHUNK_BYTES // panel)
    panels = out.reshape(-1, panel)
    for first in range(0, len(panels), step):
        target = panels[first : first + step]
        start, stop = first * LANES, min((first + len(target)) * LANES, desc.rows)
        if isinstance(weight, QuantTensor):
            _pack_quantized(weight.rows(start, stop), target, desc)
        else:
            block = np.zeros((len(target) * LANES, desc.columns), np.float32)
            block[: stop - start] = weight[start:stop]
            floats = target.view(np.float32).reshape(len(target), desc.columns, LANES)
            floats[:] = block.reshape(len(target), LANES, -1).transpose(0, 2, 1)


def _pack_quantized(weight: QuantTensor, target: np.ndarray, desc: WeightDesc) -> None:
    count, padded = len(target), _up(desc.columns, 32)
    values, scales, mins = _parts(desc.columns, desc.kind, desc.group, desc.asym)
    rows = weight.shape[0]
    # four neighbouring inputs of a row move together, as one 32-bit word
    if desc.kind == W8:
        codes = np.full((count * LANES, padded), 128, np.uint8)
        np.bitwise_xor(weight.q.view(np.uint8), 0x80, out=codes[:rows, : desc.columns])
        words = codes.view(np.uint32).reshape(count, LANES, padded // 4).transpose(0, 2, 1)
        target[:, :values].view(np.uint32).reshape(words.shape)[:] = words
    else:
        codes = np.full((count * LANES, padded), 0 if desc.asym else 8, np.uint8)
        width = desc.columns
        np.bitwise_and(weight.q, 15, out=codes[:rows, 0:width:2])
        np.right_shift(weight.q[:, : width // 2], 4, out=codes[:rows, 1:width:2])
        words = codes.view(np.uint32).reshape(count, LANES, padded // 32, 2, 4)
        joined = words[:, :, :, 0] | (words[:, :, :, 1] << 4)
        target[:, :values].view(np.uint32).reshape(count, padded // 32, 4, LANES)[:] = joined.transpose(0, 2, 3, 1)
    for array, begin, size in ((weight.scales, values, scales), (weight.mins, values + scales, mins)):
        if array is not None:
            block = np.zeros((count * LANES, array.shape[1]), array.dtype)
            block[:rows] = array
            lanes = block.reshape(count, LANES, -1).transpose(0, 2, 1)
            target[:, begin : begin + size].view(array.dtype).reshape(lanes.shape)[:] = lanes
    target[:, values + scales + mins :] = 0


def unpack_weight(arena: np.ndarray, desc: WeightDesc) -> "np.ndarray | QuantTensor":
    """The inverse of pack_weight: float32 [N, K] or the QuantTensor, from the whole arena."""
    columns, rows, padded = desc.columns, desc.rows, _up(desc.columns, 32)
    panels = arena[desc.offset : desc.offset + desc.nbytes].reshape(
        -1, panel_nbytes(columns, desc.kind, desc.group, desc.asym)
    )
    count = len(panels)
    values, scales, mins = _parts(columns, desc.kind, desc.group, desc.asym)
    if desc.kind == F32:
        floats = np.ascontiguousarray(panels[:, :values]).view(np.float32).reshape(count, columns, LANES)
        return np.ascontiguousarray(floats.transpose(0, 2, 1)).reshape(-1, columns)[:rows]

    def grouped(begin: int, size: int) -> np.ndarray:
        array = np.ascontiguousarray(panels[:, begin : begin + size]).view(np.float16 if desc.group else np.float32)
        return np.ascontiguousarray(array.reshape(count, -1, LANES).transpose(0, 2, 1)).reshape(count * LANES, -1)[
            :rows
        ]

    words = np.ascontiguousarray(panels[:, :values]).view(np.uint32)
    if desc.kind == W8:
        words = np.ascontiguousarray(words.reshape(count, padded // 4, LANES).transpose(0, 2, 1))
        q = (words.view(np.uint8).reshape(-1, padded)[:rows, :columns] ^ 0x80).view(np.int8)
    else:
        words = words.reshape(count, padded // 32, 4, LANES).transpose(0, 3, 1, 2)
        both = np.stack([words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F], axis=3)
        q = pack_nibbles(np.ascontiguousarray(both).view(np.uint8).reshape(-1, padded)[:rows, :columns])
    return QuantTensor(
        np.ascontiguousarray(q),
        grouped(values, scales),
        grouped(values + scales, mins) if mins else None,
        4 if desc.kind == W4 else 8,
        desc.group,
        (rows, columns),
    )


@dataclass
class ArenaLayout:
    """Where each weight lies, filled in order, every start a multiple of 64.

    Matrices by descriptor, vectors by (offset, length).
    """

    matrices: dict[str, WeightDesc] = field(default_factory=dict)
    vectors: dict[str, tuple[int, int]] = field(default_factory=dict)
    nbytes: int = 0

    def add_matrix(
        self, name: str, rows: int, columns: int, kind: int = F32, group: int = 0, asym: int = 0, act: int = 0
    ) -> WeightDesc:
        desc = self.matrices[name] = WeightDesc(self.nbytes, rows, columns, kind, group, asym, act)
        self.nbytes += desc.nbytes
        return desc

    def add_vector(self, name: str, length: int) -> int:
        offset = self.nbytes
        self.vectors[name] = (offset, length)
        self.nbytes += _up(length * 4, ALIGN)
        return offset

    def write(self, arena: np.ndarray, name: str, value: "np.ndarray | QuantTensor") -> None:
        """Packs one weight into its place. Raises WeightsError when its shape or form is not the one laid out."""
        if name in self.vectors:
            offset, length = self.vectors[name]
            if not isinstance(value, np.ndarray) or value.shape != (length,):
                raise WeightsError(f"{name}: shape {list(value.shape)}, the configuration expects [{length}]")
            arena[offset : offset + 4 * length].view(np.float32)[:] = value
            arena[offset + 4 * length : offset + _up(4 * length, ALIGN)] = 0
            return
        desc = self.matrices[name]
        found = describe(value, desc.offset, desc.act) if isinstance(value, QuantTensor) or value.ndim == 2 else None
        if found is None or (found.as_list()[:6] != desc.as_list()[:6]):
            form = ("float32", "8 bits", "4 bits")[desc.kind]
            raise WeightsError(
                f"{name}: {list(value.shape)} is not in the form laid out, "
                f"expected [{desc.rows}, {desc.columns}] in {form}, group {desc.group}, asymmetric {desc.asym}"
            )
        pack_weight(value, arena[desc.offset : desc.offset + desc.nbytes])


def pack(weights: "dict[str, np.ndarray | QuantTensor]", act: int = 0) -> tuple[np.ndarray, ArenaLayout]:
    """A whole arena in memory from a dictionary, in its order -> (uint8 [A], layout); `act` goes to quantized ones."""
    layout = ArenaLayout()
    for name, value in weights.items():
        if isinstance(value, np.ndarray) and value.ndim == 1:
            layout.add_vector(name, len(value))
        else:
            desc = describe(value, 0, act)
            layout.add_matrix(name, *desc.as_list()[1:])
    arena = aligned_empty(layout.nbytes)
    for name, value in weights.items():
        layout.write(arena, name, value)
    return arena, layout


def aligned_empty(nbytes: int) -> np.ndarray:
    """uint8 [nbytes], zeroed, whose memory starts at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]
