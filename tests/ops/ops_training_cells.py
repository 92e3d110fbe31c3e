"""A MindSpore network of the operators of training, in a row."""

import mindspore as ms
from mindspore import nn

from mindspeed_ms.ops.dropout import Dropout
from mindspeed_ms.ops.gelu import GELU
from mindspeed_ms.ops.layer_norm import LayerNorm
from mindspeed_ms.ops.rms_norm import RMSNorm
from mindspeed_ms.ops.rotary import RotaryEmbedding
from mindspeed_ms.ops.swiglu import SwiGLU
from mindspeed_ms.ops.token_embedding import TokenEmbedding


class Chain(nn.Cell):
    """ids [B, T], table [B * T, H / 2], seed [2], dy [B, T, H] -> sum(y * dy)."""

    def __init__(self, vocabulary, hidden):
        super().__init__()
        self.embed, self.rms = TokenEmbedding(vocabulary, hidden), RMSNorm(hidden, 1e-5)
        self.rotate, self.act, self.drop = RotaryEmbedding(), SwiGLU(), Dropout(0.25)
        self.norm, self.plain = LayerNorm(hidden), LayerNorm(hidden, has_bias=False)
        self.gelu, self.tanh = GELU(), GELU("tanh")

    def construct(self, ids, table, seed, dy):
        x = self.rms(self.embed(ids))
        b, t, h = x.shape
        x = self.rotate(x.reshape((b * t, 2, h // 2)), table).reshape((b, t, h))
        x = self.norm(self.act(x, x * x))
        x = self.plain(self.gelu(x) + self.tanh(2 * x))
        return (self.drop(x, seed) * dy).sum()


class Step(nn.Cell):
    """The same inputs -> (loss, gradients of all weights)."""

    def __init__(self, network):
        super().__init__()
        self.network = network.set_train()
        self.gradients = ms.value_and_grad(network, None, network.trainable_params())

    def construct(self, ids, table, seed, dy):
        return self.gradients(ids, table, seed, dy)
