"""Norms, rotation, activations, embedding and dropout of training, forward and backward, against PyTorch float64."""

import numpy as np
import pytest
import torch
from ops_harness import Refused
from ops_training import call, near, on_any_threads, torch_gradients

F = torch.nn.functional
COUNT, SHAPE, TYPE, TOKEN, ATTRIBUTE = 1, 2, 3, 5, 11
SIZES = [(2048, 256), (1000, 37), (3, 1536), (1, 1), (17, 50)]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def rms(x, w, eps=1e-5):
    return F.rms_norm(x, x.shape[-1:], w, eps)


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_rms_norm_gradients(isa, rng, rows, width):
    x, w, dy = 3 * normal(rng, rows, width), normal(rng, width), normal(rng, rows, width)
    _, (dx, dw) = torch_gradients(rms, x, w, dy=dy)
    found = on_any_threads(isa, "RmsNormGrad", [dy, x, w], {"eps": 1e-5}, [x.shape, w.shape])
    # Of one element the norm is about its sign: the gradient is what rounding leaves.
    near(found[0], dx, 1e-5 if width > 1 else 1)
    near(found[1], dw)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(2048, 256), (1000, 37), (3, 1536), (17, 50)])
def test_layer_norm(isa, rng, rows, width, biased):
    x, w, b, dy = 3 * normal(rng, rows, width) + 5, normal(rng, width), normal(rng, width), normal(rng, rows, width)
    inputs = [x, w, b] if biased else [x, w]
    y, gradients = torch_gradients(lambda x, w, *b: F.layer_norm(x, x.shape[-1:], w, *b, eps=1e-5), *inputs, dy=dy)
    attrs = {"eps": 1e-5, "bias": int(biased)}
    near(on_any_threads(isa, "LayerNorm", inputs, attrs, [x.shape])[0], y)
    found = on_any_threads(isa, "LayerNormGrad", [dy, x, w], attrs, [z.shape for z in inputs])
    for one, expected in zip(found, gradients, strict=True):
        near(one, expected)


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(2048, 4, 64), (5, 3, 34), (1, 1, 2)])
def test_rope_gradient(isa, rng, tokens, heads, dim):
    dy = normal(rng, tokens, heads, dim)
    angles = rng.uniform(-9, 9, (tokens, dim // 2))
    table = np.concatenate((np.cos(angles), np.sin(angles)), -1).astype(np.float32)
    zero = np.zeros_like(dy)
    _, (dx,) = torch_gradients(lambda x: rotated(x, torch.tensor(table, dtype=torch.float64)), zero, dy=dy)
    near(on_any_threads(isa, "RopeGrad", [dy, table], {}, [dy.shape])[0], dx)


def rotated(x, table):
    half = x.shape[-1] // 2
    cos, sin, low, high = table[:, None, :half], table[:, None, half:], x[..., :half], x[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


@pytest.mark.parametrize("shape", [(2048, 256), (7, 31), (1,), (3, 2, 5)])
def test_swiglu_gradients(isa, rng, shape):
    gate, up, dy = 6 * normal(rng, *shape), normal(rng, *shape), normal(rng, *shape)
    _, expected = torch_gradients(lambda g, u: F.silu(g) * u, gate, up, dy=dy)
    found = on_any_threads(isa, "SwigluGrad", [dy, gate, up], {}, [shape, shape])
    near(found[0], expected[0])
    near(found[1], expected[1])


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(2048, 256), (7, 31), (1,)])
def test_gelu(isa, rng, shape, form):
    x, dy = 3 * normal(rng, *shape), normal(rng, *shape)
    y, (dx,) = torch_gradients(lambda x: F.gelu(x, approximate=form), x, dy=dy)
    attrs = {"tanh": int(form == "tanh")}
    near(on_any_threads(isa, "Gelu", [x], attrs, [shape])[0], y)
    near(on_any_threads(isa, "GeluGrad", [dy, x], attrs, [shape])[0], dx)


def test_activations_far_out_and_with_nan(isa):
    x = np.array([-1e30, -300, -88, -20, 0, 20, 88, 300, 1e30, np.nan], np.float32)
    one = np.ones_like(x)
    for attrs in ({"tanh": 0}, {"tanh": 1}):
        y, dx = call(isa, "Gelu", [x], attrs, [x.shape])[0], call(isa, "GeluGrad", [one, x], attrs, [x.shape])[0]
        np.testing.assert_allclose(y, np.maximum(x, 0), atol=1e-5)
        np.testing.assert_allclose(dx, np.where(np.isnan(x), np.nan, np.where(x == 0, 0.5, x > 0)), atol=1e-5)
    dgate, dup = call(isa, "SwigluGrad", [one, x, one], {}, [x.shape, x.shape])
    np.testing.assert_allclose(dup, np.maximum(x, 0), atol=1e-5, rtol=1e-6)
    np.testing.assert_allclose(dgate, np.where(np.isnan(x), np.nan, np.where(x == 0, 0.5, x > 0)), atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "width"), [(2048, 4096, 256), (2048, 1, 37), (2048, 3, 20), (1, 9, 1)]
)
def test_token_embedding(isa, rng, tokens, vocabulary, width):
    ids, w = rng.integers(0, vocabulary, (1, tokens)).astype(np.int32), normal(rng, vocabulary, width)
    dy = rng.uniform(0, 1, (1, tokens, width)).astype(np.float32)
    y, (dw,) = torch_gradients(lambda w: F.embedding(torch.tensor(ids.astype(np.int64)), w), w, dy=dy)
    np.testing.assert_array_equal(
        on_any_threads(isa, "TokenEmbedding", [ids, w], {}, [dy.shape])[0], y.astype(np.float32)
    )
    near(on_any_threads(isa, "TokenEmbeddingGrad", [dy, ids], {"vocabulary": vocabulary}, [w.shape])[0], dw, 1e-6)


def draws(seed, count):
    """The 24 bits of each of the first elements, as the kernel's comment says, in plain integers."""
    mask = 2**64 - 1
    key = (seed[1] & 0xFFFFFFFF) << 32 | (seed[0] & 0xFFFFFFFF)
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & mask
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & mask
    key ^= key >> 31
    h = np.arange(count, dtype=np.uint32)
    for half in (key & 0xFFFFFFFF, key >> 32):
        h = h + np.uint32(half)
        h = (h ^ h >> np.uint32(16)) * np.uint32(0x21F0AAAD)
        h = (h ^ h >> np.uint32(15)) * np.uint32(0xD35A2D97)
        h = h ^ h >> np.uint32(15)
    return h >> np.uint32(8)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_follows_its_hash(isa, rng, p):
    x, seed = normal(rng, 301, 701), np.array([12345, -7], np.int32)
    (y,) = on_any_threads(isa, "Dropout", [x, seed], {"p": p}, [x.shape])
    kept = draws([int(s) for s in seed], x.size).reshape(x.shape) >= round(p * 2**24)
    near(y, np.where(kept, x / (1 - p) if p < 1 else 0, 0), 1e-7)
    assert abs((y == 0).mean() - p) < 5e-3


def test_dropout_of_neighbouring_seeds_and_elements_is_unrelated(native):
    x = np.ones((1 << 16), np.float32)
    masks = [call(native, "Dropout", [x, np.array(s, np.int32)], {"p": 0.5}, [x.shape])[0] > 0
             for s in ([0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [-1, -1])]  # fmt: skip
    for i, one in enumerate(masks):
        assert abs(one.mean() - 0.5) < 0.01
        for step in (1, 2, 16, 256, 4096):
            assert abs((one[step:] == one[:-step]).mean() - 0.5) < 0.01
        for other in masks[:i]:
            assert abs((one == other).mean() - 0.5) < 0.01


def test_empty_inputs(isa):
    none, w, ids = np.zeros((0, 8), np.float32), np.ones(8, np.float32), np.zeros((0,), np.int32)
    dx, dw = call(isa, "RmsNormGrad", [none, none, w], {"eps": 1e-5}, [(0, 8), (8,)])
    assert not dw.any()
    for bias in (0, 1):
        outputs = call(
            isa, "LayerNormGrad", [none, none, w], {"eps": 1e-5, "bias": bias}, [(0, 8), *[(8,)] * (1 + bias)]
        )
        assert not any(x.any() for x in outputs[1:])
    call(isa, "SwigluGrad", [none, none, none], {}, [(0, 8), (0, 8)])
    call(isa, "TokenEmbedding", [ids, np.ones((3, 8), np.float32)], {}, [(0, 8)])
    assert not call(isa, "TokenEmbeddingGrad", [none, ids], {"vocabulary": 3}, [(3, 8)])[0].any()


def test_refusals(native):
    x, w, ids = np.ones((4, 8), np.float32), np.ones(8, np.float32), np.zeros(4, np.int32)
    table, heads, seed = np.ones((4, 8), np.float32), np.ones((4, 2, 8), np.float32), np.zeros(2, np.int32)
    other, eps, vocabulary = np.ones((4, 9), np.float32), {"eps": 1e-5}, {"vocabulary": 5}
    biased = {"eps": 1e-5, "bias": 1}
    for code, entry, inputs, attrs, outputs in [
        (COUNT, "RmsNormGrad", [x, x], eps, 2), (ATTRIBUTE, "RmsNormGrad", [x, x, w], {}, 2),
        (SHAPE, "RmsNormGrad", [x, other, w], eps, 2), (SHAPE, "RmsNormGrad", [x, x, w[:7]], eps, 2),
        (TYPE, "RmsNormGrad", [x, x, x], eps, 2), (TYPE, "RmsNormGrad", [x, x.astype(np.int32), w], eps, 2),
        (COUNT, "LayerNorm", [x, w], biased, 1), (SHAPE, "LayerNorm", [x, w, w[:3]], biased, 1),
        (ATTRIBUTE, "LayerNorm", [x, w, w], eps, 1), (TYPE, "LayerNorm", [x, x, w], biased, 1),
        (COUNT, "LayerNormGrad", [x, x, w], biased, 2), (SHAPE, "LayerNormGrad", [x, other, w], biased, 3),
        (SHAPE, "RopeGrad", [heads, other], {}, 1), (TYPE, "RopeGrad", [x, table], {}, 1),
        (SHAPE, "RopeGrad", [np.ones((4, 2, 7), np.float32), np.ones((4, 7), np.float32)], {}, 1),
        (COUNT, "SwigluGrad", [x, x], {}, 2), (SHAPE, "SwigluGrad", [x, x, other], {}, 2),
        (TYPE, "SwigluGrad", [x, x, x.astype(np.float16)], {}, 2), (ATTRIBUTE, "Gelu", [x], {}, 1),
        (SHAPE, "GeluGrad", [x, other], {"tanh": 1}, 1), (TYPE, "Gelu", [ids], {"tanh": 0}, 1),
        (TOKEN, "TokenEmbedding", [ids + 4, x], {}, 1), (TOKEN, "TokenEmbedding", [ids - 1, x], {}, 1),
        (TYPE, "TokenEmbedding", [ids.astype(np.int64), x], {}, 1), (TYPE, "TokenEmbedding", [ids, w], {}, 1),
        (TOKEN, "TokenEmbeddingGrad", [x, ids + 5], vocabulary, 1),
        (SHAPE, "TokenEmbeddingGrad", [x, ids[:3]], vocabulary, 1),
        (ATTRIBUTE, "TokenEmbeddingGrad", [x, ids], {"vocabulary": 0}, 1),
        (SHAPE, "TokenEmbeddingGrad", [w, ids], vocabulary, 1),
        (ATTRIBUTE, "Dropout", [x, seed], {"p": 1.5}, 1), (ATTRIBUTE, "Dropout", [x, seed], {"p": float("nan")}, 1),
        (SHAPE, "Dropout", [x, np.zeros(3, np.int32)], {"p": 0.5}, 1), (TYPE, "Dropout", [x, w], {"p": 0.5}, 1),
    ]:  # fmt: skip
        with pytest.raises(Refused) as refusal:
            call(native, entry, inputs, attrs, [(4, 9)] * outputs)
        assert refusal.value.code == code, (entry, code, refusal.value.code)


def everything(ids, table, kept, w):
    """The operators of ops_training_cells.Chain as PyTorch has them; the network's weights by name."""
    x = rms(F.embedding(ids, w["embed.weight"]), w["rms.weight"])
    b, t, h = x.shape
    x = rotated(x.reshape(b * t, 2, h // 2), table).reshape(b, t, h)
    x = F.layer_norm(F.silu(x) * (x * x), (h,), w["norm.weight"], w["norm.bias"], eps=1e-5)
    x = F.layer_norm(F.gelu(x) + F.gelu(2 * x, approximate="tanh"), (h,), w["plain.weight"], eps=1e-5)
    return x * kept / 0.75


def test_the_reference_gradients_are_differences(rng):
    """PyTorch's gradients, against which all is checked, are those of its functions."""
    ids = torch.tensor([[1, 4, 1], [0, 2, 3]])
    shapes = {"embed.weight": (5, 8), "rms.weight": (8,), "norm.weight": (8,), "norm.bias": (8,), "plain.weight": (8,)}
    weights = [torch.tensor(rng.standard_normal(shape), requires_grad=True) for shape in shapes.values()]
    angles = rng.uniform(-9, 9, (6, 2))
    table = torch.tensor(np.concatenate((np.cos(angles), np.sin(angles)), -1))
    kept = torch.tensor(rng.integers(0, 2, (2, 3, 8)).astype(np.float64))

    def chain(*values):
        return everything(ids, table, kept, dict(zip(shapes, values, strict=True)))

    assert torch.autograd.gradcheck(chain, weights, atol=1e-6)


@pytest.mark.parametrize("body", ["native", "reference"])
def test_gradients_in_a_graph(monkeypatch, graph_mode, rng, body):
    ms = pytest.importorskip("mindspore")
    from ops_training_cells import Chain, Step

    monkeypatch.setenv("MINDSPEED_MS_KERNELS", body)
    net = Chain(50, 24)
    for parameter in net.get_parameters():
        parameter.set_data(ms.Tensor(normal(rng, *parameter.shape)))
    ids, seed, dy = rng.integers(0, 50, (3, 7)).astype(np.int32), np.array([5, -9], np.int32), normal(rng, 3, 7, 24)
    angles = rng.uniform(-9, 9, (21, 6))
    table = np.concatenate((np.cos(angles), np.sin(angles)), -1).astype(np.float32)
    loss, grads = Step(net)(*map(ms.Tensor, (ids, table, seed, dy)))

    weights = {
        name: torch.tensor(w.asnumpy().astype(np.float64), requires_grad=True) for name, w in net.parameters_and_names()
    }
    kept = torch.tensor((draws([5, -9], dy.size) >= 2**22).reshape(dy.shape).astype(np.float64))
    y = everything(torch.tensor(ids.astype(np.int64)), torch.tensor(table.astype(np.float64)), kept, weights)
    expected = (y * torch.tensor(dy.astype(np.float64))).sum()
    expected.backward()
    near(loss.asnumpy(), expected.detach().numpy())
    for found, w in zip(grads, weights.values(), strict=True):
        near(found.asnumpy(), w.grad.numpy())
