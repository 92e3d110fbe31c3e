"""Items of any size by their bytes: the lowest of all items together, then the next, each plane easy for zstandard."""

import threading

import numpy as np
import zstandard

_LEVEL = 1
_local = threading.local()  # contexts are costly to make, and serve one thread at a time


def encode(data: np.ndarray, itemsize: int, base: np.ndarray | None) -> bytes:
    """A zstandard frame that tells its content's size, of `data` uint8 [n], XOR base where there is one."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    if base is not None:
        data = data ^ base
    return _local.compressor.compress(np.ascontiguousarray(data.reshape(-1, itemsize).T))


def decode(stored: np.ndarray, itemsize: int, base: np.ndarray | None, out: np.ndarray) -> None:
    """Fill `out` uint8 [n]. Raises ValueError for bytes that are not one frame of n bytes."""
    frame = stored.tobytes()
    try:
        told = zstandard.get_frame_parameters(frame).content_size
        if told != out.size:  # before anything is allocated by it
            raise ValueError(f"a frame of {told} bytes")
        if not hasattr(_local, "decompressor"):
            _local.decompressor = zstandard.ZstdDecompressor()
        planes = _local.decompressor.decompress(frame, max_output_size=out.size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstandard: {error}") from error
    if len(planes) != out.size:
        raise ValueError(f"{len(planes)} bytes")
    out.reshape(-1, itemsize)[:] = np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T
    if base is not None:
        out ^= base
