"""Optimizers over many tensors in place: 20 steps beside torch.optim in float64; sums of squares; accumulation."""

import numpy as np
import pytest
import torch
from ops_harness import Refused
from ops_training import call, near

COUNT, SHAPE, TYPE, ATTRIBUTE = 1, 2, 3, 11
# One larger than a piece of work, one empty but for Adafactor, vectors beside matrices.
SHAPES = [(130, 257), (7,), (3, 5), (40000,), (1, 1)]
DECAY = [1, 0, 1, 0, 1]
STEPS = 20
SCALE = 0.25


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def normal(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


def gradients(rng):
    """Of very different sizes, given to us multiplied by 1 / SCALE, which is exact."""
    return [normal(rng, shape) * np.float32(10.0 ** rng.integers(-3, 2)) for shape in SHAPES]


def control(scale=1.0, skip=0.0):
    return np.array([scale, skip], np.float32)


def groups_of(optimizer, params, **options):
    decayed = [p for p, flag in zip(params, DECAY, strict=True) if flag]
    plain = [p for p, flag in zip(params, DECAY, strict=True) if not flag]
    return optimizer([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], **options)


def beside_torch(native, rng, optimizer, entry, states, settings, attrs, skipped=()):
    """Runs both for 20 steps on the same gradients; `states` are our state tensors, `settings(step)` our vector.

    Where a step is in `skipped` ours gets a gradient of NaN and the order to skip, and must not move by one bit.
    """
    params = [normal(rng, shape) for shape in SHAPES]
    theirs = [torch.tensor(p.astype(np.float64), requires_grad=True) for p in params]
    optimizer = optimizer(theirs)
    attrs = {"decay": DECAY, **attrs}
    for step in range(1, STEPS + 1):
        if step in skipped:
            bad = [np.full_like(p, np.nan) for p in params]
            before = [x.copy() for x in (*params, *states)]
            (done,) = call(native, entry, [*params, *states, *bad, settings(step), control(1, 1)], attrs, [(1,)])
            assert done == 0
            for a, b in zip(before, (*params, *states), strict=True):
                np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
        grads = gradients(rng)
        native.set_threads(step % 3 + 1)
        given = [g / np.float32(SCALE) for g in grads]
        (done,) = call(native, entry, [*params, *states, *given, settings(step), control(SCALE)], attrs, [(1,)])
        assert done == 1
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g.astype(np.float64))
        optimizer.step()
    native.set_threads(0)
    return params, theirs


def zeros():
    return [np.zeros(shape, np.float32) for shape in SHAPES]


@pytest.mark.parametrize("decoupled", [1, 0])
def test_adamw_and_adam(isa, rng, decoupled):
    cls, options = (torch.optim.AdamW, torch.optim.Adam)[1 - decoupled], {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8}

    def settings(step):
        return np.array([3e-3, 0.9, 0.95, 1e-8, 0.1, step])

    states = [*zeros(), *zeros()]
    params, theirs = beside_torch(
        isa, rng, lambda p: groups_of(cls, p, weight_decay=0.1, **options), "AdamW", states, settings,
        {"decoupled": decoupled}, skipped=(3, 20),
    )  # fmt: skip
    for ours, p in zip(params, theirs, strict=True):
        near(ours, p.detach().numpy(), 1e-6)


@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov"), [(0, 0, False), (0.9, 0, False), (0.9, 0.3, False), (0.8, 0, True)]
)
def test_sgd(isa, rng, momentum, dampening, nesterov):
    def settings(step):
        return np.array([1e-2, momentum, dampening, 0.1, step])

    entry, states = ("SgdMomentum", zeros()) if momentum else ("Sgd", [])
    attrs = {"nesterov": int(nesterov)} if momentum else {}
    options = {"lr": 1e-2, "momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": 0.1}
    params, theirs = beside_torch(
        isa, rng, lambda p: groups_of(torch.optim.SGD, p, **options), entry, states, settings, attrs, skipped=(2,)
    )
    for ours, p in zip(params, theirs, strict=True):
        near(ours, p.detach().numpy(), 1e-6)


def test_adafactor(isa, rng):
    def settings(step):
        return np.array([0.05, -0.8, np.finfo(np.float32).eps, 1e-3, 1.0, 0.1, step])

    states = [
        *(np.zeros(shape[0], np.float32) for shape in SHAPES),
        *(np.zeros(shape[1] if len(shape) == 2 else 1, np.float32) for shape in SHAPES),
    ]
    options = {"lr": 0.05, "weight_decay": 0.1, "eps": (float(np.finfo(np.float32).eps), 1e-3)}
    params, theirs = beside_torch(
        isa, rng, lambda p: groups_of(torch.optim.Adafactor, p, **options), "Adafactor", states, settings, {}, (5,)
    )
    for ours, p in zip(params, theirs, strict=True):
        near(ours, p.detach().numpy(), 1e-6)


class LionAsPublished:
    """Chen et al., 2023, algorithm 2, in float64."""

    def __init__(self, params):
        self.params = params
        self.means = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        for p, m, decays in zip(self.params, self.means, DECAY, strict=True):
            update = torch.sign(0.9 * m + 0.1 * p.grad) + (0.1 if decays else 0) * p
            m.copy_(0.99 * m + 0.01 * p.grad)
            p.sub_(1e-3 * update)


def test_lion(isa, rng):
    def settings(step):
        return np.array([1e-3, 0.9, 0.99, 0.1])

    params, theirs = beside_torch(isa, rng, LionAsPublished, "Lion", zeros(), settings, {}, skipped=(1,))
    for ours, p in zip(params, theirs, strict=True):
        off = np.abs(ours - p.detach().numpy()) > 1e-6 * np.abs(p.detach().numpy()).max()
        # The sign of a mean that cancels to nothing is a matter of rounding.
        assert off.mean() < 1e-5


def test_lion_of_a_zero_or_nan_gradient(isa):
    p, m, g = np.ones(3, np.float32), np.zeros(3, np.float32), np.array([0, np.nan, -2], np.float32)
    call(isa, "Lion", [p, m, g, np.array([0.5, 0.9, 0.99, 0.0]), control()], {"decay": [0]}, [(1,)])
    np.testing.assert_array_equal(p, [1, np.nan, 1.5])


def test_sums_of_squares(isa, rng):
    tensors = [normal(rng, shape) for shape in (*SHAPES, (0,))]
    tensors[0] *= np.float32(1e16)
    tensors[1] *= np.float32(1e-18)
    expected = [np.square(x.astype(np.float64)).sum() for x in tensors]
    found = []
    for threads in (1, 2, 3):
        isa.set_threads(threads)
        found.append(call(isa, "SumSquares", tensors, {"count": len(tensors)}, [(len(tensors),)])[0])
    isa.set_threads(0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-7)
    assert all(np.array_equal(found[0], other) for other in found)
    for poison in (np.nan, np.inf, -np.inf):
        tensors[3][39999] = poison
        sums = call(isa, "SumSquares", tensors, {"count": len(tensors)}, [(len(tensors),)])[0]
        np.testing.assert_array_equal(np.isfinite(sums), [i != 3 for i in range(len(tensors))])


def test_accumulation_begins_anew_and_goes_on(isa, rng):
    sums, first, second = [np.full(shape, np.nan, np.float32) for shape in SHAPES], gradients(rng), gradients(rng)
    call(isa, "Accumulate", [*sums, *first, np.zeros(1, np.float32)], {}, [(1,)])
    call(isa, "Accumulate", [*sums, *second, np.ones(1, np.float32)], {}, [(1,)])
    for found, a, b in zip(sums, first, second, strict=True):
        np.testing.assert_array_equal(found, a + b)


def test_refusals(native):
    p, other, host = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32), np.array([1e-3, 0.9, 0.99, 1e-8, 0.1, 1])
    attrs, many = {"decay": [1], "decoupled": 1}, {"decay": [1, 1], "decoupled": 1}
    row, column = np.ones(4, np.float32), np.ones(8, np.float32)
    factor = np.array([0.01, -0.8, 1e-7, 1e-3, 1, 0, 1])
    vector, cube = {"decay": [1]}, np.ones((2, 2, 2), np.float32)
    for code, entry, inputs, given in [
        (COUNT, "AdamW", [p, p, p, host, control()], attrs), (COUNT, "AdamW", [], attrs),
        (COUNT, "AdamW", [host, control()], attrs), (ATTRIBUTE, "AdamW", [p, p, p, p, host, control()], {}),
        (ATTRIBUTE, "AdamW", [p, p, p, p, host, control()], many),
        (SHAPE, "AdamW", [p, p, p, other, host, control()], attrs),
        (ATTRIBUTE, "AdamW", [p, p, p, p, host * 0, control()], attrs),
        (ATTRIBUTE, "AdamW", [p, p, p, p, host * np.nan, control()], attrs),
        (SHAPE, "AdamW", [p, p, p, p, host[:5].copy(), control()], attrs),
        (TYPE, "AdamW", [p, p, p, p, host.astype(np.float32), control()], attrs),
        (TYPE, "AdamW", [p, p, p, p.astype(np.float16), host, control()], attrs),
        (SHAPE, "AdamW", [p, p, p, p, host, np.ones(3, np.float32)], attrs),
        (COUNT, "Lion", [p, p, host[:4].copy(), control()], vector),
        (SHAPE, "Lion", [p, p, p, host, control()], vector),
        (SHAPE, "Sgd", [p, other, host[:5].copy(), control()], vector),
        (COUNT, "SgdMomentum", [p, p, host[:5].copy(), control()], {"decay": [1], "nesterov": 0}),
        (SHAPE, "Adafactor", [p, column, row, p, factor, control()], vector),
        (SHAPE, "Adafactor", [p, row, column, other, factor, control()], vector),
        (TYPE, "Adafactor", [p, p, column, p, factor, control()], vector),
        (SHAPE, "Adafactor", [cube, row[:2], row[:2], cube, factor, control()], vector),
        (ATTRIBUTE, "SumSquares", [p, p], {"count": 3}), (TYPE, "SumSquares", [host], {"count": 1}),
        (COUNT, "Accumulate", [p, p], {}), (SHAPE, "Accumulate", [p, other, row[:1]], {}),
        (SHAPE, "Accumulate", [p, p, row], {}), (TYPE, "Accumulate", [p, p, p], {}),
    ]:  # fmt: skip
        inputs = [x.copy() for x in inputs]
        with pytest.raises(Refused) as refusal:
            call(native, entry, inputs, given, [(3,)])
        assert refusal.value.code == code, (entry, code, refusal.value.code)
