"""Protobuf's bytes, against Google's own library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.parallel.plan.strategy import wire

struct_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), st.text(max_size=20))
def test_google_reads_what_is_written_and_we_read_what_google_writes(numbers, text):
    location = struct_pb2.SourceCodeInfo.Location(span=numbers, leading_comments=text)
    unpacked = b"".join(wire.put_number(2, n) for n in numbers)
    if text:
        unpacked += wire.put_bytes(3, text.encode())
    read = struct_pb2.SourceCodeInfo.Location.FromString(unpacked)
    assert list(read.span) == numbers and read.leading_comments == text
    packed = wire.parse(memoryview(location.SerializeToString()))  # `span` is packed
    assert wire.numbers(packed.get(2, ())) == numbers and wire.text(packed.get(3)) == text


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_a_value_error(data):
    try:
        found = wire.parse(memoryview(data))
    except ValueError:
        return
    assert all(number > 0 for number in found)


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\x08" + b"\xff" * 10 + b"\x01", b"\x0b", b"\x00\x01"])
def test_what_is_cut_off_or_of_no_kind_is_refused(data):
    with pytest.raises(ValueError):
        wire.parse(memoryview(data))
