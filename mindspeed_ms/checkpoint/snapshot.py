"""A copy of the tensors of a save, in memory that stays from save to save."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindspeed_ms.checkpoint.kernels import kernels, native
from mindspeed_ms.checkpoint.manifest import PAGE
from mindspeed_ms.ops.native import aside


@dataclass(frozen=True)
class Taken:
    """A tensor as it was: its bytes in C order, little-endian, uint8 [nbytes]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class Snapshot:
    """Page-aligned memory for the tensors of one save at a time."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._late = False

    def take(self, tensors: Mapping[str, np.ndarray], late: Collection[str] = ()) -> list[Taken]:
        """Copy; what the last call gave is overwritten.

        late: tensors that the next update of a native optimizer copies, or `finish`; until then the copy is not there.
        """
        self.finish()
        places, end = [], 0
        for array in tensors.values():
            places.append(end)
            end += -(-array.nbytes // PAGE) * PAGE
        if end > self._memory.size or 2 * end < self._memory.size:
            self._memory = np.empty(0, np.uint8)  # the old memory goes before the new one comes
            self._memory = aligned(end)
        taken = []
        now: list[tuple[np.ndarray, np.ndarray]] = []
        put_off: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        as_they_are = native()
        for place, (name, array) in zip(places, tensors.items(), strict=True):
            out = self._memory[place : place + array.nbytes]
            taken.append(Taken(name, array.dtype.name, array.shape, out))
            if as_they_are and array.flags.c_contiguous and array.dtype.isnative and array.nbytes:
                address = array.__array_interface__["data"][0]
                later = name in late and address not in put_off  # the library knows a copy by its source
                if later:
                    put_off[address] = (array, out)
                else:
                    now.append((array, out))
            else:
                _copy(array, out)
        if now:
            kernels().copy_aside([out for _, out in now], [array for array, _ in now])
        if put_off:
            self._late = True  # before: an interrupt in between must not let go of this memory
            aside.put_off(list(put_off.values()))
        return taken

    def waits(self) -> bool:
        """Whether late tensors have not been copied yet."""
        self._late = self._late and aside.waits()
        return self._late

    def finish(self) -> None:
        """Copy what is late."""
        if self._late:
            aside.copy_now()
            self._late = False


def views(tensors: Mapping[str, np.ndarray]) -> list[Taken]:
    """The tensors themselves, which nothing may change meanwhile; a copy only of what lies in another order."""
    return [_view(name, array) for name, array in tensors.items()]


def aligned(nbytes: int) -> np.ndarray:
    """Zeros, uint8 [nbytes], that begin at a page; huge pages where the system gives them."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory = mmap.mmap(-1, nbytes)
    if nbytes >= 2 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return np.frombuffer(memory, np.uint8)


def pieces(data: np.ndarray, nbytes: int) -> Iterator[np.ndarray]:
    """The chunks of a tensor's bytes."""
    for start in range(0, data.size, nbytes):
        yield data[start : start + nbytes]


def _stored(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("<") if dtype.name != "bfloat16" else dtype


def _view(name: str, array: np.ndarray) -> Taken:
    data = np.ascontiguousarray(array, _stored(array.dtype)).reshape(-1).view(np.uint8)
    return Taken(name, array.dtype.name, array.shape, data)


def _copy(array: np.ndarray, out: np.ndarray) -> None:
    kind = _stored(array.dtype)
    if array.nbytes:
        np.copyto(out.view(kind).reshape(array.shape), array)
