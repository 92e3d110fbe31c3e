"""Dense and its gradients, native and reference, against PyTorch float64."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_harness import Refused
from ops_oracle import close

COUNT, SHAPE, TYPE = 1, 2, 3
drawn = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
sizes = st.one_of(st.integers(1, 70), st.sampled_from([112, 127, 256, 320, 321, 700]))
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def on_threads(native, entry, inputs):
    """The result, the same bits on one, two and three threads."""
    found = []
    for threads in (1, 2, 3):
        native.set_threads(threads)
        found.append(native(entry, inputs, {}))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    return found[0]


def expected(x, w, b, dy):
    """y, dx, dw, db in float64."""
    x, w, b = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w, b))
    y = torch.nn.functional.linear(x, w, b)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return [t.detach().numpy() for t in (y, x.grad, w.grad, b.grad)]


def check(native, x, w, b, dy):
    y, dx, dw, db = expected(x, w, b, dy)
    close(on_threads(native, "DenseBias", [x, w, b]), y)
    close(on_threads(native, "Dense", [x, w]), y - b)
    close(on_threads(native, "DenseGradInput", [dy, w]), dx)
    close(on_threads(native, "DenseGradWeight", [dy, x]), dw)
    close(on_threads(native, "DenseGradBias", [dy]), db)


@drawn
@given(sizes, sizes, sizes, seeds)
def test_drawn_shapes(isa, rows, outputs, inputs, rng):
    check(
        isa, normal(rng, rows, inputs), normal(rng, outputs, inputs), normal(rng, outputs), normal(rng, rows, outputs)
    )


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(2048, 256, 256), (1024, 192, 576), (130, 2600, 40)])
def test_sizes_of_models(isa, rows, outputs, inputs):
    rng = np.random.default_rng(1)
    check(
        isa, normal(rng, rows, inputs), normal(rng, outputs, inputs), normal(rng, outputs), normal(rng, rows, outputs)
    )


def test_any_rank_and_rows_that_do_not_depend_on_others(isa):
    rng = np.random.default_rng(2)
    x, w = normal(rng, 3, 50, 400), normal(rng, 60, 400)
    y = isa("Dense", [x, w], {})
    assert y.shape == (3, 50, 60)
    for t in (0, 17, 49):
        np.testing.assert_array_equal(isa("Dense", [x[1, t], w], {}), y[1, t])


def test_gradients_are_those_of_finite_differences(isa):
    rng = np.random.default_rng(5)
    x, w, b, dy = normal(rng, 4, 3), normal(rng, 5, 3), normal(rng, 5), normal(rng, 4, 5)
    found = [
        isa("DenseGradInput", [dy, w], {}),
        isa("DenseGradWeight", [dy, x], {}),
        isa("DenseGradBias", [dy], {}),
    ]
    arrays = [a.astype(np.float64) for a in (x, w, b)]
    for array, gradient in zip(arrays, found, strict=True):
        differences = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            value, sums = array[at], []
            for step in (1e-3, -1e-3):
                array[at] = value + step
                sums.append(((arrays[0] @ arrays[1].T + arrays[2]) * dy).sum())
            array[at] = value
            differences[at] = (sums[0] - sums[1]) / 2e-3
        close(gradient, differences)


def test_nothing_to_do(isa):
    w = np.ones((5, 4), np.float32)
    assert isa("Dense", [np.zeros((0, 4), np.float32), w], {}).shape == (0, 5)
    assert isa("DenseGradInput", [np.zeros((2, 0, 5), np.float32), w], {}).shape == (2, 0, 4)
    empty = np.zeros((0, 5), np.float32)
    assert not isa("DenseGradWeight", [empty, np.zeros((0, 4), np.float32)], {}).any()
    assert not isa("DenseGradBias", [empty], {}).any()


def test_infinity_and_nan_stay_in_their_row(isa):
    rng = np.random.default_rng(3)
    x, w = normal(rng, 30, 40), normal(rng, 50, 40)
    x[3, 5], x[20, 0] = np.nan, np.inf
    y = isa("Dense", [x, w], {})
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[20]).any()
    assert np.isfinite(np.delete(y, (3, 20), 0)).all()


def test_refusals(native):
    x, w, b, dy = (np.ones(shape, np.float32) for shape in ((6, 4), (5, 4), (5,), (6, 5)))
    good = {
        "Dense": [x, w],
        "DenseBias": [x, w, b],
        "DenseGradInput": [dy, w],
        "DenseGradWeight": [dy, x],
        "DenseGradBias": [dy],
    }
    bad = [
        ("Dense", [x, w[:, :3]], SHAPE), ("Dense", [x, w[0]], TYPE), ("Dense", [x.astype(np.int32), w], TYPE),
        ("DenseBias", [x, w, b[:4]], SHAPE), ("DenseBias", [x, w, w], TYPE),
        ("DenseBias", [x, w, b.view(np.int32)], TYPE),
        ("DenseGradInput", [dy, w[:4]], SHAPE), ("DenseGradInput", [dy, w.view(np.int32)], TYPE),
        ("DenseGradWeight", [dy, x[:5]], SHAPE), ("DenseGradWeight", [dy[:, :, None], x], SHAPE),
        ("DenseGradWeight", [dy.astype(np.float16), x], TYPE), ("DenseGradBias", [dy.view(np.int32)], TYPE),
    ]  # fmt: skip
    for entry, inputs in good.items():
        native(entry, inputs, {})
        with pytest.raises(Refused, match=f"code {COUNT}"):
            native(entry, inputs, {}, count=len(inputs))
    for entry, inputs, code in bad:
        with pytest.raises(Refused) as refusal:
            native(entry, inputs, {})
        assert refusal.value.code == code, (entry, [i.shape for i in inputs], refusal.value.code)
    for entry in ("Dense", "DenseGradInput", "DenseGradWeight", "DenseGradBias"):
        with pytest.raises(Refused):
            native(entry, good[entry], {}, out_shape=(6, 2))


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_gradients_in_a_graph(graph_mode, monkeypatch, kernels, has_bias):
    import mindspore as ms
    from mindspore import nn

    from mindspeed_ms.ops.dense import Dense

    class Loss(nn.Cell):
        def __init__(self, dense):
            super().__init__()
            self.dense = dense

        def construct(self, x, dy):
            return (self.dense(x) * dy).sum()

    class Step(nn.Cell):
        def __init__(self, network):
            super().__init__()
            self.grad = ms.value_and_grad(network, 0, network.trainable_params())

        def construct(self, x, dy):
            return self.grad(x, dy)

    monkeypatch.setenv("MINDSPEED_MS_KERNELS", kernels)
    rng = np.random.default_rng(4)
    x, w, b, dy = normal(rng, 2, 9, 33), normal(rng, 50, 33), normal(rng, 50), normal(rng, 2, 9, 50)
    dense = Dense(33, 50, has_bias, weight_init="normal")
    assert [p.name for p in dense.trainable_params()] == ["weight", "bias"][: 1 + has_bias]
    dense.weight.set_data(ms.Tensor(w))
    if has_bias:
        dense.bias.set_data(ms.Tensor(b))
    y, dx, dw, db = expected(x, w, b if has_bias else np.zeros(50), dy)
    value, (found_x, found_w) = Step(Loss(dense))(ms.Tensor(x), ms.Tensor(dy))
    close(np.array(value.asnumpy()), np.sum(y * dy))
    close(found_x.asnumpy(), dx)
    for found, right in zip(found_w, [dw, db], strict=False):
        close(found.asnumpy(), right)
