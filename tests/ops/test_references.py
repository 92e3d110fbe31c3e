"""The reference bodies, from MindSpore built-ins, in graph mode with dynamic shapes, against PyTorch float64."""

import numpy as np
import ops_oracle as oracle
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ops_oracle import close

ms = pytest.importorskip("mindspore")
from mindspeed_ms.ops.native.pack import pack  # noqa: E402
from mindspeed_ms.ops.native.quant import quantize_rtn  # noqa: E402

pytestmark = pytest.mark.usefixtures("graph_mode")
F32, F16, I32, U8 = ms.float32, ms.float16, ms.int32, ms.uint8
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def drawn(examples):
    """Few, and none made smaller, for each shape that is not dynamic is a graph to compile."""
    unchecked, phases = [HealthCheck.function_scoped_fixture], [Phase.explicit, Phase.generate]
    return settings(
        max_examples=examples, phases=phases, deadline=None, derandomize=True, suppress_health_check=unchecked
    )


def dynamic(cell, *inputs):
    """The cell compiled once for any size of the axes given as None: inputs are (dtype, *shape)."""
    cell.set_inputs(*[ms.Tensor(shape=list(shape), dtype=dtype) for dtype, *shape in inputs])
    return lambda *arrays: cell(*[ms.Tensor.from_numpy(np.ascontiguousarray(x)) for x in arrays]).asnumpy()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_rms_norm(rng):
    from mindspeed_ms.ops.rms_norm import RMSNormReference

    run = dynamic(RMSNormReference(1e-5), (F32, None, None), (F32, None))
    for tokens, hidden in ((1, 576), (7, 33)):
        x, w = normal(rng, tokens, hidden), normal(rng, hidden)
        close(run(x, w), oracle.rms_norm(x, w, 1e-5))


def test_swiglu(rng):
    from mindspeed_ms.ops.swiglu import SwiGLUReference

    run = dynamic(SwiGLUReference(), (F32, None, None), (F32, None, None))
    for tokens in (1, 5):
        gate, up = 6 * normal(rng, tokens, 50), normal(rng, tokens, 50)
        close(run(gate, up), oracle.swiglu(gate, up))


def test_rotary_at_far_positions(rng):
    from mindspeed_ms.ops.rotary import RotaryReference, RotaryTableReference

    inv_freq = (10000.0 ** (-np.arange(0, 40, 2) / 40)).astype(np.float32)
    table_of = dynamic(RotaryTableReference(inv_freq), (I32, None), (U8, None))
    rotate = dynamic(RotaryReference(), (F32, None, 3, 40), (F32, None, 40))
    for positions in ([0], [5, 6, 7], [131071, 100000]):
        table = table_of(np.array(positions, np.int32), np.zeros(1, np.uint8))
        close(table, oracle.rope_table(positions, inv_freq))
        x = normal(rng, len(positions), 3, 40)
        close(rotate(x, table), oracle.rope(x, table))


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 32), (6, 2, 40), (5, 1, 80)])
def test_attention(rng, heads, kv_heads, dim):
    from mindspeed_ms.ops.attention import AttentionReference

    shape = (F32, None, None, kv_heads, dim)
    run = dynamic(AttentionReference(dim**-0.5), (F32, None, None, heads, dim), shape, shape)
    for b, t, s in ((1, 1, 1), (2, 5, 5), (1, 3, 19)):
        q, k, v = normal(rng, b, t, heads, dim), normal(rng, b, s, kv_heads, dim), normal(rng, b, s, kv_heads, dim)
        close(run(q, k, v), oracle.attention(q, k, v, dim**-0.5))


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "half"), [(6, 2, 40, False), (4, 4, 32, True)])
def test_paged_attention(rng, heads, kv_heads, dim, half):
    from mindspeed_ms.ops.paged_attention import PagedAttentionReference

    block, dtype = 16, np.float16 if half else np.float32
    padded = -(-dim // 16) * 16
    run = dynamic(
        PagedAttentionReference(1, 0.2, kv_heads, dim),
        (F32, None, heads, dim), (F32, None, kv_heads, dim), (F32, None, kv_heads, dim),
        (F16 if half else F32, 2, None, 2, kv_heads, padded * block),
        (I32, None), (I32, None), (I32, None), (I32, None, None),
    )  # fmt: skip
    for past, new in (([0], [1]), ([3, 40, 0, 16], [1, 5, 20, 1])):
        batch = oracle.ragged(past, new, block, rng)
        keys, values = ([normal(rng, p, kv_heads, dim) for p in past] for _ in range(2))
        total = sum(new)
        q, k, v = normal(rng, total, heads, dim), normal(rng, total, kv_heads, dim), normal(rng, total, kv_heads, dim)
        cache = oracle.empty_cache(2, batch, kv_heads, dim, dtype)
        oracle.fill_cache(cache, 1, batch, keys, values)
        before = cache.copy()
        found = run(q, k, v, cache, *batch.index)
        close(found, oracle.paged_attention(batch, q, k, v, keys, values, 0.2, half))
        for token, slot in enumerate(batch.slots):  # the step's own keys are where the layout says, nothing else moved
            kk, vv = (np.pad(x[token], ((0, 0), (0, padded - dim)), constant_values=np.nan) for x in (k, v))
            before[1, slot // block, 0].reshape(kv_heads, padded, block)[:, :, slot % block] = kk
            before[1, slot // block, 1].reshape(kv_heads, block, padded)[:, slot % block] = vv
        np.testing.assert_array_equal(cache, before)


@drawn(15)
@given(
    st.integers(1, 40), st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(0, 40),
    st.sampled_from([(1, 1), (6, 2), (5, 1), (4, 4)]), st.sampled_from([32, 34, 80]), seeds,
)  # fmt: skip
def test_float_bodies_over_drawn_shapes(graph_of, hidden, inner, tokens, past, heads, dim, rng):
    for count in tokens:
        x, w = normal(rng, count, hidden), normal(rng, hidden)
        close(graph_of("norm")(x, w), oracle.rms_norm(x, w, 1e-5))
        gate, up = 6 * normal(rng, count, inner), normal(rng, count, inner)
        close(graph_of("swiglu")(gate, up), oracle.swiglu(gate, up))
        table = oracle.rope_table(rng.integers(0, 131072, count), 10000.0 ** (-np.arange(0, dim, 2) / dim))
        x, table = normal(rng, count, heads[0], dim), table.astype(np.float32)
        close(graph_of("rope")(x, table), oracle.rope(x, table))
        q, (k, v) = normal(rng, 2, count, heads[0], dim), normal(rng, 2, 2, count + past, heads[1], dim)
        close(graph_of("attention")(q, k, v), oracle.attention(q, k, v, 0.2))


@pytest.fixture(scope="module")
def graph_of():
    """The reference of an operator by name, compiled once with every axis dynamic."""
    from mindspeed_ms.ops import Attention, RMSNorm, RotaryEmbedding, SwiGLU

    heads = (F32, None, None, None, None)
    graphs = {
        "norm": dynamic(RMSNorm.reference(1e-5), (F32, None, None), (F32, None)),
        "swiglu": dynamic(SwiGLU.reference(), (F32, None, None), (F32, None, None)),
        "rope": dynamic(RotaryEmbedding.reference(), (F32, None, None, None), (F32, None, None)),
        "attention": dynamic(Attention.reference(0.2), heads, heads, heads),
    }
    return graphs.__getitem__


SCHEMES = [(8, 0, False), (8, 32, False), (4, 32, True), (4, 64, False), (4, 128, True)]
WIDE = [(scheme, integer, 1100) for scheme in SCHEMES for integer in (True, False)]


@drawn(10)
@given(st.sampled_from(SCHEMES), st.booleans(), st.integers(1, 300), seeds)
def test_quantized_linear_over_drawn_widths(scheme, integer, columns, rng):
    check_quantized_linear(rng, scheme, integer, columns)


@pytest.mark.parametrize(("scheme", "integer", "columns"), WIDE)
def test_quantized_linear_over_more_inputs_than_one_exact_sum(rng, scheme, integer, columns):
    check_quantized_linear(rng, scheme, integer, columns)


def check_quantized_linear(rng, scheme, integer, columns):
    from mindspeed_ms.ops.linear import LinearReference

    weight, bias = quantize_rtn(normal(rng, 21, columns), *scheme), normal(rng, 21)
    arena, layout = pack({"w": weight, "b": bias}, act=int(integer))
    cell = LinearReference(layout.matrices["w"].as_list(), layout.vectors["b"][0], arena)
    run = dynamic(cell, (F32, None, columns), (U8, None))
    for tokens in (1, 9):
        x = normal(rng, tokens, columns)
        x[0, :32] = 0
        close(run(x, arena), oracle.linear(x, weight, bias, integer))


def test_float_linear_and_embedding(rng):
    from mindspeed_ms.ops.embedding import EmbeddingReference
    from mindspeed_ms.ops.linear import LinearReference

    weight = normal(rng, 50, 30)
    arena, layout = pack({"w": weight})
    desc = layout.matrices["w"].as_list()
    linear = dynamic(LinearReference(desc, -1, arena), (F32, None, 30), (U8, None))
    rows = dynamic(EmbeddingReference(desc, arena), (I32, None), (U8, None))
    for tokens in (1, 4):
        x = normal(rng, tokens, 30)
        close(linear(x, arena), oracle.linear(x, weight))
        ids = rng.integers(0, 50, tokens).astype(np.int32)
        np.testing.assert_array_equal(rows(ids, arena), weight[ids])
