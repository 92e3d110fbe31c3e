"""How an operator gets its body: the native kernel, the reference, or (declared) the Ascend primitive; chosen once."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, TypeVar

import mindspore as ms
from mindspore import ops
from mindspore.ops import CustomRegOp, DataType

from mindspeed_ms.errors import BuildError, ConfigError
from mindspeed_ms.log import get_logger

VARIABLE = "MINDSPEED_MS_KERNELS"
_DTYPES = {
    "f32": DataType.F32_Default,
    "f16": DataType.F16_Default,
    "i32": DataType.I32_Default,
    "u8": DataType.U8_Default,
}
Body = TypeVar("Body")


@dataclass(frozen=True)
class AscendBody:
    """The Ascend primitive that stands for an operator: its constructor's arguments and the order of its inputs.

    `attributes` maps an argument of the primitive to what it is given; `inputs` are the primitive's own names, in
    the order we pass them. Declared only: no device has run them yet.
    """

    primitive: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)


def kernels() -> str:
    """`"native"` or `"reference"`, from MINDSPEED_MS_KERNELS and the device target.

    Raises ConfigError when the variable holds another word, or asks for the CPU kernels on another device.
    """
    asked = os.environ.get(VARIABLE, "").strip().lower()
    if asked not in ("", "native", "reference"):
        raise ConfigError(f"{VARIABLE}={asked!r}: expected native or reference; unset it to take the default")
    device = ms.get_context("device_target")
    if asked == "native" and device != "CPU":
        raise ConfigError(f"{VARIABLE}=native: the native kernels run on CPU, not on {device}; set it to reference")
    return asked or ("native" if device == "CPU" else "reference")


def kernels_in_use() -> str:
    """As `kernels()`, but `"reference"` where the native kernels are only the default and cannot be built."""
    asked = kernels()
    return "reference" if asked == "native" and not os.environ.get(VARIABLE, "").strip() and _missing() else asked


@cache
def _missing() -> bool:
    """Asked once: a compiler that fails is not started again for each step."""
    from mindspeed_ms.ops.native.build import library

    try:
        library()
    except BuildError:
        return True
    return False


def choose(native: Callable[[], Body], reference: Callable[[], Body]) -> Body:
    """Build the body that `kernels()` names, and only that one.

    Where the native kernels are only the default and cannot be built, the reference takes their place with one
    notice; raises BuildError when the variable asks for them.
    """
    if kernels() == "reference":
        return reference()
    try:
        return native()
    except BuildError as error:
        if os.environ.get(VARIABLE, "").strip():
            raise
        _notice(str(error))
        return reference()


@cache
def _notice(reason: str) -> None:
    get_logger(__name__).warning("operators take their slower reference bodies: %s", reason)


def aot_op(
    entry: str,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
    attrs: Mapping[str, object],
    side_effect: bool = False,
    bprop: Callable[..., tuple[Any, ...]] | None = None,
    name: str | None = None,
) -> ops.Custom:
    """Wrap one entry point of the native library as a MindSpore operator.

    `inputs` and `outputs` are (name, dtype) pairs, dtype one of f32, f16, i32, u8, or several joined by `|`.
    `attrs` holds ints, floats and lists of ints. `side_effect` marks an operator that writes into an input, so that
    it is neither dropped nor reordered. `bprop(*inputs, out, dout)` gives the gradients of all inputs
    (`ops.zeros_like` for those that have none); MindSpore tells gradients apart by the operator's name and `attrs`, so
    `attrs` has to hold whatever the gradient depends on. `name` is the operator's in MindSpore, where a reader of the
    graph counts on one. Raises BuildError when the library cannot be built.
    """
    from mindspeed_ms.ops.native.build import library_path

    # MindSpore keeps one signature a name, and an entry point may have several.
    info = CustomRegOp(name or f"{entry}{len(inputs)}to{len(outputs)}")
    for index, (value, _) in enumerate(inputs):
        info = info.input(index, value)
    for index, (value, _) in enumerate(outputs):
        info = info.output(index, value)
    for key, given in attrs.items():
        info = info.attr(key, "required", _attr_type(given), value=given)
    for row in product(*(dtype.split("|") for _, dtype in (*inputs, *outputs))):
        info = info.dtype_format(*(_DTYPES[dtype] for dtype in row))
    reg = info.target("CPU").get_op_info()
    op = ops.Custom(f"{library_path()}:{entry}", None, None, func_type="aot", bprop=bprop, reg_info=reg)
    if side_effect:
        op.add_prim_attr("side_effect_mem", True)
    return op


def _attr_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "listInt"
