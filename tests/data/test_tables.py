"""One column of parquet and arrow files becomes records."""

import json
import sys

import numpy as np
import pytest
from data_corpora import chunks, plain, records, source, until_damage

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["one", "", None, "zwei ü", "x" * 100, "诗"] * 50


def save(path, table, rows=7):
    """As parquet with small row groups, as an arrow stream (what datasets writes), or as an arrow file."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, write_page_checksum=True)
        return path
    opened = pa.ipc.new_file if path.stem.endswith("file") else pa.ipc.new_stream
    with opened(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.fixture(params=["t.parquet", "stream.arrow", "file.arrow"])
def path(request, tmp_path):
    return tmp_path / request.param


TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_texts_come_as_they_are_and_null_is_empty(path, kind):
    values = pa.array(TEXTS).cast(kind) if pa.types.is_dictionary(kind) else pa.array(TEXTS, pa.string()).cast(kind)
    save(path, pa.table({"n": range(len(TEXTS)), "text": values}))
    assert records(path) == [(text or "").encode() for text in TEXTS]


def test_invalid_utf_8_is_left_for_the_cleaner(path):
    values = pa.array([b"ok", b"\xff\xfe", b"ok"]).cast(pa.string(), safe=False)
    assert records(save(path, pa.table({"text": values}))) == [b"ok", b"\xff\xfe", b"ok"]


def test_conversations_come_as_json_without_the_fields_that_are_null(path):
    talks = [
        [{"role": "user", "content": "hé", "tool": None}, {"role": "assistant", "content": "b", "tool": "x"}],
        [],
        None,
    ]
    save(path, pa.table({"chat": talks}))
    (chunk,) = chunks(path, messages_key="chat")
    assert chunk.kind == "json"
    assert [json.loads(record) for record in chunk.records] == [
        {"chat": [{"role": "user", "content": "hé"}, talks[0][1]]},
        {"chat": []},
        {"chat": []},
    ]


@pytest.mark.parametrize("item", [pa.int32(), pa.int64(), pa.uint16()], ids=str)
@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list])
def test_token_ids_come_as_int64_and_null_among_them_as_minus_one(path, item, wrap):
    save(path, pa.table({"ids": pa.array([[1, 2], [], None, [3, None], [65535]], wrap(item))}))
    (chunk,) = chunks(path, ids_key="ids")
    assert chunk.kind == "ids" and {record.dtype for record in chunk.records} == {np.dtype(np.int64)}
    assert [record.tolist() for record in chunk.records] == [[1, 2], [], [], [3, -1], [65535]]


def test_fixed_size_lists_and_null_columns_are_understood(path):
    save(path, pa.table({"ids": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), "text": pa.nulls(2)}))
    assert [record.tolist() for record in records(path, ids_key="ids")] == [[1, 2], [3, 4]]
    assert records(path) == [b"", b""]


@pytest.mark.parametrize("rows", [60, 1000, 100_000])
def test_chunks_do_not_depend_on_row_groups_and_reading_resumes_after_each(path, rows):
    texts = [f"{k} " * (k % 97) for k in range(30_000)]
    save(path, pa.table({"text": texts}), rows)
    got = chunks(path, limit=500)
    whole = [text.encode() for text in texts]
    expected, begin, size = [], 0, 0
    for end, text in enumerate(whole, 1):
        size += len(text)
        if size >= 1 << 20 or end - begin >= 8192 or end == len(whole):
            expected.append([text for text in whole[begin:end] if len(text) <= 500])
            begin, size = end, 0
    assert [c.records for c in got] == expected
    assert sum(c.overlong for c in got) == sum(len(text) > 500 for text in whole) > 0
    numbers = [number for c in got for number in (c.numbers or range(c.first, c.first + len(c.records)))]
    assert numbers == [k for k, text in enumerate(whole) if len(text) <= 500]
    assert source(path).size - 100 <= sum(c.bytes for c in got) <= source(path).size
    for k, chunk in enumerate(got):
        rest = chunks(path, limit=500, start=chunk.after)
        assert list(map(plain, rest)) == list(map(plain, got[k + 1 :]))


def test_a_table_without_rows_has_no_records(path):
    assert chunks(save(path, pa.table({"text": pa.array([], pa.string())}))) == []


def test_a_missing_column_is_named_with_those_there_are(path):
    save(path, pa.table({"body": ["x"], "id": [1]}))
    with pytest.raises(DataError, match=rf"{path.name}: has no column 'text'; its columns are body, id: name one"):
        chunks(path)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({}, "column 'text' holds int64, expected text"),
        ({"messages_key": "text"}, "column 'text' holds int64, expected a list of {role, content}"),
        ({"ids_key": "text"}, "column 'text' holds int64, expected a list of integers"),
    ],
)
def test_a_column_of_another_type_is_refused(path, read, message):
    save(path, pa.table({"text": [1]}))
    with pytest.raises(DataError, match=message):
        chunks(path, **read)


def test_a_conversation_that_json_cannot_hold_is_refused(path):
    save(path, pa.table({"chat": [[{"role": "user", "content": b"bytes"}]]}))
    with pytest.raises(DataError, match="column 'chat' holds bytes, expected text"):
        chunks(path, messages_key="chat")


def test_what_is_before_the_damage_comes_first(path):
    texts = [f"{k:06}" * 20 for k in range(20_000)]
    save(path, pa.table({"text": texts}), 1000)
    content = bytearray(path.read_bytes())
    if path.suffix == ".arrow":
        del content[len(content) // 2 :]
    else:  # the footer is needed, so the damage is in the middle
        middle = len(content) // 2
        content[middle : middle + 2000] = bytes(2000)
    path.write_bytes(content)
    got, message = until_damage(path)
    kept = [record for c in got for record in c.records]
    assert message.startswith(f"{path}: damaged or no {path.suffix[1:]} file") and "\n" not in message
    if path.stem == "file":  # its index is at the end
        assert kept == []
    else:
        assert len(kept) >= 5000 and kept == [text.encode() for text in texts[: len(kept)]]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1", b"\xff\xff\xff\xff" * 9, b"text\n" * 50])
def test_what_is_no_table_is_damaged(path, content):
    path.write_bytes(content)
    _, message = until_damage(path)
    assert path.name in message


def test_no_flipped_byte_ends_in_anything_but_records_or_an_error(path):
    save(path, pa.table({"text": TEXTS[:40], "ids": [[k, k + 1] for k in range(40)]}), 20)
    content = path.read_bytes()
    rng = np.random.default_rng(5)
    for at in rng.integers(0, len(content), 150):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.integers(8)]) + content[at + 1 :])
        for read in ({}, {"ids_key": "ids"}):
            try:
                chunks(path, **read)
            except DataError as error:
                assert path.name in str(error) and "\n" not in str(error)


def test_without_pyarrow_the_error_says_what_to_install(path, monkeypatch):
    save(path, pa.table({"text": ["x"]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow; run pip install 'mindspeed-ms\[data\]'"):
        list(read_chunks(source(path), 0, ReadConfig(), 1 << 20))
