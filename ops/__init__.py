"""Operators: one name, a reference body from MindSpore built-ins, a native CPU body, a declared Ascend body."""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "mindspeed_ms.ops":
    raise ImportError(f"import mindspeed_ms.ops, not {__name__}: the folder is a part of that package")

if TYPE_CHECKING:
    from mindspeed_ms.ops.attention import Attention as Attention
    from mindspeed_ms.ops.attention_block import AttentionBlock as AttentionBlock
    from mindspeed_ms.ops.embedding import Embedding as Embedding
    from mindspeed_ms.ops.linear import Linear as Linear
    from mindspeed_ms.ops.lm_head import LmHead as LmHead
    from mindspeed_ms.ops.mlp_block import MlpBlock as MlpBlock
    from mindspeed_ms.ops.paged_attention import PagedAttention as PagedAttention
    from mindspeed_ms.ops.rms_norm import RMSNorm as RMSNorm
    from mindspeed_ms.ops.rotary import RotaryEmbedding as RotaryEmbedding
    from mindspeed_ms.ops.rotary import RotaryTable as RotaryTable
    from mindspeed_ms.ops.swiglu import SwiGLU as SwiGLU

# Loaded when first used, so that mindspeed_ms.ops.native stays free of MindSpore.
_HOME = {
    "Attention": "attention",
    "AttentionBlock": "attention_block",
    "Embedding": "embedding",
    "Linear": "linear",
    "LmHead": "lm_head",
    "MlpBlock": "mlp_block",
    "PagedAttention": "paged_attention",
    "RMSNorm": "rms_norm",
    "RotaryEmbedding": "rotary",
    "RotaryTable": "rotary",
    "SwiGLU": "swiglu",
}
__all__ = [
    "Attention",
    "AttentionBlock",
    "Embedding",
    "Linear",
    "LmHead",
    "MlpBlock",
    "PagedAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "RotaryTable",
    "SwiGLU",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
