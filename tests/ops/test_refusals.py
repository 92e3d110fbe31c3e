"""Bad input is a return code before any memory is touched, and an exception in Python: never a crash."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_blocks import Layer
from ops_harness import Refused

from mindspeed_ms.ops.native.codes import CODES
from mindspeed_ms.ops.native.pack import pack

COUNT, SHAPE, TYPE, ARENA, TOKEN, SLOT, BLOCK, POSITION, STARTS, ROWS, ATTRIBUTE = range(1, 12)
I32 = np.int32


@pytest.fixture
def rng():
    return np.random.default_rng(2)


class Case:
    """A call that works, to be spoilt: inputs by name, attributes."""

    def __init__(self, native, entry, inputs, attrs):
        self.native, self.entry, self.inputs, self.attrs = native, entry, inputs, attrs
        self()

    def __call__(self, attrs=None, **changed):
        inputs = {**self.inputs, **changed}
        cache = inputs.get("cache")
        if cache is not None:
            inputs["cache"] = cache.copy()
        y = self.native(self.entry, list(inputs.values()), {**self.attrs, **(attrs or {})})
        return y

    def refuses(self, code, attrs=None, **changed):
        assert code in CODES
        with pytest.raises(Refused) as refusal:
            self(attrs, **changed)
        assert refusal.value.code == code, f"code {refusal.value.code}, expected {code}: {CODES[code]}"


@pytest.fixture
def layer(rng):
    return Layer(rng, 64, 48, 4, 2, 32, (4, 32, True), True)


@pytest.fixture
def block(native, layer, rng):
    """The attention block over sequences of 20 + 3, 0 + 5 and 31 + 1 tokens, blocks of 16."""
    batch, x, table, _, _, cache = layer.step(rng, [20, 0, 31], [3, 5, 1])
    inputs = {"x": x, "table": table, "arena": layer.arena, "cache": cache, "positions": batch.positions,
              "slots": batch.slots, "seq_starts": batch.seq_starts, "block_tables": batch.block_tables}  # fmt: skip
    return Case(native, "AttentionBlock", inputs, layer.attention_attrs())


def with_value(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize("value", [-1, -(2**31), 10**6, 2**31 - 1, 0])
def test_slots(block, value):
    block.refuses(SLOT, slots=with_value(block.inputs["slots"], 1, value))


@pytest.mark.parametrize("value", [-1, -(2**31), 10**6, 2**31 - 1])
def test_block_ids_that_are_needed(block, value):
    block.refuses(BLOCK, block_tables=with_value(block.inputs["block_tables"], (0, 1), value))


def test_block_ids_that_are_not_needed_may_be_anything(block):
    block(block_tables=with_value(block.inputs["block_tables"], (1, 1), 2**31 - 1))


@pytest.mark.parametrize(("index", "value"), [(0, -1), (0, 10**6), (1, 20), (2, 2**31 - 1), (8, -(2**31))])
def test_positions(block, index, value):
    block.refuses(POSITION, positions=with_value(block.inputs["positions"], index, value))


@pytest.mark.parametrize(
    "starts", [[1, 3, 8, 9], [0, 3, 8, 8], [0, 3, 8, 10], [0, 3, 2, 9], [0, -1, 8, 9], [0, 2**31 - 1, 8, 9]]
)
def test_seq_starts(block, starts):
    block.refuses(STARTS, seq_starts=np.array(starts, I32))


def test_seq_starts_and_tables_of_another_length(block):
    block.refuses(SHAPE, seq_starts=np.array([0, 9], I32))
    block.refuses(SHAPE, seq_starts=np.zeros(0, I32))
    block.refuses(SHAPE, block_tables=block.inputs["block_tables"][:2])
    block.refuses(POSITION, block_tables=block.inputs["block_tables"][:, :1])
    block.refuses(POSITION, block_tables=block.inputs["block_tables"][:, :0])


def test_lengths_that_disagree(block):
    for name in ("positions", "slots", "table"):
        block.refuses(SHAPE, **{name: block.inputs[name][:-1]})
    block.refuses(SHAPE, x=block.inputs["x"][:, :-1])
    block.refuses(SHAPE, table=block.inputs["table"][:, :-2])


def test_caches_of_another_layout(block):
    cache = block.inputs["cache"]
    block.refuses(SHAPE, cache=cache[:, :, :1])
    block.refuses(SHAPE, cache=cache[:, :, :, :1])
    block.refuses(SHAPE, cache=cache[..., :-1])
    block.refuses(SHAPE, cache=np.concatenate([cache] * 3, -1))  # 48 positions a block
    block.refuses(SHAPE, cache=cache[0])
    block.refuses(TYPE, cache=cache.view(np.int32))
    block.refuses(BLOCK, cache=cache[:, :0])
    block.refuses(ATTRIBUTE, {"layer": 2})
    block.refuses(ATTRIBUTE, {"layer": -1})
    block.refuses(ATTRIBUTE, {"layer": 2**62})


@pytest.mark.parametrize("name", ["positions", "slots", "seq_starts", "block_tables"])
def test_index_arrays_of_another_type(block, name):
    block.refuses(TYPE, **{name: block.inputs[name].astype(np.int64)})
    block.refuses(TYPE, **{name: block.inputs[name].astype(np.float32)})
    block.refuses(TYPE, **{name: block.inputs[name][None]})


def test_float_inputs_of_another_type(block):
    block.refuses(TYPE, x=block.inputs["x"].astype(np.float16))
    block.refuses(TYPE, table=block.inputs["table"].astype(np.float16))
    block.refuses(TYPE, arena=block.inputs["arena"].view(np.int32))
    block.refuses(TYPE, x=block.inputs["x"][0])


def test_an_arena_that_is_too_short(block):
    block.refuses(ARENA, arena=block.inputs["arena"][: block.attrs["wo"][0] + 64])
    block.refuses(ARENA, arena=block.inputs["arena"][: block.attrs["norm"] + 4])
    block.refuses(ARENA, arena=block.inputs["arena"][:0])


@pytest.mark.parametrize("name", ["wq", "wk", "wv", "wo"])
@pytest.mark.parametrize(
    ("at", "value", "code"),
    [(0, 2**62 // 64 * 64, ARENA), (0, -64, ATTRIBUTE), (0, 3, ATTRIBUTE), (1, 0, ATTRIBUTE), (1, 2**40, ATTRIBUTE),
     (2, 2**62, ATTRIBUTE), (3, 7, ATTRIBUTE), (4, 33, ATTRIBUTE), (5, 2, ATTRIBUTE), (6, -1, ATTRIBUTE)],
)  # fmt: skip
def test_matrices_described_wrongly(block, name, at, value, code):
    weight = list(block.attrs[name])
    weight[at] = value
    block.refuses(code, {name: weight})


@pytest.mark.parametrize("offset", [2**62, -4, 2])
def test_vectors_outside_the_arena(block, offset):
    block.refuses(ARENA, {"norm": offset})
    block.refuses(ARENA, {"biases": [offset, -1, -1, -1]})
    block.refuses(ARENA, {"qk_norm": [-1, offset]})


def test_attributes_that_are_missing_or_contradict(block):
    block.refuses(ATTRIBUTE, {"heads": [4, 3, 32]})
    block.refuses(ATTRIBUTE, {"heads": [4, 0, 32]})
    block.refuses(ATTRIBUTE, {"heads": [-4, 2, 32]})
    block.refuses(ATTRIBUTE, {"heads": [8, 2, 16]})
    block.refuses(ATTRIBUTE, {"heads": [4, 2]})
    block.refuses(ATTRIBUTE, {"biases": []})
    del block.attrs["scale"]
    block.refuses(ATTRIBUTE)


def test_the_number_of_inputs(native, block):
    with pytest.raises(Refused) as refusal:
        native("AttentionBlock", list(block.inputs.values())[:-1], block.attrs)
    assert refusal.value.code == COUNT
    with pytest.raises(Refused) as refusal:
        native("AttentionBlock", [*block.inputs.values(), block.inputs["slots"]], block.attrs)
    assert refusal.value.code == COUNT


def test_a_refused_step_leaves_the_cache_as_it_was(native, block):
    inputs = {**block.inputs, "slots": with_value(block.inputs["slots"], 8, -1)}
    before = inputs["cache"].copy()
    with pytest.raises(Refused):
        native("AttentionBlock", list(inputs.values()), block.attrs)
    np.testing.assert_array_equal(inputs["cache"], before)


def test_a_step_without_tokens(block):
    empty = {name: block.inputs[name][:0] for name in ("x", "table", "positions", "slots")}
    assert block(**empty, seq_starts=np.zeros(4, I32)).shape == (0, 64)
    assert block(**empty, seq_starts=np.zeros(1, I32), block_tables=block.inputs["block_tables"][:0]).shape == (0, 64)


def test_paged_attention(native, rng, block):
    q, k = (rng.standard_normal((9, heads, 32)).astype(np.float32) for heads in (4, 2))
    inputs = {"q": q, "k": k, "v": k, **{name: block.inputs[name] for name in list(block.inputs)[3:]}}
    case = Case(native, "PagedAttention", inputs, {"layer": 0, "scale": 1.0})
    case.refuses(SLOT, slots=with_value(inputs["slots"], 4, 2**30))
    case.refuses(BLOCK, block_tables=with_value(inputs["block_tables"], (2, 0), -1))
    case.refuses(POSITION, positions=with_value(inputs["positions"], 0, -2))
    case.refuses(STARTS, seq_starts=with_value(inputs["seq_starts"], 3, 8))
    case.refuses(SHAPE, v=k[:, :1])
    case.refuses(SHAPE, q=q[:, :3])
    case.refuses(SHAPE, q=q[:, :0])
    case.refuses(SHAPE, k=k[:, :0], v=k[:, :0])
    case.refuses(SHAPE, q=q[:, :, :16])
    case.refuses(TYPE, q=q[0])
    case.refuses(ATTRIBUTE, {"layer": 7})


def test_attention(native, rng):
    q, k = (rng.standard_normal((2, 5, heads, 32)).astype(np.float32) for heads in (4, 2))
    case = Case(native, "Attention", {"q": q, "k": k, "v": k}, {"scale": 1.0})
    case.refuses(SHAPE, k=k[:, :4], v=k[:, :4])
    case.refuses(SHAPE, v=k[:, :4])
    case.refuses(SHAPE, q=q[:1])
    case.refuses(SHAPE, q=q[:, :, :3])
    case.refuses(SHAPE, q=q[..., :16])
    case.refuses(TYPE, q=q[0])
    case.refuses(TYPE, k=k.astype(np.float16))
    assert case(q=q[:, :0]).shape == (2, 0, 4, 32)


def test_embedding(native, rng):
    arena, layout = pack({"w": rng.standard_normal((20, 8)).astype(np.float32)})
    attrs = {"weight": layout.matrices["w"].as_list()}
    case = Case(native, "Embedding", {"ids": np.array([0, 19], I32), "arena": arena}, attrs)
    for token in (-1, 20, 31, 2**31 - 1, -(2**31)):  # 20..31: rows of padding
        case.refuses(TOKEN, ids=np.array([0, token], I32))
    case.refuses(TYPE, ids=np.array([0, 1], np.int64))
    case.refuses(TYPE, ids=np.array([[0, 1]], I32))
    case.refuses(ARENA, arena=arena[:-1])
    assert case(ids=np.zeros(0, I32)).shape == (0, 8)


def test_linear(native, rng):
    arena, layout = pack({"w": rng.standard_normal((20, 8)).astype(np.float32)})
    attrs = {"weight": layout.matrices["w"].as_list(), "bias": -1}
    case = Case(native, "Linear", {"x": rng.standard_normal((3, 8)).astype(np.float32), "arena": arena}, attrs)
    case.refuses(SHAPE, x=case.inputs["x"][:, :7])
    case.refuses(TYPE, x=case.inputs["x"][0])
    case.refuses(ARENA, arena=arena[:-1])
    case.refuses(ARENA, {"bias": len(arena) - 76})
    case.refuses(ATTRIBUTE, {"weight": attrs["weight"][:6]})
    assert case(x=case.inputs["x"][:0]).shape == (0, 20)


def test_lm_head(native, rng):
    arena, layout = pack({"w": rng.standard_normal((20, 8)).astype(np.float32), "n": np.ones(8, np.float32)})
    attrs = {"eps": 1e-6, "norm": layout.vectors["n"][0], "weight": layout.matrices["w"].as_list(), "bias": -1}
    x = rng.standard_normal((3, 8)).astype(np.float32)
    case = Case(native, "LmHead", {"x": x, "rows": np.array([2, 0, 2], I32), "arena": arena}, attrs)
    for row in (-1, 3, 2**31 - 1):
        case.refuses(ROWS, rows=np.array([0, row], I32))
    case.refuses(SHAPE, x=x[:, :7])
    case.refuses(TYPE, rows=np.array([0.0], np.float32))
    case.refuses(ARENA, {"norm": len(arena)})
    assert case(rows=np.zeros(0, I32)).shape == (0, 20)


def test_rotary(native, rng):
    arena, layout = pack({"f": np.ones(16, np.float32)})
    case = Case(
        native, "RopeTable", {"positions": np.array([0, 5], I32), "arena": arena}, {"inv_freq": 0, "head_dim": 32}
    )
    case.refuses(POSITION, positions=np.array([-1], I32))
    case.refuses(TYPE, positions=np.array([1.0], np.float32))
    for offset in (2**62, -4, 4):
        case.refuses(ARENA, {"inv_freq": offset})
    for dim in (0, -2, 33, 2**40):
        with pytest.raises(Refused) as refusal:
            native("RopeTable", list(case.inputs.values()), {"inv_freq": 0, "head_dim": dim}, out_shape=(2, 32))
        assert refusal.value.code == ATTRIBUTE
    x, table = rng.standard_normal((3, 2, 8)).astype(np.float32), np.ones((3, 8), np.float32)
    case = Case(native, "Rope", {"x": x, "table": table}, {})
    case.refuses(SHAPE, table=table[:2])
    case.refuses(SHAPE, table=table[:, :6])
    case.refuses(SHAPE, x=x[..., :7], table=table[:, :7])
    case.refuses(TYPE, x=x[0])
    assert case(x=x[:, :0]).shape == (3, 0, 8)
    assert case(x=x[:0], table=table[:0]).shape == (0, 2, 8)


def test_norm_and_activation(native, rng):
    x, w = rng.standard_normal((3, 8)).astype(np.float32), np.ones(8, np.float32)
    case = Case(native, "RmsNorm", {"x": x, "w": w}, {"eps": 1e-6})
    case.refuses(SHAPE, w=w[:7])
    case.refuses(SHAPE, x=x[:, :0], w=w[:0])
    case.refuses(TYPE, x=x.astype(np.float16))
    assert case(x=x[:0]).shape == (0, 8)
    case = Case(native, "Swiglu", {"gate": x, "up": x}, {})
    case.refuses(SHAPE, up=x[:2])
    case.refuses(SHAPE, up=x.reshape(8, 3))
    case.refuses(TYPE, up=x.astype(np.float16))
    assert case(gate=x[:0], up=x[:0]).shape == (0, 8)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_index_values_are_refused_or_served(block, data):
    """No values whatever in the four index arrays bring the kernel down."""
    changed = {}
    for name in data.draw(st.sets(st.sampled_from(["positions", "slots", "seq_starts", "block_tables"]), min_size=1)):
        array = block.inputs[name].copy()
        for _ in range(data.draw(st.integers(1, 3))):
            index = data.draw(st.integers(0, array.size - 1))
            array.reshape(-1)[index] = data.draw(st.one_of(st.integers(-2, 70), st.integers(-(2**31), 2**31 - 1)))
        changed[name] = array
    try:
        assert block(**changed).shape == (9, 64)
    except Refused as refusal:
        assert refusal.code in (SLOT, BLOCK, POSITION, STARTS)
