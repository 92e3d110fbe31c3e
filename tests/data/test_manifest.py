"""A manifest says everything of a set, and nothing that was changed or does not fit is believed."""

import json

import pytest

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import NAME, read_manifest, write_manifest
from mindspeed_ms.errors import DataError


def entry(path, size=0):
    return {"path": path, "bytes": size, "sha256": "0" * 64}


def values(**changes):
    """A set of one bucket with 2 rows of 4 tokens, room for 1 document each: 4 * 2 * (4 + 1) bytes of block."""
    shard = {
        "rows": 2,
        "mindrecord": entry("bucket-00004/00000.mindrecord"),
        "index": entry("bucket-00004/00000.mindrecord.db"),
        "block": entry("bucket-00004/00000.block", 40),
    }
    return {
        "made_by": "a test",
        "config": PrepareConfig().model_dump(mode="json"),
        "corpus": "0" * 64,
        "columns": ["input_ids", "document_ends"],
        "tokenizer": {
            "file": entry("tokenizer.json"),
            "vocab_size": 9,
            "pad_id": 0,
            "bos_id": None,
            "eos_id": 1,
            "identity": "0" * 64,
        },
        "documents": 2,
        "tokens": 6,
        "rows": 2,
        "padding_share": 0.25,
        "cleaning": {},
        "sources": [{"name": "a.txt", "documents": 2, "tokens": 6, "bytes": 20}],
        "lengths": [{"upto": 3, "documents": 2, "tokens": 6}],
        "buckets": [{"length": 4, "ends": 1, "rows": 2, "documents": 2, "tokens": 6, "shards": [shard]}],
        **changes,
    }


def test_what_is_written_is_read(tmp_path):
    written = write_manifest(tmp_path, values())
    assert read_manifest(tmp_path) == written
    assert [file.path for file in written.files()][0] == "tokenizer.json" and len(written.files()) == 4
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_every_flipped_byte_is_found(tmp_path):
    write_manifest(tmp_path, values())
    path = tmp_path / NAME
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(DataError, match="manifest"):
            read_manifest(tmp_path)
    path.write_bytes(good[:-1])
    with pytest.raises(DataError, match="manifest"):
        read_manifest(tmp_path)


def test_no_manifest_is_no_set(tmp_path):
    with pytest.raises(DataError, match="prepare it first"):
        read_manifest(tmp_path)
    (tmp_path / ".work").mkdir()
    with pytest.raises(DataError, match="did not end: run it again"):
        read_manifest(tmp_path)


def rewrite(tmp_path, change):
    """A manifest with a right checksum whose content was changed."""
    import hashlib

    write_manifest(tmp_path, values())
    content = json.loads((tmp_path / NAME).read_text())
    change(content)
    content["checksum"] = "0" * 64
    text = json.dumps(content, indent=1)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / NAME).write_text(text.replace("0" * 64, checksum, 1))


def bucket(content):
    return content["buckets"][0]


LIES = {
    "another version": (lambda c: c.update(version=2), "made for version 2"),
    "another format": (lambda c: c.update(format="x"), "format is 'x'"),
    "an unknown key": (lambda c: c.update(colums=1), "unknown key 'colums'; did you mean 'columns'"),
    "a missing key": (lambda c: c.pop("rows"), "'rows' is missing"),
    "a path that leads out": (lambda c: c["tokenizer"]["file"].update(path="../x"), "stays in the folder"),
    "an absolute path": (lambda c: c["tokenizer"]["file"].update(path="/etc/passwd"), "stays in the folder"),
    "a path twice": (lambda c: c["tokenizer"]["file"].update(path="bucket-00004/00000.block"), "names a file twice"),
    "rows that are not there": (lambda c: bucket(c).update(rows=3), "3 rows, its shards have 2"),
    "other totals": (lambda c: c.update(rows=3), "rows is 3, its buckets have 2"),
    "another share of padding": (lambda c: c.update(padding_share=0.0), "padding_share is 0.0"),
    "documents that no source has": (lambda c: c["sources"][0].update(documents=3), "documents of sources are 3"),
    "tokens that no source has": (lambda c: c["sources"][0].update(tokens=7), "tokens of sources are 7"),
    "another histogram": (lambda c: c.update(lengths=[]), "documents of lengths are 0"),
    "fewer documents than rows": (lambda c: bucket(c).update(documents=1), "1 documents of 6 tokens do not fit 2 rows"),
    "a padding token out of the vocabulary": (lambda c: c["tokenizer"].update(pad_id=9), "outside the vocabulary of 9"),
    "a number without end": (lambda c: c["lengths"][0].update(tokens=10**400), "tokens"),
    "more tokens than places": (lambda c: bucket(c).update(tokens=9), "9 tokens"),
    "a block of another size": (lambda c: bucket(c)["shards"][0]["block"].update(bytes=80), "has 80 bytes"),
    "a huge row": (lambda c: bucket(c).update(length=1 << 40), "length"),
    "negative rows": (lambda c: bucket(c)["shards"][0].update(rows=-2), "rows"),
    "other columns": (lambda c: c.update(columns=["input_ids"]), "columns"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(tmp_path, lie):
    change, message = LIES[lie]
    rewrite(tmp_path, change)
    with pytest.raises(DataError, match=message) as error:
        read_manifest(tmp_path)
    assert "\n" not in str(error.value)


def test_an_honest_rewrite_is_read(tmp_path):
    rewrite(tmp_path, lambda content: None)
    assert read_manifest(tmp_path).rows == 2
