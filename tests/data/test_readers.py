"""Text files become records: which ones, cut where, and what is left of damaged files."""

import codecs
import gzip
import json
import re
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from data_corpora import LIMIT, chunks, plain, records, small_chunks, source, until_damage
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.types import Position
from mindspeed_ms.errors import ConfigError, DataError

LINES = st.lists(
    st.one_of(
        st.sampled_from([b"", b" ", b"\t\r", b"\r", b"ends in CR\r", b"x" * 30, b"y" * 31, b"z" * 200]),
        st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def expected_lines(content, limit, strip_cr=True):
    """(number, line or None where it is too long, bytes with its end), by the definition alone."""
    lines = content.split(b"\n")
    lengths = [len(line) + 1 for line in lines]
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines):
        kept = None if len(line) > limit else line[:-1] if strip_cr and line.endswith(b"\r") else line
        yield number, kept, lengths[number]


def expected_chunks(content, limit, size, count):
    """[(first, records, overlong)] cut greedily."""
    result, group, total = [], [], 0
    for item in expected_lines(content, limit):
        group.append(item)
        total += item[2]
        if total >= size or len(group) == count:
            result.append(group)
            group, total = [], 0
    result += [group] * bool(group)
    return [
        (g[0][0], [line for _, line, _ in g if line is not None], sum(line is None for _, line, _ in g)) for g in result
    ]


@given(lines=LINES, end=st.sampled_from([b"", b"\n"]), limit=st.sampled_from([1, 30, 100]))
def test_lines_are_cut_into_chunks_by_size_and_count(folder, lines, end, limit):
    content = b"\n".join(lines) + end
    if codecs.BOM_UTF16_LE in content[:4] or codecs.BOM_UTF16_BE in content[:2] or content[:3] == codecs.BOM_UTF8:
        content = b"x" + content
    path = write(folder, "a.txt", content)
    with small_chunks():
        got = chunks(path, limit)
    assert [(c.first, c.records, c.overlong) for c in got] == expected_chunks(content, limit, 64, 5)
    assert sum(c.bytes for c in got) == len(content)


@pytest.mark.parametrize("name", ["r.txt", "r.jsonl", "r.txt.gz", "r.jsonl.zst", "u16.txt", "paragraphs.txt"])
@given(lines=LINES, limit=st.sampled_from([30, 100]))
def test_reading_resumes_after_any_chunk_as_if_it_had_not_stopped(folder, name, lines, limit):
    content = b"x" + b"\n".join(lines)
    if name.startswith("u16"):
        content = content.decode("latin-1").encode("utf-16")
    pack = {"gz": gzip.compress, "st": zstandard.compress}.get(name[-2:], bytes)
    path = write(folder, name, pack(content))
    read = {"txt_by": "paragraph"} if name.startswith("para") else {}
    with small_chunks():
        whole = chunks(path, limit, **read)
        for k, chunk in enumerate(whole):
            rest = chunks(path, limit, start=chunk.after, **read)
            assert list(map(plain, rest)) == list(map(plain, whole[k + 1 :]))


@given(lines=LINES, limit=st.sampled_from([30, 100]))
def test_numbers_tell_where_each_record_was_and_blank_json_lines_are_none(folder, lines, limit):
    content = b"x" + b"\n".join(lines)
    path = write(folder, "n.jsonl", content)
    expected = {
        number: line
        for number, line, _ in expected_lines(content, limit, strip_cr=False)
        if line is not None and line.strip(b" \t\r\v\f")
    }
    found = {}
    with small_chunks():
        for chunk in chunks(path, limit):
            numbers = chunk.numbers or range(chunk.first, chunk.first + len(chunk.records))
            assert chunk.numbers is None or chunk.numbers != list(range(chunk.first, chunk.first + len(numbers)))
            found |= dict(zip(numbers, chunk.records, strict=True))
    assert found == expected


@given(lines=LINES)
def test_paragraphs_are_runs_of_lines_that_are_not_blank(folder, lines):
    content = b"x" + b"\n".join(lines)
    expected, group = [], []
    for line in [*content.split(b"\n"), b""]:
        if line.strip(b" \t\r"):
            group.append(line)
        else:
            expected += [b"\n".join(group).rstrip()] if b"\n".join(group).strip() else []
            group = []
    path = write(folder, "p.txt", content)
    with small_chunks():
        assert records(path, txt_by="paragraph") == expected


def test_a_file_is_one_document_when_asked(folder):
    path = write(folder, "f.txt", b"one\r\n\ntwo\n")
    assert records(path, txt_by="file") == [b"one\r\n\ntwo\n"]
    assert [(c.records, c.overlong) for c in chunks(path, limit=10, txt_by="file")] == [([b"one\r\n\ntwo\n"], 0)]
    (chunk,) = chunks(path, limit=9, txt_by="file")
    assert (chunk.records, chunk.overlong, chunk.bytes) == ([], 1, 10)
    assert chunks(path, start=chunk.after, txt_by="file") == []


@pytest.mark.parametrize("name", ["e.txt", "e.jsonl", "e.json", "e.txt.gz", "e.jsonl.zst"])
def test_an_empty_file_has_no_records(folder, name):
    assert chunks(write(folder, name, b"")) == []


@pytest.mark.parametrize("by", ["line", "paragraph", "file"])
@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz"])
def test_a_line_of_50_megabytes_is_counted_but_never_held(folder, name, by):
    content = b"first\n\n" + b"x" * (50 << 20) + b"\n\nlast\n"
    path = write(folder, name, gzip.compress(content, 1) if name.endswith("gz") else content)
    tracemalloc.start()
    got = chunks(path, limit=1 << 20, txt_by=by)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert sum(c.overlong for c in got) == 1
    kept = [record for c in got for record in c.records if record]
    assert kept == ([] if by == "file" else [b"first", b"last"])


def test_chunks_of_a_large_file_have_about_a_megabyte_or_8192_records(folder):
    path = write(folder, "large.txt", b"".join(b"%07d\n" % k for k in range(20_000)) + (b"x" * 999 + b"\n") * 3000)
    got = chunks(path)
    assert [len(c.records) for c in got[:2]] == [8192, 8192]
    assert len(got[2].records) == 20_000 - 2 * 8192 + -(-((1 << 20) - 8 * (20_000 - 2 * 8192)) // 1000)
    assert sum(len(c.records) for c in got) == 23_000
    assert {c.source for c in got} == {3}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark_wins_over_the_option(folder, encoding):
    text = "ключ\r\n诗 🙂\n"
    mark = {"utf-16-be": codecs.BOM_UTF16_BE, "utf-32-be": codecs.BOM_UTF32_BE}.get(encoding, b"")
    path = write(folder, "bom.txt", mark + text.encode(encoding))
    assert records(path, encoding="latin-1") == ["ключ".encode(), "诗 🙂".encode()]


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "shift_jis", "latin-1", "koi8-r", "utf-16-le", "cp1252"])
def test_other_encodings_come_as_utf_8(folder, encoding):
    text = "é" if encoding in ("latin-1", "cp1252") else "Ж" if encoding == "koi8-r" else "水"
    path = write(folder, "other.txt", f"{text}a\n{text}b".encode(encoding) * 9)
    with small_chunks():
        assert b"\n".join(records(path, encoding=encoding)) == f"{text}a\n{text}b".encode() * 9


@pytest.mark.parametrize(
    ("encoding", "bad"), [("ascii", b"\xe9"), ("gb18030", b"\xff"), ("utf-16-le", b"\x00\xd8"), ("cp1252", b"\x81")]
)
def test_what_an_encoding_does_not_allow_stays_invalid(folder, encoding, bad):
    path = write(folder, "bad.txt", "ok\nb".encode(encoding) + bad + "d\nok".encode(encoding))
    first, middle, last = records(path, encoding=encoding)
    assert (first, last) == (b"ok", b"ok")
    with pytest.raises(UnicodeDecodeError):
        middle.decode()


def test_utf_8_comes_as_it_is_valid_or_not(folder):
    content = b"good\n\xff\xfe bad\n\xc3\xa9\x00"
    assert records(write(folder, "raw.txt", content)) == content.split(b"\n")


def test_the_encoding_is_not_for_json(folder):
    path = write(folder, "enc.jsonl", '{"text": "é"}\n'.encode())
    assert records(path, encoding="utf-16") == ['{"text": "é"}'.encode()]


@pytest.mark.parametrize("encoding", ["utf-9", "rot13", "hex", "undefined"])
def test_an_unknown_encoding_is_refused(folder, encoding):
    with pytest.raises(ConfigError, match=rf"^encoding: '{encoding}' is not known; expected"):
        chunks(write(folder, "enc.txt", b"x"), encoding=encoding)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    values=st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=3), max_size=12),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    end=st.sampled_from(["", "\n", " \r\n\n"]),
)
def test_a_json_array_is_read_element_by_element(folder, values, indent, ascii_only, end):
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    path = write(folder, "array.json", b" \n" + text + end.encode())
    with small_chunks():
        got = records(path)
    assert [json.loads(record.decode("utf-8", "surrogatepass")) for record in got] == values


def test_a_json_file_may_also_hold_lines(folder):
    lines = [b'{"text": "a, [b]"}', b'{"text": "c"}']
    assert records(write(folder, "lines.json", b"\n".join(lines))) == lines
    assert records(write(folder, "marked.json", codecs.BOM_UTF8 + b"[" + b",".join(lines) + b"]")) == lines


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'[{"a": 1}, {"a"', "does not end"), (b'[{"a": 1}]\n[{"a": 2}]', "more follows"), (b'[{"a": 1}', "does not end")],
)
def test_a_json_array_that_does_not_end_well_is_damaged(folder, content, problem):
    got, message = until_damage(write(folder, "bad.json", content))
    assert [record for c in got for record in c.records][:1] in ([b'{"a": 1}'], [])
    assert "bad.json" in message and problem in message


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


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_zeros_that_a_crash_left_are_no_empty_file(folder, suffix):
    got, message = until_damage(write(folder, f"zeros.txt.{suffix}", bytes(5000)))
    assert got == [] and "damaged" in message


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
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read at byte 0 \(No such file"):
        list(read_chunks(gone, 0, ReadConfig(), LIMIT, Position()))
