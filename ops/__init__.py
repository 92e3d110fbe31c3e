"""Operators: one name, a reference body from MindSpore built-ins, a native CPU body, a declared Ascend body."""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "mindspeed_ms.ops":
    raise ImportError(f"import mindspeed_ms.ops, not {__name__}: the folder is a part of that package")

if TYPE_CHECKING:
    from mindspeed_ms.ops.attention import Attention as Attention
    from mindspeed_ms.ops.attention_block import AttentionBlock as AttentionBlock
    from mindspeed_ms.ops.dense import Dense as Dense
    from mindspeed_ms.ops.dropout import Dropout as Dropout
    from mindspeed_ms.ops.embedding import Embedding as Embedding
    from mindspeed_ms.ops.gelu import GELU as GELU
    from mindspeed_ms.ops.layer_norm import LayerNorm as LayerNorm
    from mindspeed_ms.ops.linear import Linear as Linear
    from mindspeed_ms.ops.linear_cross_entropy import LinearCrossEntropy as LinearCrossEntropy
    from mindspeed_ms.ops.lm_head import LmHead as LmHead
    from mindspeed_ms.ops.mlp_block import MlpBlock as MlpBlock
    from mindspeed_ms.ops.optimizers import Accumulate as Accumulate
    from mindspeed_ms.ops.optimizers import AdafactorUpdate as AdafactorUpdate
    from mindspeed_ms.ops.optimizers import AdamWUpdate as AdamWUpdate
    from mindspeed_ms.ops.optimizers import LionUpdate as LionUpdate
    from mindspeed_ms.ops.optimizers import SGDUpdate as SGDUpdate
    from mindspeed_ms.ops.optimizers import SumSquares as SumSquares
    from mindspeed_ms.ops.paged_attention import PagedAttention as PagedAttention
    from mindspeed_ms.ops.rms_norm import RMSNorm as RMSNorm
    from mindspeed_ms.ops.rotary import RotaryEmbedding as RotaryEmbedding
    from mindspeed_ms.ops.rotary import RotaryTable as RotaryTable
    from mindspeed_ms.ops.swiglu import SwiGLU as SwiGLU
    from mindspeed_ms.ops.token_embedding import TokenEmbedding as TokenEmbedding

# Loaded when first used, so that mindspeed_ms.ops.native stays free of MindSpore.
_HOME = {
    "Accumulate": "optimizers",
    "AdafactorUpdate": "optimizers",
    "AdamWUpdate": "optimizers",
    "Attention": "attention",
    "AttentionBlock": "attention_block",
    "Dense": "dense",
    "Dropout": "dropout",
    "Embedding": "embedding",
    "GELU": "gelu",
    "LayerNorm": "layer_norm",
    "Linear": "linear",
    "LinearCrossEntropy": "linear_cross_entropy",
    "LionUpdate": "optimizers",
    "LmHead": "lm_head",
    "MlpBlock": "mlp_block",
    "PagedAttention": "paged_attention",
    "RMSNorm": "rms_norm",
    "RotaryEmbedding": "rotary",
    "RotaryTable": "rotary",
    "SGDUpdate": "optimizers",
    "SumSquares": "optimizers",
    "SwiGLU": "swiglu",
    "TokenEmbedding": "token_embedding",
}
__all__ = [
    "GELU",
    "Accumulate",
    "AdafactorUpdate",
    "AdamWUpdate",
    "Attention",
    "AttentionBlock",
    "Dense",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropy",
    "LionUpdate",
    "LmHead",
    "MlpBlock",
    "PagedAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "RotaryTable",
    "SGDUpdate",
    "SumSquares",
    "SwiGLU",
    "TokenEmbedding",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
