"""mindspeed-ms: a language model's whole life on MindSpore."""

import importlib
from typing import TYPE_CHECKING, Any

from mindspeed_ms.log import quiet_mindspore

if TYPE_CHECKING:
    from mindspeed_ms.compress.quantize import quantize_model as quantize_model
    from mindspeed_ms.data.loader import BucketLoader as BucketLoader
    from mindspeed_ms.data.loader import NPUStaticBucketLoader as NPUStaticBucketLoader
    from mindspeed_ms.export.bundle import export_bundle as export_bundle
    from mindspeed_ms.serving.engine.llm import LLM as LLM
    from mindspeed_ms.serving.engine.llm import RequestOutput as RequestOutput
    from mindspeed_ms.serving.engine.llm import SamplingParams as SamplingParams

__version__ = "0.1.0"

# Loaded when first used: importing this package loads no MindSpore.
_HOME = {
    "BucketLoader": "mindspeed_ms.data.loader",
    "LLM": "mindspeed_ms.serving.engine.llm",
    "NPUStaticBucketLoader": "mindspeed_ms.data.loader",
    "RequestOutput": "mindspeed_ms.serving.engine.llm",
    "SamplingParams": "mindspeed_ms.serving.engine.llm",
    "export_bundle": "mindspeed_ms.export.bundle",
    "quantize_model": "mindspeed_ms.compress.quantize",
}
__all__ = [
    "LLM",
    "BucketLoader",
    "NPUStaticBucketLoader",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "export_bundle",
    "quantize_model",
]

quiet_mindspore()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
