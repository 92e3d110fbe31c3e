"""Linear + cross entropy in one, native and reference, against PyTorch float64."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_harness import DTYPES, Refused, _describe
from ops_oracle import close

COUNT, SHAPE, TYPE, TOKEN, ATTRIBUTE = 1, 2, 3, 5, 11
ENTRIES = ["LinearCrossEntropy", "LinearCrossEntropyGradInput", "LinearCrossEntropyGrad"]
drawn = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def call(native, entry, inputs, ignore=-100, out_shapes=None, attrs=None):
    """The outputs of one of the entry points, which the harness for one output cannot give."""
    arrays = [np.ascontiguousarray(a) for a in inputs]
    shapes = [(1,), inputs[2].shape[:1], inputs[0].shape, inputs[1].shape] if out_shapes is None else out_shapes
    outputs = [np.full(shape, np.nan, np.float32) for shape in shapes[: 2 + ENTRIES.index(entry)]]
    text = f"ignore_index {ignore}" if attrs is None else attrs
    harness = native.harness
    handle = ctypes.c_void_p(harness.Open(native.path.encode(), entry.encode(), text.encode()))
    assert handle.value
    try:
        arrays += outputs
        described = _describe(arrays, [DTYPES[str(a.dtype)] for a in arrays])
        assert harness.Start(handle, *described) == 0
        pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
        code = harness.Call(handle, len(arrays), pointers, *described)
        if code:
            raise Refused(code)
        return outputs
    finally:
        harness.Close(handle)


def expected(x, w, labels, ignore=-100, by=1.0):
    """loss, token losses, dx, dw in float64."""
    x, w = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w))
    labels = torch.tensor(labels).long()
    losses = torch.nn.functional.cross_entropy(x @ w.T, labels, reduction="none", ignore_index=ignore)
    (by * losses.sum()).backward()
    return [t.detach().numpy() for t in (losses.sum().reshape(1), losses, x.grad, w.grad)]


def check(native, x, w, labels, ignore=-100):
    right = expected(x, w, labels, ignore)
    for entry in ENTRIES:
        found = {}
        for threads in (1, 2, 3):
            native.set_threads(threads)
            found[threads] = call(native, entry, [x, w, labels], ignore)
            for one, other in zip(found[1], found[threads], strict=True):
                np.testing.assert_array_equal(one, other)
        for one, other in zip(found[1], right, strict=False):
            close(one, other)


@drawn
@given(st.integers(1, 90), st.integers(1, 200), st.integers(1, 60), st.sampled_from([0.0, 0.3, 0.9]), seeds)
def test_drawn_shapes(isa, tokens, vocabulary, hidden, ignored, rng):
    labels = rng.integers(0, vocabulary, tokens).astype(np.int32)
    labels[rng.random(tokens) < ignored] = -100
    check(isa, normal(rng, tokens, hidden), normal(rng, vocabulary, hidden) / np.float32(hidden**0.5), labels)


def test_more_rows_than_one_block(isa):
    rng = np.random.default_rng(1)
    x, w = normal(rng, 700, 40), normal(rng, 9000, 40) * np.float32(0.2)
    labels = rng.integers(0, 9000, 700).astype(np.int32)
    check(isa, x, w, labels)
    labels[100:130] = 7
    check(isa, x, w, labels, ignore=7)


def test_no_token_counts(isa):
    x, w = np.ones((5, 4), np.float32), np.ones((6, 4), np.float32)
    for labels in (np.full(5, -100, np.int32), np.zeros(0, np.int32)):
        for entry in ENTRIES:
            for output in call(isa, entry, [x[: len(labels)], w, labels]):
                assert not output.any()


def test_large_logits(isa):
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((30, 8), (50, 8)))
    x[:, 0], w[:, 0] = 100, 100 * np.sign(normal(rng, 50))  # logits of about +-1e4, exact in float32
    labels = rng.integers(0, 50, 30).astype(np.int32)
    for one, other in zip(call(isa, "LinearCrossEntropyGrad", [x, w, labels]), expected(x, w, labels), strict=True):
        close(one, other)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_values_that_are_not_finite_make_a_loss_that_is_not(isa, value):
    rng = np.random.default_rng(3)
    x, w, labels = normal(rng, 30, 8), normal(rng, 50, 8), np.arange(30, dtype=np.int32)
    x[3, 2] = value
    w[:25, 2], w[25:, 2] = 100, -100
    loss, losses, dx, dw = call(isa, "LinearCrossEntropyGrad", [x, w, labels])
    assert not np.isfinite(loss).any()
    assert not np.isfinite(losses[3])
    assert np.isfinite(np.delete(losses, 3)).all()
    assert np.isfinite(np.delete(dx, 3, 0)).all()
    x[3, 2] = 0
    w[7] = value
    losses = call(isa, "LinearCrossEntropyGrad", [x, w, labels])[1]
    assert not np.isfinite(losses[7])


def test_gradients_are_those_of_finite_differences(isa):
    rng = np.random.default_rng(6)
    x, w, labels = normal(rng, 5, 3), normal(rng, 7, 3), np.array([0, 6, -100, 3, 3], np.int32)
    _, _, dx, dw = call(isa, "LinearCrossEntropyGrad", [x, w, labels])
    x, w = x.astype(np.float64), w.astype(np.float64)
    for array, gradient in ((x, dx), (w, dw)):
        differences = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            value = array[at]
            array[at] = value + 1e-4
            above = expected(x, w, labels)[0]
            array[at] = value - 1e-4
            differences[at] = (above - expected(x, w, labels)[0])[0] / 2e-4
            array[at] = value
        close(gradient, differences)


def test_refusals(native):
    x, w, labels = np.ones((6, 4), np.float32), np.ones((5, 4), np.float32), np.array([0, 4, -100, 1, 2, 3], np.int32)
    shapes = [(1,), (6,), (6, 4), (5, 4)]

    def refuses(code, inputs, **changed):
        for entry in ENTRIES:
            with pytest.raises(Refused) as refusal:
                call(native, entry, inputs, **{"out_shapes": shapes, **changed})
            assert refusal.value.code == code

    for label in (5, -1, -101, 2**31 - 1, -(2**31)):
        spoilt = labels.copy()
        spoilt[3] = label
        refuses(TOKEN, [x, w, spoilt])
    refuses(SHAPE, [x, w, labels[:5]])
    refuses(SHAPE, [x, w[:, :3], labels])
    refuses(SHAPE, [x[:, :0], w[:, :0], labels])
    refuses(SHAPE, [x, w[:0], labels])
    refuses(SHAPE, [x, w, labels], out_shapes=[(1,), (5,), (6, 4), (5, 4)])
    refuses(TYPE, [x, w, labels.astype(np.int64)])
    refuses(TYPE, [x, w, labels[:, None]])
    refuses(TYPE, [x.view(np.int32), w, labels])
    refuses(TYPE, [x, w[0], labels])
    refuses(COUNT, [x, w, labels], out_shapes=shapes[:1])
    refuses(ATTRIBUTE, [x, w, labels], attrs="other 1")
    for inputs, code in (([x], COUNT), ([x, labels], TYPE), ([x, x[0]], SHAPE), ([x.view(np.int32), x[0, :1]], TYPE)):
        with pytest.raises(Refused, match=f"code {code}"):
            native("ScaleInPlace", inputs, {})


def test_scaling_in_place(isa):
    x = normal(np.random.default_rng(4), 3, 7001)
    for by in (1.0, 0.3, np.inf):
        found, scale = x.copy(), np.array([by], np.float32)
        assert isa("ScaleInPlace", [found, scale], {}) == scale
        np.testing.assert_array_equal(found, x * scale)


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("weight_grad", [True, False])
def test_gradients_in_a_graph(graph_mode, monkeypatch, kernels, weight_grad):
    import mindspore as ms
    from mindspore import nn

    from mindspeed_ms.ops.linear_cross_entropy import LinearCrossEntropy

    class Loss(nn.Cell):
        def __init__(self, weight):
            super().__init__()
            self.weight = ms.Parameter(ms.Tensor(weight), name="weight")
            self.loss = LinearCrossEntropy(-100, weight_grad)

        def construct(self, x, labels, by):
            loss, losses = self.loss(x, self.weight, labels)
            return (loss * by).sum(), losses

    class Step(nn.Cell):
        def __init__(self, network):
            super().__init__()
            self.network = network
            self.grad = ms.value_and_grad(network, 0, network.trainable_params(), has_aux=True)

        def construct(self, x, labels, by):
            return self.grad(x, labels, by)

    monkeypatch.setenv("MINDSPEED_MS_KERNELS", kernels)
    rng = np.random.default_rng(5)
    x, w, labels = normal(rng, 20, 16), normal(rng, 40, 16) * np.float32(0.3), rng.integers(0, 40, 20).astype(np.int32)
    labels[[0, 7]] = -100
    step = Step(Loss(w))
    step.set_train(True)
    for by in (1.0, 0.125):
        right = expected(x, w, labels, by=by)
        (loss, losses), (dx, (dw,)) = step(ms.Tensor(x), ms.Tensor(labels), ms.Tensor([by], ms.float32))
        close(np.array([float(loss)]), by * right[0])
        close(losses, right[1])
        close(dx, right[2])
        close(dw, right[3] if weight_grad else np.zeros_like(w))
    step.network.set_train(False)
    loss, losses = step.network(ms.Tensor(x), ms.Tensor(labels), ms.Tensor([1.0], ms.float32))
    close(losses, right[1])


@pytest.mark.parametrize("again", ["ce", "other"])
def test_equal_losses_of_one_graph_have_gradients_of_their_own(graph_mode, again):
    """MindSpore merges equal operators; the gradients that this one keeps are scaled in place, once for each use."""
    import mindspore as ms

    from mindspeed_ms.ops.linear_cross_entropy import LinearCrossEntropy

    class Twice(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)), name="w")
            self.ce = LinearCrossEntropy()
            self.other = LinearCrossEntropy() if again == "other" else self.ce

        def construct(self, x, labels, a, b):
            return (a * self.ce(x, self.w, labels)[0] + b * self.other(x, self.w, labels)[0]).reshape(())

    network = Twice()
    network.set_train(True)
    gradient = ms.ops.grad(network, None, network.trainable_params())
    x = ms.Tensor(np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32))
    labels = ms.Tensor(np.arange(6, dtype=np.int32))
    one, five = (
        gradient(x, labels, ms.Tensor(a, ms.float32), ms.Tensor(b, ms.float32))[0].asnumpy()
        for a, b in ((1, 0), (2, 3))
    )
    np.testing.assert_allclose(five, 5 * one, rtol=1e-5, atol=1e-6)
