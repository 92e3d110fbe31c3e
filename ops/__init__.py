"""Operators: one name, a reference body from MindSpore built-ins, a native CPU body, a declared Ascend body."""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "mindspeed_ms.ops":
    raise ImportError(f"import mindspeed_ms.ops, not {__name__}: the folder is a part of that package")

if TYPE_CHECKING:
    pass

# Loaded when first used, so that mindspeed_ms.ops.native stays free of MindSpore.
_HOME: dict[str, str] = {}
__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
