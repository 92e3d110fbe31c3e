"""Text files become records: which ones, and cut where."""

import codecs
import gzip
import json
import tracemalloc

import pytest
import zstandard
from data_corpora import chunks, plain, records, small_chunks, write
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", ["e.txt", "e.jsonl", "e.json"])
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
