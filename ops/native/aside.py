"""Copies of tensors that are put off until an optimizer is about to change them, and then made while it reads them."""

import ctypes
from collections.abc import Sequence

import numpy as np

from mindspeed_ms.errors import KernelError
from mindspeed_ms.ops.native.build import library

_held: list[Sequence[tuple[np.ndarray, np.ndarray]]] = []  # what the library has addresses of, though its owner is gone


def put_off(copies: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy each first array to the second before a native optimizer changes it, or when `copy_now` is called.

    Both are C-contiguous and of equal bytes, and are to stay until `waits` is false; nothing else may change the first
    until then. What was put off before and still waits is copied now. Raises KernelError.
    """
    for source, target in copies:
        if source.nbytes != target.nbytes or not (source.flags.c_contiguous and target.flags.c_contiguous):
            raise KernelError(
                f"a copy of {source.nbytes} bytes to {target.nbytes}: expected contiguous arrays of one size"
            )
    pointers = ctypes.c_void_p * len(copies)
    sources = pointers(*(_address(source) for source, _ in copies))
    targets = pointers(*(_address(target) for _, target in copies))
    lengths = (ctypes.c_int64 * len(copies))(*(source.nbytes for source, _ in copies))
    if library().MsmsAside(ctypes.c_int64(len(copies)), sources, targets, lengths):
        raise KernelError(f"no memory for a list of {len(copies)} copies")
    _held[:] = [copies]


def waits() -> bool:
    """Whether copies that were put off have not been made yet."""
    found = bool(library().MsmsAsideWaits())
    if not found:
        _held.clear()
    return found


def copy_now() -> None:
    """Make the copies that wait; while an operator runs this takes until it is done. Raises KernelError."""
    if library().MsmsAsideNow():
        raise KernelError("no memory for a list of copies")
    _held.clear()


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
