"""The native kernels against PyTorch float64, over drawn shapes and on every instruction set of this processor."""

import numpy as np
import ops_oracle as oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_blocks import Layer
from ops_oracle import close

from mindspeed_ms.ops.native.pack import pack
from mindspeed_ms.ops.native.quant import quantize_rtn

drawn = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
tokens = st.one_of(st.integers(1, 20), st.sampled_from([64, 257]))
widths = st.one_of(st.integers(1, 200), st.sampled_from([576, 1000, 1536]))
heads = st.sampled_from([(1, 1), (3, 3), (9, 3), (8, 1), (12, 1), (14, 2), (5, 5), (16, 2)])
head_dims = st.sampled_from([32, 40, 64, 80, 96, 128, 256, 34])
SCHEMES = [(8, 0, False), (8, 32, False), (8, 64, False), (8, 128, False), *[
    (4, group, asymmetric) for group in (32, 64, 128) for asymmetric in (False, True)
]]  # fmt: skip
schemes = st.sampled_from([None, *SCHEMES])
EMPTY = np.zeros(64, np.uint8)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def quantized(weight, scheme):
    return weight if scheme is None else quantize_rtn(weight, *scheme)


@drawn
@given(tokens, widths, seeds)
def test_rms_norm(isa, t, h, rng):
    x, w = normal(rng, t, h), normal(rng, h)
    close(isa("RmsNorm", [x, w], {"eps": 1e-5}), oracle.rms_norm(x, w, 1e-5))


@drawn
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), seeds)
def test_swiglu_takes_any_rank(isa, shape, rng):
    gate, up = 10 * normal(rng, *shape), normal(rng, *shape)
    close(isa("Swiglu", [gate, up], {}), oracle.swiglu(gate, up))


@drawn
@given(st.lists(st.integers(0, 131071), min_size=1, max_size=40), head_dims, seeds)
def test_rotary_up_to_long_contexts(isa, positions, dim, rng):
    inv_freq = (500000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    arena, layout = pack({"f": inv_freq})
    attrs = {"inv_freq": layout.vectors["f"][0], "head_dim": dim}
    table = isa("RopeTable", [np.array(positions, np.int32), arena], attrs)
    close(table, oracle.rope_table(positions, inv_freq))
    x = normal(rng, len(positions), 3, dim)
    close(isa("Rope", [x, table], {}), oracle.rope(x, table))


@drawn
@given(st.integers(1, 2), st.integers(1, 20), st.integers(0, 150), heads, head_dims, seeds)
def test_attention(isa, batch, t, past, counts, dim, rng):
    q = 3 * normal(rng, batch, t, counts[0], dim)
    k, v = (normal(rng, batch, t + past, counts[1], dim) for _ in range(2))
    close(isa("Attention", [q, k, v], {"scale": dim**-0.5}), oracle.attention(q, k, v, dim**-0.5))


sequences = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 15, 16, 31, 33, 100, 300]), st.sampled_from([0, 1, 1, 2, 7, 16, 40])),
    min_size=1, max_size=5,
).filter(lambda rows: sum(new for _, new in rows) > 0)  # fmt: skip


def paged_inputs(rng, past_new, block, counts, dim, half, fill=np.nan):
    """A step on a cache of two layers whose unused slots hold `fill`."""
    past, new = zip(*past_new, strict=True)
    batch = oracle.ragged(past, new, block, rng)
    keys, values = ([normal(rng, p, counts[1], dim) for p in past] for _ in range(2))
    q, k, v = (normal(rng, sum(new), n, dim) for n in (counts[0], counts[1], counts[1]))
    cache = oracle.empty_cache(2, batch, counts[1], dim, np.float16 if half else np.float32, fill)
    oracle.fill_cache(cache, 1, batch, keys, values)
    return batch, q, k, v, keys, values, cache


@drawn
@given(
    sequences, st.sampled_from([16, 32, 64]), heads, head_dims, st.booleans(), st.sampled_from([np.nan, np.inf]), seeds
)
def test_paged_attention_sees_its_own_sequence_and_no_stale_slot(isa, rows, block, counts, dim, half, fill, rng):
    batch, q, k, v, keys, values, cache = paged_inputs(rng, rows, block, counts, dim, half, fill)
    expected = cache.copy()
    for token, slot in enumerate(batch.slots):
        oracle.store(expected, 1, slot // block, slot % block, k[token], v[token])
    found = isa("PagedAttention", [q, k, v, cache, *batch.index], {"layer": 1, "scale": dim**-0.5})
    close(found, oracle.paged_attention(batch, q, k, v, keys, values, dim**-0.5, half))
    np.testing.assert_array_equal(cache, expected)


@drawn
@given(tokens, widths, st.integers(1, 70), schemes, st.booleans(), st.booleans(), seeds)
def test_linear(isa, t, k, n, scheme, integer, biased, rng):
    x, weight, bias = normal(rng, t, k), quantized(normal(rng, n, k), scheme), normal(rng, n)
    integer = integer and scheme is not None
    arena, layout = pack({"w": weight, "b": bias}, act=int(integer))
    attrs = {"weight": layout.matrices["w"].as_list(), "bias": layout.vectors["b"][0] if biased else -1}
    close(isa("Linear", [x, arena], attrs), oracle.linear(x, weight, bias if biased else None, integer))


@pytest.mark.parametrize("scheme", [None, *SCHEMES], ids=str)
def test_linear_with_rows_of_zeros_and_of_very_different_sizes(isa, scheme):
    rng = np.random.default_rng(3)
    x, weight = normal(rng, 6, 4096), quantized(normal(rng, 48, 4096), scheme)
    x[1] = 0
    x[2] *= 1e6
    x[3] *= 1e-6
    x[4, 100] = 1e4  # an outlier
    arena, layout = pack({"w": weight}, act=int(scheme is not None))
    y = isa("Linear", [x, arena], {"weight": layout.matrices["w"].as_list(), "bias": -1})
    expected = oracle.linear(x, weight, None, scheme is not None)
    for row in range(len(x)):
        close(y[row], expected[row])


@drawn
@given(tokens, widths, st.integers(1, 70), schemes, seeds)
def test_embedding(isa, t, h, vocabulary, scheme, rng):
    weight = quantized(normal(rng, vocabulary, h), scheme)
    arena, layout = pack({"w": weight})
    ids = rng.integers(0, vocabulary, t).astype(np.int32)
    found = isa("Embedding", [ids, arena], {"weight": layout.matrices["w"].as_list()})
    close(found, (weight if scheme is None else oracle.dequantized(weight))[ids], 1e-6)


@drawn
@given(tokens, widths, st.integers(1, 70), schemes, st.booleans(), seeds)
def test_lm_head(isa, t, h, vocabulary, scheme, biased, rng):
    x, norm, bias, weight = normal(rng, t, h), normal(rng, h), normal(rng, vocabulary), normal(rng, vocabulary, h)
    weight = quantized(weight, scheme)
    rows = rng.integers(0, t, rng.integers(1, 9)).astype(np.int32)
    arena, layout = pack({"n": norm, "w": weight, "b": bias}, act=0)
    attrs = {"eps": 1e-5, "norm": layout.vectors["n"][0], "weight": layout.matrices["w"].as_list(),
             "bias": layout.vectors["b"][0] if biased else -1}  # fmt: skip
    expected = oracle.linear(oracle.rms_norm(x[rows], norm, 1e-5), weight, bias if biased else None)
    close(isa("LmHead", [x, rows, arena], attrs), expected)


LAYERS = [(48, 80, 3, 1, 32), (96, 50, 4, 4, 40), (33, 17, 9, 3, 34), (128, 300, 6, 2, 64)]


@drawn
@given(st.sampled_from(LAYERS), sequences, st.booleans(), st.booleans(), st.booleans(), seeds)
def test_attention_block(isa, sizes, rows, biased, qk_norm, half, rng):
    layer = Layer(rng, *sizes, biased=biased, qk_norm=qk_norm)
    batch, x, table, keys, values, cache = layer.step(
        rng, *zip(*rows, strict=True), dtype=np.float16 if half else np.float32
    )
    found = isa("AttentionBlock", [x, table, layer.arena, cache, *batch.index], layer.attention_attrs())
    # float16 keys may round the other way when the float32 key differs in its last bit
    close(found, layer.attention(x, table, batch, keys, values, half), 1e-3 if half else 1e-5)


@drawn
@given(st.sampled_from(LAYERS), tokens, st.booleans(), seeds)
def test_mlp_block(isa, sizes, t, biased, rng):
    layer = Layer(rng, *sizes, biased=biased)
    x = normal(rng, t, layer.hidden)
    close(isa("MlpBlock", [x, layer.arena], layer.mlp_attrs()), layer.mlp(x))


@pytest.mark.parametrize("integer", [True, False], ids=["int8 activations", "float activations"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_quantized_blocks(isa, scheme, integer):
    rng = np.random.default_rng(5)
    layer = Layer(rng, 160, 200, 6, 2, 40, scheme, integer, biased=True)
    batch, x, table, keys, values, cache = layer.step(rng, [0, 20, 5], [9, 1, 30])
    # an activation near the middle of two integers may round the other way in float64: one step of 1/127
    bound = 2e-3 if integer else 1e-5
    found = isa("AttentionBlock", [x, table, layer.arena, cache, *batch.index], layer.attention_attrs())
    expected = layer.attention(x, table, batch, keys, values)
    close(found, expected, bound)
    assert np.median(np.abs(found - expected)) < 1e-4
    found, expected = isa("MlpBlock", [x, layer.arena], layer.mlp_attrs()), layer.mlp(x)
    close(found, expected, bound)
    assert np.median(np.abs(found - expected)) < 1e-4


@pytest.mark.parametrize("half", [False, True], ids=["f32", "f16"])
def test_paged_attention_over_a_long_context(isa, half):
    rng = np.random.default_rng(9)
    batch, q, k, v, keys, values, cache = paged_inputs(rng, [(5000, 1), (4999, 3)], 32, (3, 1), 64, half)
    found = isa("PagedAttention", [4 * q, k, v, cache, *batch.index], {"layer": 1, "scale": 0.125})
    close(found, oracle.paged_attention(batch, 4 * q, k, v, keys, values, 0.125, half))
