"""Rows of the embedding matrix, float32 or quantized; packed like a linear, so a tied output layer shares it."""

from mindspore import Parameter, Tensor, nn, ops

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.arena import Arena, Weight, dense

ASCEND = AscendBody("Embedding", ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"))


class EmbeddingReference(nn.Cell):
    """ids [T] int32 -> rows of the dequantized matrix, [T, H] float32."""

    def __init__(self, weight: Weight, arena: Arena | None):
        super().__init__()
        self.weight = Parameter(Tensor(dense(arena, weight)), requires_grad=False)

    def construct(self, ids: Tensor, arena: Tensor) -> Tensor:
        return ops.gather(self.weight, ids, 0)


def embedding_native(weight: Weight) -> ops.Custom:
    """The native kernel: (ids [T] int32, arena) -> [T, H] float32."""
    inputs = [("ids", "i32"), ("arena", "u8")]
    return aot_op("Embedding", inputs, [("y", "f32")], {"weight": list(weight)})


class Embedding(nn.Cell):
    """ids [T] int32, arena uint8 [A] -> [T, H] float32; `weight` is the seven integers of the matrix [V, H]."""

    reference = EmbeddingReference

    def __init__(self, weight: Weight, arena: Arena | None = None):
        super().__init__()
        self.body = choose(lambda: embedding_native(weight), lambda: EmbeddingReference(weight, arena))

    def construct(self, ids: Tensor, arena: Tensor) -> Tensor:
        return self.body(ids, arena)
