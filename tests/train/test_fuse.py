"""`fuse`: what it replaces computes the same, what it cannot replace stays, and the report says which and why."""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.fuse import fuse

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


@pytest.fixture(autouse=True)
def _eager():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    yield
    ms.set_context(mode=before)


def floats(*shape, seed=0, scale=1.0):
    return Tensor((np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32))


def randomize(network, seed=1):
    for number, parameter in enumerate(network.get_parameters()):
        parameter.set_data(floats(*parameter.shape, seed=seed + number, scale=0.3))
    return network


class Holder(nn.Cell):
    """A network of one Cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def construct(self, *inputs):
        return self.cell(*inputs)


class Gradients(nn.Cell):
    """inputs -> the network's output and the gradients of its sum by all Parameters."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.network = network
        self.grad = ops.value_and_grad(network, None, self.weights)

    def construct(self, *inputs):
        return self.grad(*inputs)


def rows(report):
    return {row.path: row.after for row in report.replaced}


def reasons(report):
    return {row.path: row.reason for row in report.left}


def close(one, other, tolerance=1e-5):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def gpt():
    from gpt_network import GPT

    return randomize(GPT(vocabulary=50, hidden=64, layers=1, heads=2, context=16))


def text(length=13):
    ids = np.random.default_rng(3).integers(0, 50, (2, length + 1)).astype(np.int32)
    labels = ids[:, 1:].copy()
    labels[0, :4] = -100
    return Tensor(ids[:, :-1]), Tensor(labels)


def test_a_gpt_that_is_not_ours_keeps_its_loss_and_gradients():
    network = gpt()
    parameters = {name: id(parameter) for name, parameter in network.parameters_and_names()}
    values = [parameter.asnumpy().copy() for parameter in network.get_parameters()]
    ms.set_context(mode=ms.GRAPH_MODE)
    loss, grads = Gradients(network)(*text())
    report = fuse(network, *text())
    assert {name: id(parameter) for name, parameter in network.parameters_and_names()} == parameters
    assert ms.get_context("mode") == ms.GRAPH_MODE
    for value, parameter in zip(values, network.get_parameters(), strict=True):
        np.testing.assert_array_equal(parameter.asnumpy(), value)
    fused_loss, fused_grads = Gradients(network)(*text())
    close(fused_loss.asnumpy(), loss.asnumpy())
    for name, one, other in zip(parameters, fused_grads, grads, strict=True):
        assert np.abs(other.asnumpy()).max() > 0 or name == "x"
        close(one.asnumpy(), other.asnumpy(), 2e-5)
    assert rows(report) == {
        "wte": "TokenEmbedding",
        "wpe": "TokenEmbedding",
        "blocks.0.ln_1": "LayerNorm",
        "blocks.0.attn.c_attn": "Dense",
        "blocks.0.attn.c_proj": "Dense",
        "blocks.0.attn": "Attention(2 heads)",
        "blocks.0.ln_2": "LayerNorm",
        "blocks.0.mlp.0": "Dense",
        "blocks.0.mlp.1": "GELU",
        "blocks.0.mlp.2": "Dense",
        "ln_f": "LayerNorm",
        "lm_head": "Dense",
        "loss": "CrossEntropy",
    }
    assert not report.left and report.difference < 1e-5


def test_without_an_example_the_cells_of_users_stay():
    report = fuse(gpt())
    assert "blocks.0.attn" not in rows(report) and rows(report)["blocks.0.attn.c_attn"] == "Dense"
    assert report.difference is None
    assert reasons(report) == {"blocks.0.attn.softmax": "no fused operator for it"}


def test_the_report_is_a_table_where_numbered_cells_share_a_line():
    network = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4), nn.Dropout(p=0.5))
    lines = str(fuse(network)).splitlines()
    assert lines[0] == "replaced (2):" and lines[1].split() == ["*", "nn.Dense", "->", "Dense", "x", "2"]
    assert lines[2] == "left alone (1):" and lines[3].split()[:2] == ["*", "nn.Dropout"] and "seed" in lines[3]


KNOWN = {
    "Dense": (lambda: nn.Dense(6, 5), (3, 6)),
    "Dense of three axes": (lambda: nn.Dense(6, 5, has_bias=False), (2, 3, 6)),
    "Dense with an activation": (lambda: nn.Dense(6, 5, activation="relu"), (2, 3, 6)),
    "LayerNorm": (lambda: nn.LayerNorm((8,), epsilon=1e-3), (2, 3, 8)),
    "GELU by tanh": (lambda: nn.GELU(), (3, 40)),
    "GELU by erf": (lambda: nn.GELU(approximate=False), (3, 40)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_mindspores_cells_are_replaced_by_equal_ones(name):
    make, shape = KNOWN[name]
    network = randomize(Holder(make()))
    x = floats(*shape, scale=2.0)
    before = network(x).asnumpy()
    report = fuse(network)
    assert list(rows(report)) == ["cell"] and type(network.cell).__module__ == "mindspeed_ms.train.fused"
    close(network(x).asnumpy(), before)


def test_embedding_is_replaced_and_what_reads_its_table_goes_on():
    network = randomize(Holder(nn.Embedding(9, 4, padding_idx=0)))
    ids = Tensor(np.array([[1, 8, 0], [3, 3, 2]], np.int32))
    before, table = network(ids).asnumpy(), network.cell.embedding_table
    fuse(network)
    np.testing.assert_array_equal(network(ids).asnumpy(), before)
    assert network.cell.embedding_table is table and network.cell.embedding_size == 4


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_counts_what_mindspores_counts(reduction):
    network = Holder(nn.CrossEntropyLoss(ignore_index=2, reduction=reduction))
    logits, labels = floats(7, 5, scale=3.0), Tensor(np.array([0, 2, 4, 1, 2, 3, 0], np.int32))
    shares = floats(7, 5, seed=2)
    volume = floats(2, 5, 3), Tensor(np.array([[0, 2, 4], [1, 1, 3]], np.int32))
    before = [network(logits, labels).asnumpy(), network(logits, shares).asnumpy(), network(*volume).asnumpy()]
    assert list(rows(fuse(network))) == ["cell"]
    for one, other in zip([(logits, labels), (logits, shares), volume], before, strict=True):
        close(network(*one).asnumpy(), other)


class RMSNorm(nn.Cell):
    def __init__(self, hidden, eps, one_more=0.0, stop=False):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(hidden, np.float32)))
        self.eps, self.one_more, self.stop = eps, one_more, stop

    def construct(self, x):
        size = ops.sqrt(ops.mean(ops.square(x), -1, True) + self.eps)
        if self.stop:
            size = ops.stop_gradient(size)
        return x / size * (self.scale + self.one_more)


class OwnLayerNorm(nn.Cell):
    """The bias comes first, as it may."""

    def __init__(self, hidden, eps):
        super().__init__()
        self.shift = Parameter(Tensor(np.zeros(hidden, np.float32)))
        self.gain = Parameter(Tensor(np.ones(hidden, np.float32)))
        self.eps = eps

    def construct(self, x):
        x = x - ops.mean(x, -1, True)
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + self.eps) * self.gain + self.shift


class TanhGELU(nn.Cell):
    def construct(self, x):
        return 0.5 * x * (1.0 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


class Gate(nn.Cell):
    """(up, gate), the other way round than ours."""

    def construct(self, up, gate):
        return up * (gate * ops.sigmoid(gate))


class OwnMLP(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Dense(8, 12, has_bias=False)
        self.w3 = nn.Dense(8, 12, has_bias=False)
        self.w2 = nn.Dense(12, 8, has_bias=False)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.w2(self.w1(x) * self.act(self.w3(x)))


class Product(nn.Cell):
    """Attention of q, k, v [B, N, T, D]."""

    def __init__(self, causal=True, dropout=0.0):
        super().__init__()
        self.causal = causal
        self.drop = nn.Dropout(p=dropout)

    def construct(self, q, k, v):
        t, dim = q.shape[2:]
        scores = ops.matmul(q, k.swapaxes(2, 3)) / dim**0.5
        if self.causal:
            scores = scores + ops.triu(ops.full((t, t), -1e9, dtype=ms.float32), 1)
        return ops.matmul(self.drop(ops.softmax(scores, -1)), v)


class SelfAttention(nn.Cell):
    """Two query heads share a key head; or one layer makes queries, keys and values head after head."""

    def __init__(self, joined):
        super().__init__()
        self.joined = joined
        if joined:
            self.qkv = nn.Dense(64, 192)
        else:
            self.q, self.k, self.v = nn.Dense(64, 64), nn.Dense(64, 32), nn.Dense(64, 32)
        self.o = nn.Dense(64, 64)
        self.product = Product()

    def construct(self, x):
        b, t, _ = x.shape
        if self.joined:
            qkv = self.qkv(x).reshape((b, t, 4, 3, 16)).transpose((3, 0, 2, 1, 4))
            q, k, v = qkv[0], qkv[1], qkv[2]
        else:
            q = self.q(x).reshape((b, t, 2, 32)).swapaxes(1, 2)
            k = ops.repeat_interleave(self.k(x).reshape((b, t, 1, 32)), 2, 2).swapaxes(1, 2)
            v = ops.repeat_interleave(self.v(x).reshape((b, t, 1, 32)), 2, 2).swapaxes(1, 2)
        return self.o(self.product(q, k, v).swapaxes(1, 2).reshape((b, t, 64)))


X = (2, 5, 8)
OWN = {
    "RMSNorm": (lambda: RMSNorm(8, 1e-6), [X], "RMSNorm(eps=1e-06)"),
    "RMSNorm with a large epsilon": (lambda: RMSNorm(8, 0.01), [X], "RMSNorm(eps=0.01)"),
    "LayerNorm": (lambda: OwnLayerNorm(8, 1e-5), [X], "LayerNorm(eps=1e-05)"),
    "GELU": (lambda: TanhGELU(), [X], "GELU(tanh)"),
    "a gated product": (lambda: Gate(), [X, X], "SwiGLU"),
    "a gated layer": (lambda: OwnMLP(), [X], "SwiGLU"),
    "attention": (lambda: Product(), [(2, 3, 5, 8)] * 3, "Attention"),
    "grouped self-attention": (lambda: SelfAttention(joined=False), [(2, 5, 64)], "Attention(2 heads)"),
    "self-attention head after head": (lambda: SelfAttention(joined=True), [(2, 5, 64)], "Attention(4 heads)"),
}


@pytest.mark.parametrize("name", OWN)
def test_cells_of_users_are_replaced_where_they_are_equal(name):
    make, shapes, after = OWN[name]
    network = randomize(Holder(make()))
    inputs = [floats(*shape, seed=9 + number) for number, shape in enumerate(shapes)]
    before = network(*inputs).asnumpy()
    report = fuse(network, *inputs)
    assert rows(report)["cell"] == after
    assert next(row.difference for row in report.replaced if row.path == "cell") <= 5e-5
    close(network(*inputs).asnumpy(), before, 5e-5)


ALMOST = {
    "a norm whose weight counts from one": (lambda: RMSNorm(8, 1e-6, one_more=1.0), [X]),
    "a norm that stops gradients": (lambda: RMSNorm(8, 1e-6, stop=True), [X]),
    "attention in both directions": (lambda: Product(causal=False), [(2, 3, 5, 8)] * 3),
}


@pytest.mark.parametrize("name", ALMOST)
def test_cells_that_only_look_alike_stay(name):
    make, shapes = ALMOST[name]
    network = Holder(make())
    kind = type(network.cell)
    report = fuse(network, *(floats(*shape, seed=number) for number, shape in enumerate(shapes)))
    assert not report.replaced and type(network.cell) is kind
    assert not reasons(report) or "differ by" in reasons(report)["cell"]


def test_attention_with_dropout_stays_and_says_so():
    report = fuse(Holder(Product(dropout=0.5)), *(floats(2, 3, 5, 8, seed=number) for number in range(3)))
    assert "random in training" in reasons(report)["cell"]


class Special(nn.Dense):
    """A Dense that computes something else."""

    def construct(self, x):
        return super().construct(x) * 2


def with_hook(cell):
    cell.register_forward_pre_hook(lambda cell, inputs: inputs)
    return cell


def with_other_construct(cell):
    cell.construct = lambda x: x
    return cell


def with_recompute(cell):
    cell.recompute()
    return cell


STAYING = {
    "hooks": (lambda: with_hook(nn.Dense(4, 4)), "it has hooks"),
    "another construct": (lambda: with_other_construct(nn.Dense(4, 4)), "its construct was replaced"),
    "half precision": (lambda: nn.Dense(4, 4).to_float(ms.float16), "it computes in half precision"),
    "half parameters": (lambda: nn.Dense(4, 4, dtype=ms.float16), "its parameters are not float32"),
    "recompute": (lambda: with_recompute(nn.Dense(4, 4)), "recompute is set on it"),
    "other axes": (lambda: nn.LayerNorm((3, 4), begin_norm_axis=1, begin_params_axis=1), "other axes than the last"),
    "weights of classes": (lambda: nn.CrossEntropyLoss(weight=floats(4)), "weighs classes"),
    "smoothing": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), "smooths labels"),
    "masks": (lambda: nn.MultiheadAttention(8, 2), "its mask comes with each call"),
    "convolution": (lambda: nn.Conv1d(4, 4, 3), "no fused operator for it"),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_says_why(name):
    make, reason = STAYING[name]
    network = Holder(make())
    cell = network.cell
    report = fuse(network)
    assert network.cell is cell and not report.replaced
    assert reason in reasons(report)["cell"]


def test_a_subclass_of_a_known_cell_stays():
    network = Holder(Special(4, 4))
    fuse(network, floats(3, 4))
    assert type(network.cell) is Special


def test_a_cell_held_twice_is_replaced_once_in_both_places():
    network = nn.SequentialCell(nn.Dense(4, 4), nn.GELU())
    network.append(network[0])
    x = floats(3, 4)
    before = network(x).asnumpy()
    assert len(fuse(network).replaced) == 2
    assert network[0] is network[2] and network.cell_list[0] is network[0]
    close(network(x).asnumpy(), before)


def test_a_network_that_was_compiled_before_runs_the_fused_cells():
    ms.set_context(mode=ms.GRAPH_MODE)
    network = Holder(nn.Embedding(4, 3))
    ids = Tensor(np.array([0, 3], np.int32))
    network(ids)
    fuse(network)
    network(ids)
    with pytest.raises(RuntimeError):  # MindSpore's gives zeros here
        network(Tensor(np.array([0, 4], np.int32)))


def test_flags_and_frozen_parameters_stay_as_they_were():
    network = OwnMLP()
    network.w1.weight.requires_grad = False
    network.set_train(True)
    network.w2.set_train(False)
    fuse(Holder(network), floats(*X))
    assert network.training and network.w1.training and not network.w2.training
    assert not network.w1.weight.requires_grad and network.w3.weight.requires_grad


class Inside(nn.Cell):
    """Uses a Cell's inside beside its output."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x):
        return self.fc.matmul(x, self.fc.weight)


def test_a_network_that_uses_the_inside_of_cells_is_told_so():
    with pytest.raises(TrainError, match="does not run with fused Cells .*matmul"):
        fuse(Inside(), floats(3, 4))
