"""A token's result is bit-identical whatever rows, sequences, chunks, blocks or threads surround it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ops_oracle as oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_blocks import Layer

from mindspeed_ms.ops.native.pack import pack
from mindspeed_ms.ops.native.quant import quantize_rtn

drawn = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
FORMS = [
    pytest.param(None, False, id="f32"),
    pytest.param((8, 0, False), True, id="w8a8"),
    pytest.param((4, 32, True), True, id="w4a8"),
    pytest.param((4, 128, False), False, id="w4a16"),
]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def same(found, expected):
    np.testing.assert_array_equal(found.view(np.int32), np.ascontiguousarray(expected).view(np.int32))


ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 31, 256, 257]


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
def test_linear_rows(isa, rng, scheme, integer):
    weight = normal(rng, 50, 200)
    arena, layout = pack({"w": weight if scheme is None else quantize_rtn(weight, *scheme)}, act=int(integer))
    attrs = {"weight": layout.matrices["w"].as_list(), "bias": -1}
    x = normal(rng, 600, 200)
    whole = isa("Linear", [x, arena], attrs)
    for count in ROWS:
        start = int(rng.integers(0, 600 - count))
        same(isa("Linear", [x[start : start + count], arena], attrs), whole[start : start + count])


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
def test_mlp_block_rows(isa, rng, scheme, integer):
    layer = Layer(rng, 96, 130, 2, 1, 32, scheme, integer, biased=True)
    x = normal(rng, 600, 96)
    whole = isa("MlpBlock", [x, layer.arena], layer.mlp_attrs())
    for count in ROWS:
        start = int(rng.integers(0, 600 - count))
        same(isa("MlpBlock", [x[start : start + count], layer.arena], layer.mlp_attrs()), whole[start : start + count])


def test_elementwise_rows(isa, rng):
    x, up, w = normal(rng, 300, 333), normal(rng, 300, 333), normal(rng, 333)
    norm, act = isa("RmsNorm", [x, w], {"eps": 1e-6}), isa("Swiglu", [x, up], {})
    for count in ROWS:
        start = int(rng.integers(0, 300 - count))
        part = slice(start, start + count)
        same(isa("RmsNorm", [x[part], w], {"eps": 1e-6}), norm[part])
        same(isa("Swiglu", [x[part], up[part]], {}), act[part])


def attend(native, layer, batch, x, table, cache):
    return native("AttentionBlock", [x, table, layer.arena, cache, *batch.index], layer.attention_attrs())


def prompt(rng, layer, length):
    x = normal(rng, length, layer.hidden)
    inv_freq = 10000.0 ** (-np.arange(0, layer.dim, 2) / layer.dim)
    return x, oracle.rope_table(np.arange(length), inv_freq).astype(np.float32)


def in_chunks(native, layer, x, table, cuts, block, rng, dtype=np.float32):
    """The attention block over one prompt, a call a chunk, on a fresh cache with its blocks anywhere."""
    whole = oracle.ragged([0], [len(x)], block, rng, spare=int(rng.integers(0, 5)))
    cache = oracle.empty_cache(2, whole, layer.kv_heads, layer.dim, dtype)
    out = []
    for begin, end in zip([0, *cuts], [*cuts, len(x)], strict=True):
        part = slice(begin, end)
        batch = oracle.Ragged(
            [begin], [end - begin], block, whole.blocks, whole.positions[part], whole.slots[part],
            np.array([0, end - begin], np.int32), whole.block_tables,
        )  # fmt: skip
        out.append(attend(native, layer, batch, x[part], table[part], cache))
    return np.concatenate(out)


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
@pytest.mark.parametrize("half", [False, True], ids=["f32 cache", "f16 cache"])
def test_a_prompt_in_any_chunks_and_any_blocks(isa, rng, scheme, integer, half):
    layer = Layer(rng, 64, 16, 6, 2, 40, scheme, integer, biased=True, qk_norm=True)
    dtype = np.float16 if half else np.float32
    x, table = prompt(rng, layer, 300)
    whole = in_chunks(isa, layer, x, table, [], 16, rng, dtype)
    for block, cuts in ((16, [1, 2, 3, 100]), (32, [7, 8, 256]), (64, [64, 65, 299]), (16, list(range(1, 300, 9)))):
        same(in_chunks(isa, layer, x, table, cuts, block, rng, dtype), whole)


@pytest.mark.parametrize(
    "sizes", [(64, 16, 9, 3, 64), (32, 16, 8, 1, 32), (48, 16, 14, 2, 34), (40, 8, 12, 1, 256)], ids=str
)
def test_head_counts_in_chunks(isa, rng, sizes):
    layer = Layer(rng, *sizes)
    x, table = prompt(rng, layer, 90)
    whole = in_chunks(isa, layer, x, table, [], 32, rng)
    for cuts in ([1], [50, 51, 53], [3, 7, 12, 18, 25, 33, 42, 52, 63, 75, 88]):
        same(in_chunks(isa, layer, x, table, cuts, 32, rng), whole)


sequences = st.lists(
    st.tuples(st.sampled_from([0, 1, 15, 31, 100]), st.sampled_from([0, 1, 1, 5, 33])), min_size=2, max_size=6
).filter(lambda rows: sum(new for _, new in rows) > 0)


@drawn
@given(sequences, st.sampled_from([16, 32, 64]), st.sampled_from([1, 2, 3]), seeds)
def test_a_ragged_batch_equals_one_sequence_at_a_time(isa, rows, block, threads, rng):
    layer = Layer(rng, 64, 16, 6, 2, 40, (4, 32, True), True)
    past, new = zip(*rows, strict=True)
    batch, x, table, keys, values, cache = layer.step(rng, past, new, block)
    isa.set_threads(threads)
    together = attend(isa, layer, batch, x, table, cache)
    isa.set_threads(1)
    for row, count in enumerate(new):
        if count == 0:
            continue
        part = slice(batch.seq_starts[row], batch.seq_starts[row + 1])
        alone = oracle.ragged([past[row]], [count], block, rng)
        own = oracle.empty_cache(2, alone, layer.kv_heads, layer.dim)
        oracle.fill_cache(own, 1, alone, [keys[row]], [values[row]])
        same(attend(isa, layer, alone, x[part], table[part], own), together[part])


def test_thread_counts(isa, rng):
    layer = Layer(rng, 576, 300, 9, 3, 64, (4, 32, True), True)
    batch, x, table, _, _, cache = layer.step(rng, [100, 0, 0, 37], [1, 70, 1, 1])
    results = []
    for threads in (1, 2, 4):
        isa.set_threads(threads)
        results.append(
            (attend(isa, layer, batch, x, table, cache.copy()), isa("MlpBlock", [x, layer.arena], layer.mlp_attrs()))
        )
    for attention, mlp in results[1:]:
        same(attention, results[0][0])
        same(mlp, results[0][1])


def test_paged_attention_equals_attention_on_whole_sequences(isa, rng):
    """The cache is only a place: float32 blocks give what plain tensors give, to the bit."""
    q, k, v = normal(rng, 1, 130, 9, 64), normal(rng, 1, 130, 3, 64), normal(rng, 1, 130, 3, 64)
    batch = oracle.ragged([0], [130], 16, rng)
    cache = oracle.empty_cache(1, batch, 3, 64)
    paged = isa("PagedAttention", [q[0], k[0], v[0], cache, *batch.index], {"layer": 0, "scale": 0.125})
    same(paged, isa("Attention", [q, k, v], {"scale": 0.125})[0])


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_spoils_only_itself(isa, rng, scheme, integer, bad):
    layer = Layer(rng, 96, 40, 2, 1, 32, scheme, integer)
    batch, x, table, _, _, cache = layer.step(rng, [3, 0], [9, 9])
    spoilt = x.copy()
    spoilt[12, 50] = bad  # the fourth token of the second sequence: later ones see its key
    clean_cache = cache.copy()
    mlp, attention = (
        isa("MlpBlock", [x, layer.arena], layer.mlp_attrs()),
        attend(isa, layer, batch, x, table, clean_cache),
    )
    found = isa("MlpBlock", [spoilt, layer.arena], layer.mlp_attrs())
    assert not np.isfinite(found[12]).any()
    same(np.delete(found, 12, 0), np.delete(mlp, 12, 0))
    found = attend(isa, layer, batch, spoilt, table, cache)
    same(found[:12], attention[:12])
    assert not np.isfinite(found[12]).any()


def test_callers_on_several_threads_do_not_meet(native, rng):
    layer = Layer(rng, 96, 130, 2, 1, 32, (4, 32, True), True)
    inputs = [normal(rng, rows, 96) for rows in (1, 40, 3, 300)]
    alone = [native("MlpBlock", [x, layer.arena], layer.mlp_attrs()) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            found = pool.map(lambda x: native("MlpBlock", [x, layer.arena], layer.mlp_attrs()), inputs)
            for a, b in zip(found, alone, strict=True):
                same(a, b)
