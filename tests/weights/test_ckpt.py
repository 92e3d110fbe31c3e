"""The .ckpt reader and writer: equal to MindSpore both ways, one clear line on bad files."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mindspeed_ms.weights.ckpt_writer as writer
from mindspeed_ms.errors import WeightsError
from mindspeed_ms.weights.ckpt import DTYPES, CkptFile
from mindspeed_ms.weights.ckpt_writer import write_ckpt
from mindspeed_ms.weights.wire import field, header, number_field, varint

NUMPY = (
    "float32",
    "float16",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


def arrays():
    rng = np.random.default_rng(0)
    made = {f"layer.{dtype}": rng.integers(0, 100, (3, 5)).astype(dtype) for dtype in NUMPY}
    return made | {"scalar": np.array(3.5, np.float32), "global_step": np.array(7, np.int32)}


def entry(name, array, kind=None):
    return name, kind, array.shape, lambda: array


def saved_by_mindspore(path, tensors, **options):
    import mindspore as ms

    ms.save_checkpoint([{"name": name, "data": tensor} for name, tensor in tensors.items()], str(path), **options)
    return path


def opened(tmp_path, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    return CkptFile(path)


def value(name=b"x", kind=b"Float32", sizes=(2,), content=b"\0" * 8, numbers=None):
    tensor = b"".join(number_field(1, size) for size in sizes) if numbers is None else numbers
    tensor += field(2, kind) + field(3, content)
    return field(1, field(1, name) + field(2, tensor))


@pytest.mark.parametrize("crc", [False, True])
def test_reads_what_mindspore_saves(tmp_path, crc):
    import mindspore as ms

    tensors = {name: ms.Tensor(array) for name, array in arrays().items()}
    wanted = np.array([1.0, -2.5, 3e38, 1e-40], np.float32)
    tensors["half"] = ms.Tensor(wanted, ms.bfloat16)
    file = CkptFile(
        saved_by_mindspore(tmp_path / "x.ckpt", tensors, append_dict={"epoch": 3, "note": "größer"}, crc_check=crc)
    )
    for name, array in arrays().items():
        assert file.get(name).dtype == array.dtype and file.get(name).shape == array.shape
        np.testing.assert_array_equal(file.get(name), array)
    np.testing.assert_array_equal(file.get("half"), tensors["half"].astype(ms.float32).asnumpy())
    assert file.stored("half").dtype == np.uint16 and file.tensors["half"].type == "BFloat16"
    assert file.texts == {"note": "größer"} and file.get("epoch") == 3


@pytest.mark.parametrize("crc", [False, True])
def test_mindspore_loads_what_is_written(tmp_path, crc):
    import mindspore as ms

    bits = np.array([0x3F80, 0xC020, 0x7F7F], np.uint16)
    written = write_ckpt(
        tmp_path / "x.ckpt",
        [*(entry(name, array) for name, array in arrays().items()), entry("half", bits, "BFloat16")],
        crc=crc,
    )
    assert written == (tmp_path / "x.ckpt").stat().st_size
    loaded = ms.load_checkpoint(str(tmp_path / "x.ckpt"), crc_check=crc)
    for name, array in arrays().items():
        assert tuple(loaded[name].shape) == array.shape and str(loaded[name].dtype).lower() == array.dtype.name
        np.testing.assert_array_equal(loaded[name].asnumpy(), array)
    assert loaded["half"].dtype == ms.bfloat16
    np.testing.assert_array_equal(loaded["half"].astype(ms.float32).asnumpy().view(np.uint32) >> 16, bits)


def test_the_bytes_are_those_that_mindspore_writes(tmp_path):
    import mindspore as ms

    theirs = saved_by_mindspore(
        tmp_path / "theirs.ckpt", {name: ms.Tensor(array) for name, array in arrays().items()}, crc_check=True
    )
    write_ckpt(tmp_path / "ours.ckpt", [entry(name, array) for name, array in arrays().items()], crc=True)
    assert (tmp_path / "ours.ckpt").read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("ours", [True, False])
def test_a_large_tensor_lies_in_slices(tmp_path, monkeypatch, ours):
    import mindspore as ms
    from mindspore.train import serialization

    array = np.random.default_rng(1).standard_normal((100, 70)).astype(np.float32)
    path = tmp_path / "x.ckpt"
    if ours:
        monkeypatch.setattr(writer, "_SLICE", 1023)
        write_ckpt(path, [entry("a", array), entry("b", array[:1])])
        np.testing.assert_array_equal(ms.load_checkpoint(str(path), crc_check=True)["a"].asnumpy(), array)
    else:
        monkeypatch.setattr(serialization, "SLICE_SIZE", 1)
        saved_by_mindspore(path, {"a": ms.Tensor(array), "b": ms.Tensor(array[:1])})
    file = CkptFile(path)
    assert len(file.tensors["a"].pieces) > 20
    np.testing.assert_array_equal(file.get("a"), array)
    np.testing.assert_array_equal(file.get("b"), array[:1])
    assert not file.get("a").flags.writeable


def test_an_empty_tensor_and_a_packed_list_of_sizes(tmp_path):
    packed = varint(2) + varint(1)
    content = value(b"e", sizes=(0, 4), content=b"") + value(b"p", numbers=field(1, packed))
    file = opened(tmp_path, content)
    assert file.get("e").shape == (0, 4) and file.get("p").shape == (2, 1)


def test_a_new_file_never_replaces_one(tmp_path):
    (tmp_path / "x.ckpt").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_ckpt(tmp_path / "x.ckpt", [])


def test_a_type_that_the_format_has_not_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'z' is complex64"):
        write_ckpt(tmp_path / "x.ckpt", [entry("z", np.zeros(2, np.complex64))])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"PK\3\4 a pickle in a zip file", "is no .ckpt of MindSpore"),
        (value()[:-1], "truncated"),
        (value() + b"\x0a", "truncated"),
        (value(content=b"\0" * 7), "7 bytes, but Float32 \\[2\\] takes 8"),
        (value(sizes=(1 << 62, 1 << 62)), "takes"),
        (value(numbers=number_field(1, 1 << 63)), "none negative"),
        (value(sizes=[1] * 9), "at most 8"),
        (value(numbers=field(1, b"\1" * 100)), "more than 64 sizes"),
        (value(kind=b"Int4"), "'Int4', expected one of Float32"),
        (value() + value(b"y") + value(), "'x' is there twice"),
        (value() + value(sizes=(1, 2)), "differ in type or sizes"),
        (value(name=b"\xff"), "no .ckpt of MindSpore"),
        (value(name=b"n" * 2000), "name of 2000 bytes"),
        (field(1, field(1, b"m") + field(3, b"")), "map parameter"),
        (field(1, field(1, b"m")), "without tensor"),
        (field(1, field(1, b"m") + field(2, b"")), "no type or no content"),
        (field(2, b""), "expected values only"),
        (header(1, 1 << 60), "announced"),
        (b"\xff" * 30, "no number of protobuf"),
        (value() + b"crc_num" + bytes(10), "CRC-32 is \\d+, but the file says 0"),
        (value(kind=b"str", sizes=(0,), content=b"\0\0\0"), "no .ckpt of MindSpore"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, content, says):
    with pytest.raises(WeightsError, match=says) as caught:
        opened(tmp_path, content)
    assert str(tmp_path / "x.ckpt") in str(caught.value) and "\n" not in str(caught.value)


def test_every_flipped_byte_of_a_file_with_crc_is_found(tmp_path):
    write_ckpt(tmp_path / "good.ckpt", [entry("a", np.arange(6, dtype=np.float32)), entry("b", np.zeros(2, np.int8))])
    good = (tmp_path / "good.ckpt").read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        with pytest.raises(WeightsError):
            opened(tmp_path, bytes(bad))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path, data):
    content = bytearray(value(b"a") + value(b"b", b"Int8", (3, 1), b"abc"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)))]
    try:
        file = opened(tmp_path, bytes(content))
    except WeightsError:
        return
    for name, tensor in file.tensors.items():
        assert file.get(name).nbytes >= np.prod(tensor.shape) * np.dtype(DTYPES[tensor.type]).itemsize
