"""The safetensors reader: equal to the library on good files, one clear line on bad ones."""

import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from weights_files import safetensors_bytes

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.weights.safetensors_file import SafetensorsFile, widen_bfloat16


def opened(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return SafetensorsFile(path)


def test_reads_what_the_safetensors_library_writes(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        dtype: rng.integers(0, 100, (3, 5)).astype(dtype)
        for dtype in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
    }
    odd = {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(3.5, np.float32)}
    file = opened(tmp_path, save(tensors | odd))
    for name, array in tensors.items():
        assert file.get(name).dtype == array.dtype
        np.testing.assert_array_equal(file.get(name), array)
    assert file.get("empty").shape == (0, 4) and file.get("scalar") == 3.5


def test_float_tensors_are_read_only_views_of_the_file(tmp_path):
    file = opened(tmp_path, save({"x": np.arange(6, dtype=np.float32)}))
    assert not file.get("x").flags.owndata and not file.get("x").flags.writeable


def test_bfloat16_becomes_the_float32_of_the_same_value(tmp_path):
    # 1.0, -2.5, the largest finite, the smallest subnormal, infinity, by the format's bit layout
    bits = np.array([0x3F80, 0xC020, 0x7F7F, 0x0001, 0x7F80], "<u2")
    header = {"x": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}}
    values = opened(tmp_path, safetensors_bytes(header, bits.tobytes())).get("x")
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array([1.0, -2.5, (2 - 2**-7) * 2.0**127, 2.0**-133, np.inf], np.float32))


def test_every_bfloat16_widens_exactly():
    bits = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(widen_bfloat16(bits).view(np.uint32), bits.astype(np.uint32) << 16)


def test_data_that_is_not_aligned_is_still_read(tmp_path):
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    array = opened(tmp_path, safetensors_bytes(header, b"\1" + np.array([1.5, 2.5], "<f4").tobytes())).get("x")
    assert array.flags.aligned and array.tolist() == [1.5, 2.5]


def one(**changes):
    return {"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}}


PAIR = {
    "x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
    "y": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]},
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc", "truncated or no safetensors"),
        (safetensors_bytes(one(), bytes(16), length=1 << 62), "header length"),
        (safetensors_bytes(one(), bytes(16), length=0), "not valid JSON"),
        (safetensors_bytes(b"[" * 100000), "not valid JSON"),
        (safetensors_bytes(b'{"x": ' + b"9" * 10000 + b"}"), "not valid JSON"),
        (safetensors_bytes(b"\xff\xfe{}"), "not valid JSON"),
        (safetensors_bytes(b'{"x": 1, "x": 2}'), "not valid JSON"),
        (safetensors_bytes(b"[1]"), "no JSON object"),
        (safetensors_bytes({"x": 3}), "tensor 'x': expected dtype, shape and data_offsets"),
        (safetensors_bytes(one(), bytes(10)), "ends at byte 16 of 10; the file is truncated"),
        (safetensors_bytes(one(), bytes(24)), "24 bytes of data, but the tensors cover 16"),
        (safetensors_bytes(one(data_offsets=[0, 12]), bytes(16)), r"12 bytes, but F32 \[2, 2\] takes 16"),
        (safetensors_bytes(one(data_offsets=[16, 0]), bytes(16)), r"is not \[start, stop\]"),
        (safetensors_bytes(one(data_offsets=[-16, 0]), bytes(16)), r"is not \[start, stop\]"),
        (safetensors_bytes(one(data_offsets=[0, 16.0]), bytes(16)), r"is not \[start, stop\]"),
        (safetensors_bytes(one(data_offsets=[0, 1 << 60], shape=[1 << 58]), bytes(16)), "the file is truncated"),
        (safetensors_bytes(one(shape=[-2, -2]), bytes(16)), "is not a list of at most 8 sizes"),
        (safetensors_bytes(one(shape=[True, 4]), bytes(16)), "is not a list of at most 8 sizes"),
        (safetensors_bytes(one(shape=[1 << 62, 1 << 62]), bytes(16)), "16 bytes, but F32"),
        (safetensors_bytes(one(shape="22"), bytes(16)), "is not a list of at most 8 sizes"),
        (safetensors_bytes(one(dtype="F8_E4M3"), bytes(16)), "dtype 'F8_E4M3' is not supported"),
        (safetensors_bytes(one(dtype=["F32"]), bytes(16)), "is not supported"),
        (safetensors_bytes(PAIR | {"y": {**PAIR["y"], "data_offsets": [4, 12]}}, bytes(16)), "'y' starts.*overlaps"),
        (safetensors_bytes({"y": PAIR["y"]}, bytes(16)), "'y' starts at byte 8.*leaves a hole"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, content, message):
    with pytest.raises(WeightsError, match=message) as error:
        opened(tmp_path, content)
    assert "\n" not in str(error.value) and "model.safetensors" in str(error.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match="gone.safetensors: no such file"):
        SafetensorsFile(tmp_path / "gone.safetensors")
    with pytest.raises(WeightsError, match="cannot be read"):
        SafetensorsFile(tmp_path)


GOOD = save({"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 3), np.float16), "c": np.zeros(5, np.int8)})


FLIPS = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FLIPS, st.integers(0, 40))
def test_flipped_bytes_are_read_or_refused_never_a_crash(tmp_path, flips, cut):
    content = bytearray(GOOD)
    for position, value in flips:
        content[position] = value
    try:
        file = opened(tmp_path, bytes(content[: len(content) - cut]))
    except WeightsError:
        return
    for name in file.tensors:
        file.get(name)


KEYS = st.sampled_from(["dtype", "shape", "data_offsets", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON, st.binary(max_size=32))
def test_any_json_header_is_read_or_refused(tmp_path, header, data):
    raw = json.dumps(header).encode()
    try:
        opened(tmp_path, struct.pack("<Q", len(raw)) + raw + data)
    except WeightsError:
        pass
