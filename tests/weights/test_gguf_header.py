"""The strict GGUF header reader: equal to the gguf package on good files, bounded and clear on bad ones."""

import mmap
import struct
import time
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.weights.gguf_header import read_header
from mindspeed_ms.weights.safetensors_file import map_file


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(key, kind, raw):
    return text(key) + struct.pack("<I", kind) + raw


def tensor(name="x", shape=(32,), kind=0, offset=0, rank=None):
    rank = len(shape) if rank is None else rank
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", rank) + sizes + struct.pack("<IQ", kind, offset)


def build(metadata=(), tensors=(), data=bytes(128), magic=b"GGUF", version=3, tensor_count=None, kv_count=None):
    head = magic + struct.pack("<I", version)
    head += struct.pack("<Q", len(tensors) if tensor_count is None else tensor_count)
    head += struct.pack("<Q", len(metadata) if kv_count is None else kv_count)
    body = head + b"".join(metadata) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data


def read(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read_header(map_file(path), str(path))


def test_agrees_with_the_gguf_package(tmp_path, gguf_file):
    def extra(writer):
        writer.add_uint8("t.u8", 200)
        writer.add_int8("t.i8", -5)
        writer.add_uint16("t.u16", 60000)
        writer.add_int16("t.i16", -300)
        writer.add_int32("t.i32", -70000)
        writer.add_uint64("t.u64", 1 << 40)
        writer.add_int64("t.i64", -(1 << 40))
        writer.add_float64("t.f64", 0.1)
        writer.add_bool("t.bool", True)
        writer.add_string("t.text", "模型 🙂")
        writer.add_array("t.floats", [0.5, 1.5])
        writer.add_array("t.texts", ["a", "", "ü"])

    path = gguf_file(kind="Q8_0", extra=extra)
    header, reader = read_header(map_file(path), "x"), gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert set(header.metadata) == set(expected)
    for name, value in expected.items():
        found = header.metadata[name]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value, name
    assert set(header.tensors) == {t.name for t in reader.tensors}
    for t in reader.tensors:
        found = header.tensors[t.name]
        assert (found.type, found.shape, found.start) == (t.tensor_type, tuple(t.shape.tolist()[::-1]), t.data_offset)
        assert found.stop - found.start == t.n_bytes


U32, STRING, ARRAY = 4, 8, 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGU", "expected a GGUF file"),
        (build(magic=b"GGML"), "expected a GGUF file"),
        (build(version=1), "version 1 is not supported"),
        (build(version=0x03000000), "version 50331648 is not supported"),
        (b"GGUF\3\0\0\0", "are left"),
        (build(kv_count=1 << 60), "metadata count says"),
        (build(tensor_count=1 << 60), "tensor count says"),
        (build(tensor_count=1 << 63), "tensor count says"),
        (build([struct.pack("<Q", 1 << 60) + b"k"]), "metadata key is 1152921504606846976 bytes long"),
        (build([scalar("k", STRING, struct.pack("<Q", 1 << 62))]), "asks for 4611686018427387904 bytes"),
        (build([scalar("k", STRING, text(b"\xff\xfe"))]), "is not UTF-8"),
        (build([scalar("k", 99, b"\0")]), "value type 99"),
        (build([scalar("k", ARRAY, struct.pack("<IQ", U32, 1 << 61))]), "more than the rest of the file holds"),
        (build([scalar("k", ARRAY, struct.pack("<IQ", STRING, 1 << 50))]), "more than the rest of the file holds"),
        (build([scalar("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "array of arrays"),
        (build([scalar("k", U32, bytes(4))] * 2), "'k' appears twice"),
        (build([scalar("general.alignment", U32, struct.pack("<I", 0))]), "general.alignment 0"),
        (build([scalar("general.alignment", U32, struct.pack("<I", 48))]), "general.alignment 48"),
        (build([scalar("general.alignment", STRING, text("32"))]), "general.alignment '32'"),
        (build(tensors=[tensor(rank=0, shape=())]), "0 dimensions"),
        (build(tensors=[tensor(rank=5000)]), "5000 dimensions"),
        (build(tensors=[tensor(kind=77)]), "type number 77"),
        (build(tensors=[tensor(shape=(0,))]), "impossible shape"),
        (build(tensors=[tensor(shape=(1 << 63, 4))]), "impossible shape"),
        (build(tensors=[tensor(shape=(1 << 39, 1 << 39, 1 << 39))]), "it is truncated"),
        (build(tensors=[tensor(offset=1 << 60)]), "it is truncated"),
        (build(tensors=[tensor(offset=(1 << 64) - 32)]), "it is truncated"),
        (build(tensors=[tensor(offset=4)]), "not a multiple of 32"),
        (build(tensors=[tensor(shape=(33,), kind=8)]), "not a multiple of Q8_0's 32"),
        (build(tensors=[tensor(), tensor()]), "'x' appears twice"),
        (build(tensors=[tensor(), tensor("y")]), "overlaps one that ends at 128"),
        (build(tensors=[tensor()], data=bytes(64)), "the file has 128; it is truncated"),
    ],
)
def test_a_lying_header_is_one_clear_line_at_once(tmp_path, content, message):
    tracemalloc.start()
    started = time.process_time()  # which other work on the machine does not stretch
    with pytest.raises(WeightsError, match=message) as error:
        read(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(error.value) and "model.gguf" in str(error.value)
    assert peak < 4 << 20 and time.process_time() - started < 2


GOOD = build(
    [
        scalar("general.architecture", STRING, text("llama")),
        scalar("n", U32, struct.pack("<I", 7)),
        scalar("list", ARRAY, struct.pack("<IQ", STRING, 2) + text("ab") + text("c")),
        scalar("numbers", ARRAY, struct.pack("<IQ", U32, 3) + bytes(12)),
    ],
    [tensor("x", (8, 2)), tensor("y", (32,), 8, 64)],
)


def test_the_good_file_of_the_fuzz_test_is_good(tmp_path):
    header = read(tmp_path, GOOD)
    assert header.metadata["list"] == ["ab", "c"] and header.tensors["x"].shape == (2, 8)


FLIPS = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FLIPS, st.integers(0, 200))
def test_flipped_bytes_are_read_or_refused_never_a_crash(flips, cut):
    content = bytearray(GOOD)
    for position, value in flips:
        content[position] = value
    with mmap.mmap(-1, max(1, len(content) - cut)) as data:
        data[:] = bytes(content[: len(data)])
        try:
            header = read_header(data, "fuzz")
        except WeightsError:
            return
        for entry in header.tensors.values():
            assert 0 <= entry.start <= entry.stop <= len(data)
