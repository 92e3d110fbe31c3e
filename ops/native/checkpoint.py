"""Checkpoint chunks in fewer bits, and what a save does to whole buffers, by the kernel library. Imports no MindSpore.

`mindspeed_ms.checkpoint.codec_reference` has the same functions in NumPy.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np

from mindspeed_ms.errors import KernelError
from mindspeed_ms.ops.native.build import library

EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
_FAULTS = {
    1: "ends too early",
    2: "holds a block of no known width or mode",
    3: "names a value outside its block",
    4: "goes on after its last block",
    5: "holds tiers that contradict its header",
}


@cache
def _entries() -> ctypes.CDLL:
    lib = library()
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("MsmsBlockEncode", count, [pointer, pointer, count, pointer, count]),
        ("MsmsBlockEstimate", count, [pointer, pointer, count, count]),
        ("MsmsBlockDecode", ctypes.c_int, [pointer, count, pointer, count, pointer]),
        ("MsmsFinite", ctypes.c_int, [pointer, count, ctypes.c_int, ctypes.c_uint64]),
        ("MsmsCopyAside", ctypes.c_int, [count, pointer, pointer, pointer]),
    ):
        entry = getattr(lib, name)
        entry.restype, entry.argtypes = result, arguments
    return lib


def _words(name: str, array: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    if array.dtype != np.uint32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise KernelError(f"{name}: {array.dtype} {list(array.shape)}, expected contiguous uint32 [n]")
    if like is not None and array.size != like.size:
        raise KernelError(f"{name}: {array.size} values for {like.size}, expected as many")
    return array


def _bytes(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise KernelError(f"{name}: {array.dtype} {list(array.shape)}, expected contiguous uint8 [n]")
    return array


def _writable(name: str, array: np.ndarray) -> np.ndarray:
    if not array.flags.writeable:
        raise KernelError(f"{name}: read-only, expected an array to write to")
    return array


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def block_encode(x: np.ndarray, base: np.ndarray | None, out: np.ndarray) -> int | None:
    """Bytes written to `out` uint8 [capacity] for x uint32 [n], or None when they do not fit; base: uint32 [n]."""
    _words("x", x)
    if base is not None:
        _words("base", base, x)
    _writable("out", _bytes("out", out))
    used = _entries().MsmsBlockEncode(_address(x), _address(base), x.size, _address(out), out.size)
    return None if used < 0 else used


def block_estimate(x: np.ndarray, base: np.ndarray | None, blocks: int) -> int:
    """About how many bytes `block_encode` would write, from `blocks` blocks spread evenly."""
    _words("x", x)
    if base is not None:
        _words("base", base, x)
    return _entries().MsmsBlockEstimate(_address(x), _address(base), x.size, blocks)


def block_decode(stored: np.ndarray, base: np.ndarray | None, out: np.ndarray) -> None:
    """Bring back what `block_encode` wrote: uint8 [used] to `out` uint32 [n]. Raises KernelError for other bytes."""
    _bytes("stored", stored)
    _writable("out", _words("out", out))
    if base is not None:
        _words("base", base, out)
    fault = _entries().MsmsBlockDecode(_address(stored), stored.size, _address(base), out.size, _address(out))
    if fault:
        raise KernelError(f"a block stream of {stored.size} bytes {_FAULTS.get(fault, f'has fault {fault}')}")


def all_finite(array: np.ndarray, dtype: str | None = None) -> bool:
    """Whether no value is NaN or infinite; dtype "bfloat16" says that uint16 holds its bits."""
    name = dtype or array.dtype.name
    if name not in EXPONENTS or array.itemsize != (2 if name == "bfloat16" else np.dtype(name).itemsize):
        raise KernelError(f"{array.dtype} as {name}: expected {', '.join(EXPONENTS)}")
    if not array.flags.c_contiguous:
        raise KernelError(f"{array.dtype} {list(array.shape)} is not contiguous, expected C order")
    return bool(_entries().MsmsFinite(_address(array), array.size, array.itemsize, EXPONENTS[name]))


def copy_aside(targets: Sequence[np.ndarray], sources: Sequence[np.ndarray]) -> None:
    """Copy each source to the target of as many bytes, on all threads and past the caches; both contiguous."""
    if len(targets) != len(sources):
        raise KernelError(f"{len(targets)} targets for {len(sources)} sources, expected as many")
    for to, source in zip(targets, sources, strict=True):
        if to.nbytes != source.nbytes or not (to.flags.c_contiguous and source.flags.c_contiguous):
            raise KernelError(f"{source.nbytes} bytes to {to.nbytes}: expected contiguous arrays of one size")
        _writable("target", to)
    count = len(sources)
    to_list = (ctypes.c_void_p * count)(*[array.ctypes.data for array in targets])
    from_list = (ctypes.c_void_p * count)(*[array.ctypes.data for array in sources])
    sizes = (ctypes.c_int64 * count)(*[array.nbytes for array in sources])
    if _entries().MsmsCopyAside(count, to_list, from_list, sizes):
        raise KernelError(f"no memory to list {count} buffers to copy; free some")
