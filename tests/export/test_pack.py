"""The arena's layout, byte by byte as the kernels read it, and what rounding to nearest may lose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.ops.native.pack import describe, pack, pack_weight, packed_nbytes, panel_nbytes, unpack_weight
from mindspeed_ms.ops.native.quant import QuantTensor, pack_nibbles, quantize_rtn, unpack_nibbles

FORMS = [(4, 32, False), (4, 32, True), (4, 64, True), (4, 128, False), (8, 32, False), (8, 64, False), (8, 0, False)]
sizes = st.tuples(st.integers(1, 40), st.integers(1, 140))


def random(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(sizes, st.sampled_from(FORMS))
def test_every_integer_scale_and_minimum_lies_where_the_layout_says(size, form):
    weight = quantize_rtn(random(*size), *form)
    arena, layout = pack({"bias": np.ones(3, np.float32), "weight": weight}, act=1)
    desc = layout.matrices["weight"]
    assert desc.as_list()[1:] == [*size, 2 if form[0] == 4 else 1, form[1], int(form[2]), 1]
    assert desc.offset % 64 == 0 and arena.ctypes.data % 64 == 0
    bits, group, asym = form
    panel, padded, codes = panel_nbytes(size[1], desc.kind, group, asym), -(-size[1] // 32) * 32, weight.codes()
    groups = -(-padded // group) if group else 1
    for n in range(size[0]):
        start, lane = desc.offset + n // 16 * panel, n % 16
        for k in range(size[1]):
            if bits == 8:
                assert arena[start + k // 4 * 64 + lane * 4 + k % 4] == int(codes[n, k]) + 128
            else:
                high, rest = divmod(k % 32, 16)
                byte = arena[start + k // 32 * 256 + rest // 4 * 64 + lane * 4 + rest % 4]
                assert byte >> 4 * high & 15 == codes[n, k]
        begin = start + padded * 16 * bits // 8
        kind, width = (np.float16, 2) if group else (np.float32, 4)
        scales = arena[begin : begin + groups * 16 * width].view(kind).reshape(groups, 16)
        assert (scales[:, lane] == weight.scales[n]).all()
        if asym:
            begin += groups * 32
            assert (
                arena[begin : begin + groups * 32].view(np.float16).reshape(groups, 16)[:, lane] == weight.mins[n]
            ).all()


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_inputs_of_padding_are_zero(form):
    weight = quantize_rtn(random(17, 33), *form)
    packed = np.full(describe(weight).nbytes, 255, np.uint8)
    pack_weight(weight, packed)
    desc = describe(weight)
    whole = unpack_weight(packed, type(desc)(0, 32, 64, desc.kind, desc.group, desc.asym, 0))
    assert (whole.codes()[:17, 33:] == (0 if form[2] or form[0] == 8 else 8)).all()
    assert (whole.scales[17:] == 0).all() and (whole.mins is None or (whole.mins[17:] == 0).all())
    assert (whole.dequantize()[17:] == 0).all()


@settings(max_examples=30, deadline=None)
@given(sizes, st.sampled_from([None, *FORMS]))
def test_unpacking_gives_back_what_was_packed(size, form):
    value = random(*size) if form is None else quantize_rtn(random(*size), *form)
    arena, layout = pack({"weight": value})
    found = unpack_weight(arena, layout.matrices["weight"])
    if form is None:
        assert (found == value).all()
        return
    assert (found.q == value.q).all() and (found.scales == value.scales).all()
    assert (found.mins is None) == (value.mins is None) and (found.mins is None or (found.mins == value.mins).all())


@pytest.mark.parametrize(("rows", "bytes_"), [(1, 64 * 5), (16, 64 * 5), (17, 128 * 5)])
def test_sizes_count_whole_panels(rows, bytes_):
    assert packed_nbytes(rows, 32, 2, 32, 0) == bytes_  # 256 bytes of integers, 32 of scales, rounded up
    assert packed_nbytes(rows, 5, 0) == bytes_


@settings(max_examples=40, deadline=None)
@given(sizes, st.sampled_from(FORMS), st.floats(1e-2, 1e2))
def test_rounding_misses_by_half_a_step_at_most(size, form, magnitude):
    weight = random(*size) * np.float32(magnitude)
    rounded = quantize_rtn(weight, *form)
    bits, group, _ = form
    steps = np.repeat(np.abs(rounded.scales.astype(np.float32)), group or size[1], axis=1)[:, : size[1]]
    levels = 15 if bits == 4 else 127
    # half a step; the extremes lose what rounding the scale (and minimum) to float16 costs; symmetric 4 bits
    # have no eighth step on the side of the smaller magnitude
    slack = 1.0 if form[:1] == (4,) and not form[2] else 0.5
    allowed = steps * (slack + levels * 2.0**-10) + 2.0**-10 * np.abs(weight) + 1e-6
    assert (np.abs(rounded.dequantize() - weight) <= allowed).all()


def test_values_that_the_levels_hit_exactly_survive():
    codes = np.tile(np.arange(16, dtype=np.float32), (3, 4))
    for form, values in [((4, 32, True), codes * 0.25 - 1), ((4, 64, False), (codes - 8) * 0.5)]:
        assert (quantize_rtn(values, *form).dequantize() == values).all()
    whole = np.arange(-127, 128, dtype=np.float32)[None] * 0.125
    assert (quantize_rtn(whole, 8, 0).dequantize() == whole).all()


def test_nibbles_pair_the_even_input_low():
    packed = pack_nibbles(np.array([[1, 2, 3]], np.uint8))
    assert packed.tolist() == [[0x21, 0x03]]
    assert unpack_nibbles(packed, 3).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("form", [(3, 32, False), (4, 0, False), (4, 48, False), (8, 32, True)])
def test_a_form_without_a_kernel_is_refused(form):
    with pytest.raises(ConfigError, match="not supported|symmetric"):
        quantize_rtn(random(2, 32), *form)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_values_that_have_no_scale_are_refused(bad):
    weight = random(2, 32)
    weight[1, 3] = bad
    with pytest.raises(WeightsError, match="finite|float16"):
        quantize_rtn(weight, 4, 32, True)


def test_arrays_that_contradict_the_shape_are_refused():
    with pytest.raises(WeightsError, match=r"scales: float16 \[2, 1\]"):
        QuantTensor(np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.float16), None, 4, 32, (2, 64))
