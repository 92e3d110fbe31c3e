"""The protocols in front of the engine; `serve` is loaded when first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindspeed_ms.serving.api.server import serve as serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    if name != "serve":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mindspeed_ms.serving.api.server import serve

    return serve
