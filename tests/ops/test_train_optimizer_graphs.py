"""The optimizers as Cells in a graph, both bodies: the same steps as PyTorch, weights changed where they lie."""

import numpy as np
import pytest
import torch
from ops_training import near

ms = pytest.importorskip("mindspore")
from mindspore import nn, ops  # noqa: E402

from mindspeed_ms.ops.optimizers import (  # noqa: E402
    Accumulate,
    AdafactorUpdate,
    AdamWUpdate,
    LionUpdate,
    SGDUpdate,
    SumSquares,
    settings,
)

pytestmark = pytest.mark.usefixtures("graph_mode")
SHAPES, DECAY, STEPS = [(5, 7), (9,), (3, 4)], [True, False, True], 4


@pytest.fixture(params=["native", "reference"])
def body(monkeypatch, request):
    monkeypatch.setenv("MINDSPEED_MS_KERNELS", request.param)
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(9)


def parameters(name, arrays):
    return ms.ParameterTuple([ms.Parameter(ms.Tensor(x), name=f"{name}{i}") for i, x in enumerate(arrays)])


def normal(rng):
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


class Optimizer(nn.Cell):
    """Gradients, settings, control -> done."""

    def __init__(self, update, params, states):
        super().__init__()
        self.update, self.params, self.states = update, params, states

    def construct(self, grads, host, control):
        return self.update(self.params, *self.states, grads, host, control)


def check(rng, update, optimizer, states, vector, tolerance=1e-6):
    start = normal(rng)
    params = parameters("p", start)
    groups = tuple(parameters(f"s{g}_", arrays) for g, arrays in enumerate(states))
    cell = Optimizer(update, params, groups)
    theirs = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in start]
    decayed = [p for p, flag in zip(theirs, DECAY, strict=True) if flag]
    optimizer = optimizer([{"params": decayed}, {"params": [theirs[1]], "weight_decay": 0.0}])
    for step in range(1, STEPS + 1):
        grads = normal(rng)
        before = [x.asnumpy().copy() for x in (*params, *(s for group in groups for s in group))]
        bad = ms.mutable(tuple(ms.Tensor(g * np.nan) for g in grads))
        assert cell(bad, settings(*vector, step), ms.Tensor([1.0, 1.0])).asnumpy() == 0
        for old, x in zip(before, (*params, *(s for group in groups for s in group)), strict=True):
            np.testing.assert_array_equal(old, x.asnumpy())
        given = ms.mutable(tuple(ms.Tensor(g * 4) for g in grads))
        assert cell(given, settings(*vector, step), ms.Tensor([0.25, 0.0])).asnumpy() == 1
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g.astype(np.float64))
        optimizer.step()
    for ours, p in zip(params, theirs, strict=True):
        near(ours.asnumpy(), p.detach().numpy(), tolerance)


def zeros():
    return [np.zeros(shape, np.float32) for shape in SHAPES]


def test_adamw(body, rng):
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    check(rng, AdamWUpdate(DECAY), lambda p: torch.optim.AdamW(p, **options), [zeros(), zeros()],
          (1e-2, 0.9, 0.95, 1e-8, 0.1))  # fmt: skip


def test_sgd(body, rng):
    options = {"lr": 1e-2, "momentum": 0.9, "dampening": 0.0, "nesterov": True, "weight_decay": 0.1}
    check(rng, SGDUpdate(DECAY, nesterov=True), lambda p: torch.optim.SGD(p, **options), [zeros()],
          (1e-2, 0.9, 0.0, 0.1))  # fmt: skip


def test_sgd_without_momentum(body, rng):
    check(rng, SGDUpdate(DECAY, momentum=False), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), [()],
          (0.1, 0.0, 0.0, 0.1))  # fmt: skip


def test_adafactor(body, rng):
    eps = float(np.finfo(np.float32).eps)
    rows = [np.zeros(shape[0], np.float32) for shape in SHAPES]
    columns = [np.zeros(shape[1] if len(shape) == 2 else 1, np.float32) for shape in SHAPES]
    options = {"lr": 0.05, "weight_decay": 0.1, "eps": (eps, 1e-3)}
    check(rng, AdafactorUpdate(DECAY), lambda p: torch.optim.Adafactor(p, **options), [rows, columns],
          (0.05, -0.8, eps, 1e-3, 1.0, 0.1))  # fmt: skip


class LionAsPublished:
    """Chen et al., 2023, algorithm 2, in float64."""

    def __init__(self, groups):
        self.groups = groups
        self.means = {}

    @torch.no_grad()
    def step(self):
        for group in self.groups:
            for p in group["params"]:
                m = self.means.setdefault(id(p), torch.zeros_like(p))
                p.sub_(1e-2 * (torch.sign(0.9 * m + 0.1 * p.grad) + group.get("weight_decay", 0.1) * p))
                m.copy_(0.99 * m + 0.01 * p.grad)


class WithoutStep(nn.Cell):
    """Lion needs no step number: the last setting is left out."""

    def __init__(self):
        super().__init__()
        self.update = LionUpdate(DECAY)

    def construct(self, params, means, grads, host, control):
        return self.update(params, means, grads, host[:4], control)


def test_lion(body, rng):
    check(rng, WithoutStep(), LionAsPublished, [zeros()], (1e-2, 0.9, 0.99, 0.1))


class TwoMicroBatches(nn.Cell):
    """Gradients of two micro-batches -> the sums of squares of their sum, which is made in place."""

    def __init__(self, sums):
        super().__init__()
        self.sums, self.accumulate, self.squares = sums, Accumulate(len(sums)), SumSquares(len(sums))
        self.anew, self.on = ms.Tensor([0.0], ms.float32), ms.Tensor([1.0], ms.float32)

    def construct(self, first, second):
        self.accumulate(self.sums, first, self.anew)
        self.accumulate(self.sums, second, self.on)
        return self.squares(self.sums)


def test_accumulation_and_sums_of_squares_are_kept_in_order(body, rng):
    sums = parameters("sum", [x * np.nan for x in normal(rng)])
    cell = TwoMicroBatches(sums)
    for _ in range(2):
        first, second = normal(rng), normal(rng)
        found = cell(*(ms.mutable(tuple(ms.Tensor(g) for g in grads)) for grads in (first, second)))
        expected = [(a.astype(np.float64) + b) for a, b in zip(first, second, strict=True)]
        near(found.asnumpy(), [np.square(x).sum() for x in expected])
        for x, total in zip(sums, expected, strict=True):
            near(x.asnumpy(), total, 1e-6)


class TrainStep(nn.Cell):
    """Gradient, norm, clip and update in one graph, as a training step has them."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.means, self.second = self.weights.clone("m", "zeros"), self.weights.clone("v", "zeros")
        self.gradients = ms.value_and_grad(network, None, self.weights)
        self.squares = SumSquares(len(self.weights))
        self.update = AdamWUpdate([w.ndim > 1 for w in self.weights])

    def construct(self, x, y, host):
        loss, grads = self.gradients(x, y)
        norm = ops.sqrt(self.squares(grads).sum())
        scale = ops.minimum(ops.ones_like(norm), 0.1 / norm)
        skip = ops.logical_not(ops.isfinite(norm)).astype(ms.float32)
        done = self.update(self.weights, self.means, self.second, grads, host, ops.stack((scale, skip)))
        return loss, norm, done


class Regression(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(6, 4)

    def construct(self, x, y):
        error = self.dense(x) - y
        return (error * error).mean()


def test_a_clipped_step_and_a_poisoned_one(body, rng):
    step = TrainStep(Regression())
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
    theirs = [torch.tensor(w.asnumpy().astype(np.float64), requires_grad=True) for w in step.weights]
    optimizer = torch.optim.AdamW(
        [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:], "weight_decay": 0.0}], lr=1e-2
    )
    for number in range(1, 4):
        loss, norm, done = step(ms.Tensor(x), ms.Tensor(y), settings(1e-2, 0.9, 0.999, 1e-8, 0.1, number))
        expected = ((torch.tensor(x.astype(np.float64)) @ theirs[0].T + theirs[1] - torch.tensor(y)) ** 2).mean()
        optimizer.zero_grad()
        expected.backward()
        total = torch.nn.utils.clip_grad_norm_(theirs, 0.1)
        optimizer.step()
        near(loss.asnumpy(), expected.detach().numpy())
        near(norm.asnumpy(), total.numpy())
        assert done.asnumpy() == 1
    for w, p in zip(step.weights, theirs, strict=True):
        near(w.asnumpy(), p.detach().numpy())
    before = [w.asnumpy().copy() for w in step.weights]
    *_, done = step(ms.Tensor(x * np.nan), ms.Tensor(y), settings(1e-2, 0.9, 0.999, 1e-8, 0.1, 4))
    assert done.asnumpy() == 0
    for old, w in zip(before, step.weights, strict=True):
        np.testing.assert_array_equal(old, w.asnumpy())
