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
    from mindspeed_ms.train.fuse import fuse as fuse
    from mindspeed_ms.train.lora import LoraConfig as LoraConfig
    from mindspeed_ms.train.lora import apply_lora as apply_lora
    from mindspeed_ms.train.lora import merge_lora as merge_lora
    from mindspeed_ms.train.loss import CausalLMLoss as CausalLMLoss
    from mindspeed_ms.train.optimizer import SGD as SGD
    from mindspeed_ms.train.optimizer import Adafactor as Adafactor
    from mindspeed_ms.train.optimizer import AdamW as AdamW
    from mindspeed_ms.train.optimizer import Lion as Lion
    from mindspeed_ms.train.step import TrainStep as TrainStep

__version__ = "0.1.0"

# Loaded when first used: importing this package loads no MindSpore.
_HOME = {
    "Adafactor": "mindspeed_ms.train.optimizer",
    "AdamW": "mindspeed_ms.train.optimizer",
    "BucketLoader": "mindspeed_ms.data.loader",
    "CausalLMLoss": "mindspeed_ms.train.loss",
    "LLM": "mindspeed_ms.serving.engine.llm",
    "Lion": "mindspeed_ms.train.optimizer",
    "LoraConfig": "mindspeed_ms.train.lora",
    "NPUStaticBucketLoader": "mindspeed_ms.data.loader",
    "RequestOutput": "mindspeed_ms.serving.engine.llm",
    "SGD": "mindspeed_ms.train.optimizer",
    "SamplingParams": "mindspeed_ms.serving.engine.llm",
    "TrainStep": "mindspeed_ms.train.step",
    "apply_lora": "mindspeed_ms.train.lora",
    "export_bundle": "mindspeed_ms.export.bundle",
    "fuse": "mindspeed_ms.train.fuse",
    "merge_lora": "mindspeed_ms.train.lora",
    "quantize_model": "mindspeed_ms.compress.quantize",
}
__all__ = [
    "LLM",
    "SGD",
    "Adafactor",
    "AdamW",
    "BucketLoader",
    "CausalLMLoss",
    "Lion",
    "LoraConfig",
    "NPUStaticBucketLoader",
    "RequestOutput",
    "SamplingParams",
    "TrainStep",
    "__version__",
    "apply_lora",
    "export_bundle",
    "fuse",
    "merge_lora",
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
