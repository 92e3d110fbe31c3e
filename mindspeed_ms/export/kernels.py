"""What the native library says of itself, as far as bundles depend on it."""

import ctypes

from mindspeed_ms.errors import BuildError
from mindspeed_ms.ops.native.build import library_path


def load_library() -> ctypes.CDLL:
    """The kernel library, built if need be. Raises BuildError."""
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path}: cannot be loaded: {error}; run `mindspeed-ms ops build`") from None


def kernel_abi() -> int:
    """The number that changes whenever kernels and weight layouts of older bundles no longer fit. Raises BuildError."""
    return int(load_library().MsmsAbi())
