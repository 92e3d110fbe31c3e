"""Who computes for checkpoints: the kernel library, or NumPy where there is none."""

import os
from functools import cache
from types import ModuleType

from mindspeed_ms.checkpoint import codec_reference
from mindspeed_ms.errors import BuildError, ConfigError
from mindspeed_ms.log import get_logger
from mindspeed_ms.ops.native import build, checkpoint

_VARIABLE = "MINDSPEED_MS_KERNELS"


def kernels() -> ModuleType:
    """`ops.native.checkpoint`, or `codec_reference` with the same functions, by MINDSPEED_MS_KERNELS or what there is.

    Raises ConfigError for another word in the variable, BuildError when it asks for kernels that cannot be built.
    """
    asked = os.environ.get(_VARIABLE, "").strip().lower()
    if asked not in ("", "native", "reference"):
        raise ConfigError(f"{_VARIABLE}={asked!r}: expected native or reference; unset it to take the default")
    if asked == "reference":
        return codec_reference
    reason = _missing()
    if reason is None:
        return checkpoint
    if asked:
        raise BuildError(reason)
    _notice(reason)
    return codec_reference


def native() -> bool:
    """Whether it is the kernel library."""
    return kernels() is checkpoint


@cache
def _missing() -> str | None:
    """Why there is no library, asked once: a compiler that fails is not started again for each chunk."""
    try:
        build.library()
    except BuildError as error:
        return str(error)
    return None


@cache
def _notice(reason: str) -> None:
    get_logger(__name__).warning("checkpoints are packed by slower NumPy code: %s", reason)
