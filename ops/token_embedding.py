"""Token embedding of training: rows of a table, and a gradient whose sums have one order."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from mindspeed_ms.ops.aot import AscendBody, aot_op, choose

# Its gradient: EmbeddingDenseBackward.
ASCEND = AscendBody("Embedding", ("input", "weight"))


class TokenEmbeddingReference(nn.Cell):
    """ids int32 [...], weight float32 [V, H] -> weight[ids], float32 [..., H]."""

    def construct(self, ids: Tensor, weight: Tensor) -> Tensor:
        return ops.gather(weight, ids, 0)


def token_embedding_native(vocab_size: int) -> ops.Custom:
    """The native kernel: (ids [...], weight [V, H]) -> [..., H]; an id outside the table is refused."""
    attrs = {"vocabulary": vocab_size}
    weight_gradient = aot_op("TokenEmbeddingGrad", [("dy", "f32"), ("ids", "i32")], [("dw", "f32")], attrs)

    def bprop(ids, weight, out, dout):
        return ops.zeros_like(ids), weight_gradient(dout, ids)

    # MindSpore knows a gradient by the name and the attributes of its operator: another table is another operator
    return aot_op("TokenEmbedding", [("ids", "i32"), ("w", "f32")], [("y", "f32")], attrs, bprop=bprop)


class TokenEmbedding(nn.Cell):
    """ids int32 [...] -> float32 [..., H], rows of the parameter `weight` [V, H], which begins as zeros.

    The gradient adds the rows of equal ids in the order of the tokens, whatever the number of threads.
    """

    reference = TokenEmbeddingReference

    def __init__(self, vocab_size: int, hidden_size: int, weight_init: str = "zeros"):
        super().__init__()
        self.weight = Parameter(initializer(weight_init, (vocab_size, hidden_size), ms.float32))
        self.body = choose(lambda: token_embedding_native(vocab_size), TokenEmbeddingReference)

    def construct(self, ids: Tensor) -> Tensor:
        return self.body(ids, self.weight)
