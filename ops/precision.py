"""Half precision around operators that compute in float32, as mixed precision hands it to them on a CPU."""

import mindspore as ms
from mindspore import Tensor, ops


def single(x: Tensor) -> Tensor:
    """x of any float dtype -> float32; nothing is done where it is float32 already."""
    return x if x.dtype == ms.float32 else ops.cast(x, ms.float32)


def like(y: Tensor, x: Tensor) -> Tensor:
    """y in the dtype of x: what an operator computed in float32 is rounded to what it was given."""
    return y if y.dtype == x.dtype else ops.cast(y, x.dtype)
