"""Networks of Ascend's fused operators: exported without a device, split as MindSpore's own propagation splits them."""

import numpy as np
import pytest

from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.graph import read_graph
from mindspeed_ms.parallel.plan.strategy.make import make_strategies

ms = pytest.importorskip("mindspore")

HEADS, DIM, HIDDEN = 4, 16, 64


def network(layout, key_heads):
    from mindspore import Parameter, Tensor, nn, ops
    from mindspore.ops.auto_generate import RmsNorm
    from mindspore.ops.operations.nn_ops import FlashAttentionScore

    class Attention(nn.Cell):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (
                Parameter(Tensor(np.zeros((rows, HIDDEN), np.float32)), name=f"{name}.weight")
                for name, rows in zip("qkvo", (HIDDEN, key_heads * DIM, key_heads * DIM, HIDDEN), strict=True)
            )
            self.gamma = Parameter(Tensor(np.ones(HIDDEN, np.float32)), name="norm.weight")
            self.norm, self.matmul = RmsNorm(1e-6), ops.MatMul(transpose_b=True)
            self.attend = FlashAttentionScore(head_num=HEADS, scale_value=0.25, input_layout=layout)

        def heads(self, x, count):
            if layout == "BSH":
                return x.reshape((4, 8, count * DIM))
            x = x.reshape((4, 8, count, DIM))
            return x if layout == "BSND" else x.transpose((0, 2, 1, 3))

        def construct(self, x, mask):
            y = self.norm(x, self.gamma)[0].reshape((32, HIDDEN))
            q, k, v = self.matmul(y, self.q), self.matmul(y, self.k), self.matmul(y, self.v)
            q, k, v = self.heads(q, HEADS), self.heads(k, key_heads), self.heads(v, key_heads)
            y = self.attend(q, k, v, None, None, None, mask, None)[3]
            if layout == "BNSD":
                y = y.transpose((0, 2, 1, 3))
            return x + self.matmul(y.reshape((32, HIDDEN)), self.o).reshape((4, 8, HIDDEN))

    return Attention()


def export(layout, key_heads=HEADS):
    from mindspore.graph.api import _cell_graph_executor as executor

    ms.set_context(mode=ms.GRAPH_MODE)
    net = network(layout, key_heads)
    net.set_train(False)
    x, mask = ms.Tensor(np.zeros((4, 8, HIDDEN), np.float32)), ms.Tensor(np.zeros((4, 1, 8, 8), np.uint8))
    number, _ = executor.compile(net, x, mask, phase="export.mindir", do_convert=False)
    return read_graph(executor._get_func_graph_proto(net, number, "mind_ir"), layout)


# What MindSpore 2.10's sharding propagation saves on data 2, tensor 2, given the strategies of the weights alone.
SAVED = {"BSH": (2, 1, 2), "BSND": (2, 1, 2, 1), "BNSD": (2, 2, 1, 1)}


@pytest.mark.parametrize("layout", SAVED)
def test_flash_attention_is_split_by_batch_and_heads_in_every_layout(layout):
    files, splits = make_strategies(export(layout), Settings(data=2, tensor=2))
    found = files[0].operators["Default/FlashAttentionScore-op0"]
    assert found == (SAVED[layout],) * 3 + ((2, 1, 1, 1),)
    assert files[0].operators["RmsNorm_norm.weight"] == ((2, 1, 1), (1,))
    assert files[0].operators["MatMul_o.weight"] == ((2, 2), (1, 2))
    assert splits.redistributions == () and splits.kept_whole == () and splits.unknown == ()


def test_key_heads_that_do_not_divide_leave_attention_whole():
    files, splits = make_strategies(export("BSH", key_heads=1), Settings(data=2, tensor=2))
    assert files[0].operators["Default/FlashAttentionScore-op0"][0] == (2, 1, 1)
    assert len(splits.kept_whole) == 4 and splits.redistributions == ()
