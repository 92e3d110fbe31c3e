"""What is left of damaged files, and that damage never passes for text."""

import gzip
import json
import os
import random
import re
import sys
import zlib

import numpy as np
import pyarrow
import pytest
import zstandard
from data_corpora import LIMIT, chunks, records, source, until_damage, write

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.megatron import MegatronWriter
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.types import Position
from mindspeed_ms.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def lines_of(count):
    return [b"%d %x" % (k, zlib.crc32(b"%d" % k)) for k in range(count)]


def test_gzip_members_and_zstd_frames_follow_one_another(folder):
    one, two = b"first\nsec", b"ond\nthird\n"
    path = write(folder, "m.txt.gz", gzip.compress(one) + gzip.compress(b"") + gzip.compress(two) + b"\0" * 20)
    assert records(path) == [b"first", b"second", b"third"]
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    path = write(folder, "m.txt.zst", zstandard.compress(one) + skippable + zstandard.compress(two))
    assert records(path) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["truncated", "flipped", "more"])
def test_a_damaged_compressed_file_gives_what_is_before_the_damage(folder, suffix, kind):
    lines = lines_of(60_000)
    content = b"\n".join(lines)
    packed = bytearray(gzip.compress(content) if suffix == "gz" else zstandard.compress(content, 3))
    at = len(packed) // 2
    if kind == "truncated":
        del packed[at:]
    elif kind == "flipped":
        packed[at : at + 64] = bytes(64)
    else:
        packed += b"garbage"
    path = write(folder, f"damaged-{kind}.txt.{suffix}", packed)
    got, message = until_damage(path)
    kept = [record for c in got for record in c.records]
    assert path.name in message and ("truncated" if kind == "truncated" else "byte") in message
    if kind == "more":
        assert kept[:-1] == lines[: len(kept) - 1] and len(kept) >= len(lines) - 1
        return
    sure = len(kept) if kind == "truncated" else len(lines) // 3
    assert kept[:sure] == lines[:sure] and len(kept) < len(lines)
    if suffix == "gz" and kind == "truncated":
        decoded = zlib.decompressobj(wbits=31).decompress(bytes(packed))
        assert len(kept) == decoded.count(b"\n")  # the last line may be cut, so it does not count
    assert len(kept) >= len(lines) // 3
    resumed = ReadConfig()
    with pytest.raises(DataError, match=re.escape(message)):
        list(read_chunks(source(path), 0, resumed, LIMIT, got[-1].after))


@pytest.mark.parametrize("content", [b"", bytes(5000)], ids=["nothing", "zeros"])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_nothing_and_zeros_that_a_crash_left_are_no_empty_file(folder, suffix, content):
    got, message = until_damage(write(folder, f"left.txt.{suffix}", content))
    assert got == [] and ("damaged" if content else "is empty") in message


def test_a_flipped_byte_of_a_gzip_file_never_passes(folder):
    packed = gzip.compress(b"\n".join(lines_of(500)))
    for at in range(10, len(packed), 37):
        broken = bytearray(packed)
        broken[at] ^= 0x10
        until_damage(write(folder, "flip.txt.gz", broken))


def test_without_zstandard_the_error_says_what_to_install(folder, monkeypatch):
    path = write(folder, "absent.txt.zst", zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"zst needs zstandard; run pip install 'mindspeed-ms\[data\]'"):
        chunks(path)


def test_an_unreadable_file_is_damaged(folder):
    path = write(folder, "gone.txt", b"text")
    gone = source(path)
    path.unlink()
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read"):
        list(read_chunks(gone, 0, ReadConfig(), LIMIT, Position()))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'[{"a": 1}, {"a"', "does not end"), (b'[{"a": 1}]\n[{"a": 2}]', "more follows"), (b'[{"a": 1}', "does not end")],
)
def test_a_json_array_that_does_not_end_well_is_damaged(folder, content, problem):
    got, message = until_damage(write(folder, "bad.json", content))
    assert [record for c in got for record in c.records][:1] in ([b'{"a": 1}'], [])
    assert "bad.json" in message and problem in message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.bin"])
def test_a_file_that_changes_while_it_is_read_is_told(tmp_path, name):
    content = b'{"text": "a"}\n'
    write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    if name == "a.bin":
        with MegatronWriter(tmp_path / "a", 10) as writer:
            writer.add(np.arange(5))
    changing = source(tmp_path / name)
    reading = read_chunks(changing, 0, ReadConfig(), LIMIT)
    assert next(reading).first == 0
    os.utime(tmp_path / ("a.idx" if name == "a.bin" else name), ns=(0, changing.mtime_ns + 1))
    with pytest.raises(DataError, match=r"a\.\S+: changed while it was read; run the same command again"):
        next(reading)
    with pytest.raises(DataError, match="changed while"):
        next(read_chunks(changing, 0, ReadConfig(), LIMIT))


@pytest.mark.parametrize("name", ["a.arrow", "a.idx"])
def test_a_file_that_is_cut_while_it_is_read_does_not_end_the_process(tmp_path, name):
    if name == "a.idx":
        with MegatronWriter(tmp_path / "a", 10) as writer:
            writer.add_documents(np.zeros(60_000, np.int64), np.ones(60_000, np.int64))
        cut = source(tmp_path / "a.bin")
    else:
        table = pyarrow.table({"text": [random.Random(k).randbytes(400).hex() for k in range(6000)]})
        with pyarrow.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        cut = source(tmp_path / name)
    reading = read_chunks(cut, 0, ReadConfig(), LIMIT)
    next(reading)
    os.truncate(tmp_path / name, 5000)
    with pytest.raises(DataError, match="changed while it was read"):
        list(reading)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst"])
def test_an_empty_compressed_file_is_damaged(tmp_path, name):
    assert "is empty" in until_damage(write(tmp_path, name, b""))[1]


def test_an_object_over_several_lines_is_told(tmp_path):
    for text in (json.dumps({"text": "a"}, indent=1), '{"text": "a",\n "b": 1}\n'):
        with pytest.raises(DataError, match="expected an array or JSON lines"):
            chunks(write(tmp_path, "a.json", text.encode()))
    for text in ('{"text": "a"}\n{"text": "b"}\n', '{"text": "{"}\n', '[\n{\n"text": "a"}]'):
        assert records(write(tmp_path, "a.json", text.encode()))
