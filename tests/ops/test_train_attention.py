"""Attention for training: value and gradients against PyTorch float64, documents apart, dropout, bits, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_harness import Refused
from ops_oracle import close, t64
from ops_training import call

COUNT, SHAPE, TYPE, STARTS, ATTRIBUTE = 1, 2, 3, 9, 11
NO_STARTS, NO_SEED = np.zeros(1, np.int32), np.zeros(2, np.int32)
drawn = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
heads = st.sampled_from([(1, 1), (4, 4), (9, 3), (10, 1)])
head_dims = st.sampled_from([32, 64, 128, 256, 34, 40, 80])


def whole(arrays):
    """Parts of arrays as arrays of their own."""
    return [np.ascontiguousarray(x) for x in arrays]


def forward(native, q, k, v, starts=None, seed=None, dropout=0.0):
    """y and the logarithms of the sums."""
    more = [NO_STARTS if starts is None else starts, NO_SEED if seed is None else np.array(seed, np.int32)]
    attrs = {"scale": q.shape[3] ** -0.5, "dropout": dropout}
    outputs = [q.shape, (q.shape[0], q.shape[2], q.shape[1])]
    return call(native, "FlashAttention", whole([q, k, v, *more]), attrs, outputs)


def run(native, q, k, v, dy, starts=None, seed=None, dropout=0.0):
    """y, dq, dk, dv."""
    y, lse = forward(native, q, k, v, starts, seed, dropout)
    more = [NO_STARTS if starts is None else starts, NO_SEED if seed is None else np.array(seed, np.int32)]
    attrs = {"scale": q.shape[3] ** -0.5, "dropout": dropout}
    inputs = whole([dy, q, k, v, y, lse, *more])
    return y, *call(native, "FlashAttentionGrad", inputs, attrs, [q.shape, k.shape, k.shape])


def kept(seed, dropout, b, h, t, s):
    """The draw written out in NumPy: bool [b, h, t, s]."""

    def hashed(x):
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
        x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
        return x ^ x >> np.uint32(16)

    first, second = (np.array([word], np.int64).astype(np.uint32) for word in seed)
    b, h, t, s = (np.arange(n, dtype=np.uint32) for n in (b, h, t, s))
    words = []
    for i in (1, 2):
        word = hashed(hashed(first + np.uint32(0x9E3779B9 * i & 0xFFFFFFFF)) + second)
        word = hashed(hashed(word + b[:, None, None, None]) + h[:, None, None])
        words.append(hashed(word + t[:, None]))
    x = words[0] + s * np.uint32(0x9E3779B9)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = ((x ^ x >> np.uint32(15)) + words[1]) * np.uint32(0x846CA68B)
    return (x ^ x >> np.uint32(16)) >> np.uint32(8) >= round(dropout * 2**24)


def attention(q, k, v, starts=None, seed=None, dropout=0.0):
    """In PyTorch, with every score written out; float64 tensors [B, T, H, D]."""
    (b, t, h, d), s = q.shape, k.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(h // k.shape[1], 1) for x in (k, v))
    seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)[None]
    if starts is not None:
        seen = seen & (torch.arange(s) >= torch.from_numpy(starts)[:, :, None])
    weights = (q @ k.mT * d**-0.5).masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    if dropout:
        weights = weights * torch.from_numpy(kept(seed, dropout, b, h, t, s)) / (1 - dropout)
    return (weights @ v).transpose(1, 2)


def expected(q, k, v, dy, *options):
    tensors = [t64(x).requires_grad_() for x in (q, k, v)]
    y = attention(*tensors, *options)
    return [y.detach().numpy(), *[x.numpy() for x in torch.autograd.grad(y, tensors, t64(dy))]]


def agree(results, references):
    """Each to 1e-5 of its largest value; of 0.1 where that is less: the gradient of a query with one key is nothing."""
    for found, reference in zip(results, references, strict=True):
        if np.abs(reference).max(initial=0) >= 0.1:
            close(found, reference)
        else:
            np.testing.assert_allclose(found, reference, rtol=0, atol=1e-6)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def inputs(rng, b, t, s, counts, dim):
    """q, k, v, dy; queries large enough for some rows to be nearly one key's."""
    return 2 * normal(rng, b, t, counts[0], dim), *[normal(rng, b, s, counts[1], dim) for _ in range(2)], normal(
        rng, b, t, counts[0], dim
    )  # fmt: skip


def documents(rng, b, t, most=5):
    """starts [b, t] of documents that end at drawn places."""
    starts = np.zeros((b, t), np.int32)
    for row in starts:
        for cut in np.sort(rng.integers(0, t, rng.integers(0, most))):
            row[cut:] = cut
    return starts


@drawn
@given(st.integers(1, 2), st.integers(1, 150), st.integers(0, 90), heads, head_dims, seeds)
def test_value_and_gradients(isa, b, t, past, counts, dim, rng):
    arrays = inputs(rng, b, t, t + past, counts, dim)
    agree(run(isa, *arrays), expected(*arrays))


@drawn
@given(st.integers(1, 3), st.integers(1, 300), heads, st.sampled_from([32, 64, 40]), st.sampled_from([0.0, 0.2]), seeds)
def test_documents_are_apart(isa, b, t, counts, dim, dropout, rng):
    arrays, starts = inputs(rng, b, t, t, counts, dim), documents(rng, b, t)
    options = starts, (int(rng.integers(-(2**31), 2**31)), 3), dropout
    agree(run(isa, *arrays, *options), expected(*arrays, *options))


def test_starts_need_not_be_those_of_documents(isa):
    rng = np.random.default_rng(5)
    arrays = inputs(rng, 2, 200, 200, (4, 2), 64)
    starts = rng.integers(0, np.arange(200) + 1, (2, 200)).astype(np.int32)
    agree(run(isa, *arrays, starts), expected(*arrays, starts))


@pytest.mark.parametrize(
    ("b", "t", "counts", "dim"), [(8, 256, (4, 4), 64), (1, 2048, (2, 1), 64), (1, 1024, (1, 1), 128)]
)
def test_sizes_of_training(native, b, t, counts, dim):
    arrays = inputs(np.random.default_rng(b), b, t, t, counts, dim)
    for found, reference in zip(run(native, *arrays), expected(*arrays), strict=True):
        close(found, reference)


def test_scores_far_from_zero_overflow_nothing(isa):
    q, k, v, dy = inputs(np.random.default_rng(3), 1, 100, 100, (2, 1), 64)
    q[:, ::3] *= 1000
    y, lse = forward(isa, q, k, v)
    close(y, expected(q, k, v, dy)[0], 1e-3)  # scores of thousands hold four digits behind the point
    assert np.isfinite(lse).all()
    assert all(np.isfinite(x).all() for x in run(isa, q, k, v, dy))


def test_the_formula_against_finite_differences():
    rng = np.random.default_rng(1)
    shapes = (1, 5, 4, 2), (1, 5, 2, 2), (1, 5, 2, 2)
    q, k, v = (torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes)
    starts = np.array([[0, 0, 2, 2, 2]], np.int32)
    assert torch.autograd.gradcheck(lambda *x: attention(*x, starts, (1, 2), 0.3), (q, k, v))


@pytest.mark.parametrize(("b", "t", "past", "counts"), [(1, 300, 0, (4, 2)), (2, 130, 70, (2, 1)), (3, 64, 0, (4, 4))])
def test_the_number_of_threads_changes_no_bit(isa, b, t, past, counts):
    """Nor does the order of the work, which depends on it where heads are few."""
    rng = np.random.default_rng(t)
    arrays = inputs(rng, b, t, t + past, counts, 64)
    options = (None if past else documents(rng, b, t), (7, 8), 0.1)
    results = []
    for threads in (1, 2, 3):
        isa.set_threads(threads)
        results.append(run(isa, *arrays, *options))
    for other in results[1:]:
        for found, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(found, first)


def test_a_row_of_the_batch_depends_on_no_other(isa):
    rng = np.random.default_rng(8)
    arrays, starts = inputs(rng, 3, 150, 150, (6, 2), 64), documents(rng, 3, 150)
    alone = run(isa, *[x[:1] for x in arrays], starts[:1])
    for x in arrays:
        x[1] *= 3
        x[2] = np.nan
    for found, single in zip(run(isa, *arrays, starts), alone, strict=True):
        np.testing.assert_array_equal(found[:1], single)


def test_a_document_depends_on_no_other_and_on_its_place_in_a_block_alone(isa):
    rng = np.random.default_rng(9)
    arrays = inputs(rng, 1, 300, 300, (4, 2), 64)
    starts = np.zeros((1, 300), np.int32)
    starts[:, 128:250], starts[:, 250:] = 128, 250
    first = run(isa, *arrays, starts)
    alone = run(isa, *[x[:, 128:250] for x in arrays])
    for x in arrays:
        x[:, :128] = normal(rng, *x[:, :128].shape)
        x[:, 250:] += 1
    second = run(isa, *arrays, starts)
    for a, b, c in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(a[:, 128:250], b[:, 128:250])
        np.testing.assert_array_equal(a[:, 128:250], c)


def test_dropout_takes_its_share_from_every_row_head_query_and_key(isa):
    """With values of one in one dimension a row's sum is the share kept; equal scores weigh every key alike."""
    t, dropout = 512, 0.3
    q, k, v = (
        np.zeros((2, t, 3, 32), np.float32),
        np.zeros((2, t, 3, 32), np.float32),
        np.ones((2, t, 3, 32), np.float32),
    )
    shares = forward(isa, q, k, v, seed=(11, 12), dropout=dropout)[0][..., 0] * (1 - dropout)
    mask = kept((11, 12), dropout, 2, 3, t, t) & np.tri(t, dtype=bool)
    np.testing.assert_allclose(shares, (mask.sum(-1) / np.arange(1, t + 1)).transpose(0, 2, 1), atol=1e-5)
    below = np.tri(t, dtype=bool)
    for axis in (0, 1):  # rows, heads: about 131,000 draws or more each
        share = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).sum(1) / (
            below.sum() * mask.size / t**2 / mask.shape[axis]
        )
        assert np.abs(share - (1 - dropout)).max() < 0.005
    draws = kept((11, 12), dropout, 2, 3, t, t)
    for other in (
        draws[1, 0],
        draws[0, 1],
        kept((11, 13), dropout, 1, 1, t, t)[0, 0],
        np.roll(draws[0, 0], 1, 0),
        draws[0, 0].T,
    ):
        assert abs(np.corrcoef(draws[0, 0].ravel(), other.ravel())[0, 1]) < 0.01
    assert np.abs(draws.mean((0, 1, 2)) - 0.7).max() < 0.04 and np.abs(draws.mean((0, 1, 3)) - 0.7).max() < 0.04


def test_refusals(native):
    rng = np.random.default_rng(0)
    q, k, v, dy = inputs(rng, 2, 5, 5, (4, 2), 32)
    starts = documents(rng, 2, 5)
    y, lse = forward(native, q, k, v)
    good = {"dy": dy, "q": q, "k": k, "v": v, "y": y, "lse": lse, "starts": starts, "seed": NO_SEED}

    def refuses(code, attrs=None, count=None, **changed):
        named = {**good, **changed}
        attrs = {"scale": 1.0, "dropout": 0.5} if attrs is None else attrs
        both = [named[name] for name in ("q", "k", "v", "starts", "seed")], list(named.values())
        outputs = [q.shape, lse.shape], [q.shape, k.shape, k.shape]
        for entry, arrays, shapes in zip(("FlashAttention", "FlashAttentionGrad"), both, outputs, strict=True):
            if entry == "FlashAttention" and not changed.keys().isdisjoint(("dy", "y", "lse")):
                continue
            with pytest.raises(Refused) as refusal:
                call(native, entry, whole(arrays[:count]), attrs, shapes)
            assert refusal.value.code == code, entry

    refuses(COUNT, count=4)
    refuses(SHAPE, k=k[:, :4], v=k[:, :4])
    refuses(SHAPE, v=v[:, :4])
    refuses(SHAPE, k=k[:1], v=k[:1])
    refuses(SHAPE, k=k[..., :16], v=k[..., :16])
    refuses(SHAPE, q=q[:, :, :3])
    refuses(
        SHAPE,
        q=np.zeros((2, 5, 4, 258), np.float32),
        k=np.zeros((2, 5, 2, 258), np.float32),
        v=np.zeros((2, 5, 2, 258), np.float32),
    )
    refuses(SHAPE, k=np.zeros((2, 6, 2, 32), np.float32), v=np.zeros((2, 6, 2, 32), np.float32))  # starts, but T < S
    refuses(SHAPE, starts=starts[:, :4])
    refuses(SHAPE, starts=starts[0])
    refuses(SHAPE, seed=np.zeros(3, np.int32))
    refuses(SHAPE, dy=dy[:, :4])
    refuses(SHAPE, y=y[:1])
    refuses(SHAPE, lse=lse[..., :4])
    refuses(TYPE, q=q[0])
    refuses(TYPE, k=k.astype(np.float16))
    refuses(TYPE, starts=starts.astype(np.int64))
    refuses(TYPE, seed=np.zeros((1, 2), np.int32))
    refuses(TYPE, dy=dy[0])
    refuses(TYPE, lse=lse[0])
    for value in (-1, 5, 2**31 - 1, -(2**31)):
        refuses(STARTS, starts=np.array([[0] * 5, [0, 0, 0, 0, value]], np.int32))
    refuses(STARTS, starts=np.array([[0] * 5, [0, 2, 2, 2, 2]], np.int32))
    for dropout in (1.0, -0.1, 2.0, float("nan")):
        refuses(ATTRIBUTE, {"scale": 1.0, "dropout": dropout})
    refuses(ATTRIBUTE, {"scale": float("inf"), "dropout": 0.0})
    refuses(ATTRIBUTE, {"scale": 1.0})


def test_nothing_is_done_with_no_rows(native):
    q, k = np.zeros((2, 0, 4, 32), np.float32), np.ones((2, 3, 2, 32), np.float32)
    y, dq, dk, dv = run(native, q, k, k, q)
    assert y.shape == dq.shape == q.shape
    assert not dk.any() and not dv.any()
    assert run(native, q[:0], k[:0], k[:0], q[:0])[2].shape == (0, 3, 2, 32)


@pytest.fixture
def trained(graph_mode, monkeypatch):
    """The value and gradients of a Cell with the named body, inside a compiled step."""
    ms = pytest.importorskip("mindspore")
    from mindspore import nn

    from mindspeed_ms.ops.attention import Attention

    class Weighted(nn.Cell):
        def __init__(self, dropout, joined):
            super().__init__()
            self.attend, self.joined = Attention(32**-0.5, dropout), joined

        def construct(self, q, k, v, dy, starts, seed):
            y = self.attend(q, k, v, starts, seed) if self.joined else self.attend(q, k, v)
            return (y * dy).sum(), y

    def build(body, arrays, starts, seed, dropout=0.0, training=True):
        monkeypatch.setenv("MINDSPEED_MS_KERNELS", body)
        cell = Weighted(dropout, starts is not None).set_train(training)
        more = [NO_STARTS if starts is None else starts, np.array(seed, np.int32)]
        step = ms.value_and_grad(cell, (0, 1, 2), has_aux=True)
        (_, y), grads = step(*[ms.Tensor(x) for x in (*arrays, *more)])
        return [x.asnumpy() for x in (y, *grads)]

    return build


@pytest.mark.parametrize("body", ["native", "reference"])
def test_gradients_in_a_graph(trained, body):
    rng = np.random.default_rng(6)
    arrays, starts = inputs(rng, 2, 70, 70, (4, 2), 32), documents(rng, 2, 70)
    cases = [(None, (0, 0), 0.0), (starts, (-5, 2**31 - 1), 0.25)]
    for options in cases:
        for found, reference in zip(trained(body, arrays, *options), expected(*arrays, *options), strict=True):
            close(found, reference)


def test_dropout_is_for_training_alone_and_needs_a_seed(trained):
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.ops.attention import Attention

    rng = np.random.default_rng(6)
    arrays, starts = inputs(rng, 1, 9, 9, (2, 2), 32), np.zeros((1, 9), np.int32)
    close(trained("native", arrays, starts, (1, 2), 0.5, training=False)[0], expected(*arrays, starts)[0])
    with pytest.raises(ValueError, match="needs a seed"):
        trained("native", arrays, None, (1, 2), 0.5)
    with pytest.raises(ConfigError, match=r"dropout=1\.0"):
        Attention(1.0, 1.0)
