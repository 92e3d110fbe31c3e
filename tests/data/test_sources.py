"""Inputs become files in a fixed order, with names for the accounting."""

import json
import os

import pytest
from data_corpora import LIMIT

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data import sources
from mindspeed_ms.data.readers import read_chunks
from mindspeed_ms.data.sources import find_sources, kind_of
from mindspeed_ms.errors import ConfigError, DataError


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}\n")


def found(*inputs, **read):
    return find_sources([str(path) for path in inputs], ReadConfig(**read))


def names(*inputs, **read):
    return [file.name for file in found(*inputs, **read)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "txt"),
        ("A.TEXT", "txt"),
        ("a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.json", "json"),
        ("a.b.jsonl.gz", "jsonl"),
        ("a.txt.zst", "txt"),
        ("a.parquet", "parquet"),
        ("a.arrow", "arrow"),
        ("a.parquet.gz", None),
        ("a.csv", None),
        ("a.gz", None),
        ("txt", None),
    ],
)
def test_the_suffix_says_the_kind(name, kind):
    assert kind_of(name) == kind


def test_a_folder_is_read_whole_in_order_without_hidden_names(tmp_path):
    touch(tmp_path / "corpus", "b.txt", "a/2.jsonl", "a/10.jsonl.gz", "c/d/e.parquet", ".git/x.txt", "_tmp/y.txt")
    touch(tmp_path / "corpus", ".hidden.txt", "_SUCCESS", "notes.md", "z.csv", "pair.bin", "pair.idx", "alone.bin")
    files = found(tmp_path / "corpus")
    assert [file.name for file in files] == [
        "corpus/a/10.jsonl.gz",
        "corpus/a/2.jsonl",
        "corpus/b.txt",
        "corpus/c/d/e.parquet",
        "corpus/pair.bin",
    ]
    assert files.ignored == [f"{tmp_path}/corpus/{name}" for name in ("alone.bin", "notes.md", "z.csv")]
    assert {file.original for file in files} == {str(file.path) for file in files}
    first = files[0]
    state = first.path.stat()
    assert (first.kind, first.size, first.mtime_ns) == ("jsonl", state.st_size, state.st_mtime_ns)


def test_inputs_keep_their_order_and_a_name_that_starts_hidden_may_be_given(tmp_path):
    touch(tmp_path, "b.txt", "a.txt", "_c/.d.txt", "_c/e.txt")
    assert names(tmp_path / "b.txt", tmp_path / "a.txt", tmp_path / "_c") == ["b.txt", "a.txt", "_c/e.txt"]
    assert names(tmp_path / "_c" / ".d.txt") == [".d.txt"]


def test_names_are_unique(tmp_path):
    touch(tmp_path, "one/x.txt", "two/x.txt")
    one, two = tmp_path / "one", tmp_path / "two"
    assert names(one, two) == ["one/x.txt", "two/x.txt"]
    assert names(one / "x.txt", two / "x.txt") == [f"{one}/x.txt", f"{two}/x.txt"]
    assert names(one, one) == [f"{one}/x.txt", f"{one} (2)/x.txt"]


def test_many_files_are_accounted_by_folder_then_by_input_then_together(tmp_path):
    for folder in range(30):
        touch(tmp_path / "corpus", *(f"{folder:02}/{k}.txt" for k in range(10)))
    assert set(names(tmp_path / "corpus")) == {f"corpus/{folder:02}" for folder in range(30)}
    every = sorted((tmp_path / "corpus").rglob("*.txt"))
    assert set(names(*every)) == {f"{tmp_path}/corpus/{folder:02}" for folder in range(30)}
    for folder in range(300):
        touch(tmp_path / "wide", f"{folder}/{folder}.txt")
    assert set(names(tmp_path / "wide")) == {"wide"}
    assert set(names(*(tmp_path / "wide").rglob("*.txt"))) == {"all inputs"}
    assert sources.MAX_NAMES == 256


def test_links_are_followed_once_and_loops_end(tmp_path):
    touch(tmp_path, "elsewhere/real.txt", "corpus/a.txt")
    (tmp_path / "corpus" / "file.txt").symlink_to(tmp_path / "elsewhere" / "real.txt")
    (tmp_path / "corpus" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "loop").symlink_to(tmp_path / "corpus")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "dangling.txt").symlink_to(tmp_path / "nowhere")
    files = found(tmp_path / "corpus")
    assert [file.name for file in files] == ["corpus/a.txt", "corpus/file.txt", "corpus/folder/real.txt"]
    assert files.ignored == [f"{tmp_path}/corpus/dangling.txt"]


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    touch(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "b.txt")
    assert len(found(tmp_path)) == 1
    with pytest.raises(DataError, match=r"b\.txt: neither a file nor a folder"):
        found(tmp_path / "b.txt")


@pytest.mark.parametrize("given", ["set", "set.bin", "set.idx"])
def test_a_megatron_pair_is_named_by_prefix_or_either_file(tmp_path, given):
    touch(tmp_path, "set.bin", "set.idx")
    (file,) = found(tmp_path / given)
    assert (file.path, file.kind) == (tmp_path / "set.bin", "megatron")


def test_a_change_of_either_file_of_a_pair_shows(tmp_path):
    touch(tmp_path, "set.bin", "set.idx")
    os.utime(tmp_path / "set.idx", ns=(1, 2**61))
    assert found(tmp_path / "set")[0].mtime_ns == 2**61


def save_dataset(folder, shards):
    touch(folder, *shards, "cache-0123.arrow", "dataset_info.json")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in shards]}))


def test_a_saved_dataset_is_read_by_its_own_list_of_shards(tmp_path):
    save_dataset(tmp_path / "ds", ["data-1.arrow", "data-0.arrow"])
    assert names(tmp_path / "ds") == ["ds/data-1.arrow", "ds/data-0.arrow"]


def test_a_saved_dataset_dict_is_read_split_by_split(tmp_path):
    for split in ("train", "test"):
        save_dataset(tmp_path / "dd" / split, ["data-0.arrow"])
    (tmp_path / "dd" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert names(tmp_path / "dd") == ["dd/train/data-0.arrow", "dd/test/data-0.arrow"]
    assert names(tmp_path / "dd" / "test") == ["test/data-0.arrow"]


@pytest.mark.parametrize(
    "state",
    ["no json", "[]", "{}", '{"_data_files": 1}', '{"_data_files": [{}]}', '{"_data_files": [{"filename": "gone"}]}']
    + ['{"_data_files": [{"filename": "../outside.arrow"}]}', '{"_data_files": [{"filename": 7}]}']
    + ['{"_data_files": [], "_indices_data_files": ["i.arrow"]}', '{"_data_files": []}', "[" * 100_000],
)
def test_a_saved_dataset_that_lies_is_refused(tmp_path, state):
    save_dataset(tmp_path / "ds", ["data-0.arrow"])
    touch(tmp_path, "outside.arrow")
    (tmp_path / "ds" / "state.json").write_text(state)
    with pytest.raises(DataError, match="ds") as caught:
        found(tmp_path / "ds")
    assert "\n" not in str(caught.value)


def test_real_datasets_folders_are_understood(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"text": [f"row {k}" for k in range(10)]})
    whole.select([7, 3, 5]).save_to_disk(tmp_path / "picked")
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(
        tmp_path / "dict", num_shards={"train": 3, "test": 1}
    )

    def texts(path):
        files = found(path)
        return [r for f in files for c in read_chunks(f, 0, ReadConfig(), LIMIT) for r in c.records]

    assert texts(tmp_path / "picked") == [b"row 7", b"row 3", b"row 5"]
    assert texts(tmp_path / "dict") == [b"row %d" % k for k in range(10)] * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none.txt", "none.txt: no such file or folder; give the path of documents: .txt, .jsonl"),
        ("table.csv", "table.csv: the suffix says no kind that can be read; expected .txt, .jsonl"),
        ("alone.bin", "alone.bin: the suffix says no kind that can be read; expected .txt"),
        ("other", "other: no file to read in it \\(1 ignored, such as .*other/notes.md\\); expected .txt"),
        ("empty", "empty: no file to read in it; expected .txt"),
    ],
)
def test_an_input_without_documents_is_an_error_that_names_it(tmp_path, given, message):
    touch(tmp_path, "table.csv", "other/notes.md", "alone.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        found(tmp_path / given)


def test_no_input_is_an_error():
    with pytest.raises(ConfigError, match="^no input; give"):
        find_sources([], ReadConfig())


def test_files_without_fields_do_not_fit_a_field(tmp_path):
    touch(tmp_path, "a.txt", "b.jsonl", "set.bin", "set.idx")
    with pytest.raises(ConfigError, match=r"a\.txt: plain text has no field 'chat'"):
        found(tmp_path / "a.txt", messages_key="chat")
    with pytest.raises(ConfigError, match="set: token ids have no field 'chat'"):
        found(tmp_path / "set", messages_key="chat")
    assert [file.kind for file in found(tmp_path, messages_key="chat")] == ["jsonl"]
    assert [file.kind for file in found(tmp_path, ids_key="ids")] == ["jsonl", "megatron"]


def test_names_that_are_not_utf_8_are_escaped(tmp_path):
    folder = os.fsencode(tmp_path / "a")
    os.mkdir(folder)
    for name in (b"\xff\xfe.jsonl", "é.jsonl".encode(), b"\xff.csv"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b'{"text": "a"}\n')
    files = found(os.fsdecode(folder), os.fsdecode(os.path.join(folder, b"\xff\xfe.jsonl")))
    assert {file.name for file in files} == {"a/\\xff\\xfe.jsonl", "a/é.jsonl", "\\xff\\xfe.jsonl"}
    for text in [file.original for file in files] + files.ignored:
        text.encode()
    assert [len(list(read_chunks(file, 0, ReadConfig(), LIMIT))) for file in files] == [1, 1, 1]
