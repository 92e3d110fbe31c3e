"""What `inspect_set` says of a set is what a count over its plain arrays gives, and its samples are the rows."""

import dataclasses
import json
import math

import numpy as np
import pytest
from data_sets import EOS_ID, VOCAB_SIZE, make_set, read_columns

from mindspeed_ms.data.files import describe
from mindspeed_ms.data.inspect import inspect_set, padding_to_longest, summarise
from mindspeed_ms.data.manifest import read_manifest, write_manifest
from mindspeed_ms.data.tokenizer import open_tokenizer
from mindspeed_ms.errors import DataError

BUCKETS = {16: 40, 64: 25, 128: 7}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "set"
    make_set(folder, BUCKETS, mindrecord=True)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats") / "set"
    make_set(folder, BUCKETS, loss_mask=True)
    return folder


def words(ids) -> str:
    """What the tokenizer of data_sets writes: it joins words by spaces."""
    return " ".join("<eos>" if token == EOS_ID else f"w{token}" for token in ids)


def changed(folder, **values):
    """The set's manifest with other values, written anew."""
    kept = read_manifest(folder).model_dump(mode="json", exclude={"checksum", "format", "version"})
    return write_manifest(folder, {**kept, **values})


def test_totals_and_buckets_are_those_of_a_count_over_the_rows(plain):
    manifest = read_manifest(plain)
    found = inspect_set(plain, samples=0)
    everything = 0
    for bucket in found.buckets:
        columns = read_columns(plain, manifest, bucket.length)
        documents = sum(len(set(row) - {0}) for row in columns["document_ends"].tolist())
        tokens = int((columns["input_ids"] != 0).sum())
        assert (bucket.rows, bucket.documents, bucket.tokens) == (len(columns["input_ids"]), documents, tokens)
        assert bucket.padding_share == pytest.approx((columns["input_ids"] == 0).mean())
        everything += tokens
    assert [bucket.length for bucket in found.buckets] == list(BUCKETS)
    assert found.tokens == everything and found.rows == sum(BUCKETS.values())
    assert sum(bucket.tokens_share for bucket in found.buckets) == pytest.approx(1)
    assert sum(source.tokens_share for source in found.sources) == pytest.approx(1)


def test_an_inspection_is_json(plain):
    found = inspect_set(plain, samples=2)
    again = json.loads(json.dumps(dataclasses.asdict(found)))
    assert again["rows"] == found.rows and len(again["samples"]) == 2
    assert again["samples"][0]["documents"][0]["parts"][0]["answer"] is None


def test_samples_are_the_rows_document_by_document(plain):
    manifest = read_manifest(plain)
    found = inspect_set(plain, samples=1000)
    assert [(s.length, s.row) for s in found.samples] == [
        (n, row) for n, rows in BUCKETS.items() for row in range(rows)
    ]
    for sample in found.samples:
        columns = read_columns(plain, manifest, sample.length)
        ids, ends = columns["input_ids"][sample.row], columns["document_ends"][sample.row].tolist()
        cuts = sorted({0, *ends})
        texts = [words(ids[start:end]) for start, end in zip(cuts, cuts[1:], strict=False)]
        assert [document.parts[0].text for document in sample.documents] == texts
        assert sample.tokens == ends[-1] == sum(document.tokens for document in sample.documents)


def test_samples_are_drawn_by_the_seed_and_never_twice(plain):
    drawn = [[(s.length, s.row) for s in inspect_set(plain, samples=9, seed=seed).samples] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 9


def test_without_blocks_samples_come_from_the_mindrecord_files(plain, tmp_path):
    make_set(tmp_path / "set", BUCKETS, mindrecord=True)
    expected = inspect_set(tmp_path / "set", samples=5).samples
    for block in (tmp_path / "set").glob("*/*.block"):
        block.unlink()
    assert inspect_set(tmp_path / "set", samples=5).samples == expected
    assert not list((tmp_path / "set").glob("*/*.block"))


def test_answers_of_conversations_are_the_tokens_with_a_loss(chats):
    manifest = read_manifest(chats)
    for sample in inspect_set(chats, samples=20).samples:
        columns = read_columns(chats, manifest, sample.length)
        ids, mask = columns["input_ids"][sample.row], columns["loss_mask"][sample.row]
        parts = [part for document in sample.documents for part in document.parts]
        answers = " ".join(part.text for part in parts if part.answer)
        others = " ".join(part.text for part in parts if part.answer is False)
        real = np.arange(len(ids)) < sample.tokens
        assert answers == words(ids[real & (mask == 1)])
        assert others == words(ids[real & (mask == 0)])
        for document in sample.documents:
            assert all(a.answer != b.answer for a, b in zip(document.parts, document.parts[1:], strict=False))


def bins(*lengths: int) -> list[dict]:
    return [{"upto": n, "documents": lengths.count(n), "tokens": n * lengths.count(n)} for n in sorted(set(lengths))]


@pytest.mark.parametrize(
    ("overlong", "lengths", "pieces"),
    [
        ("split", [3, 10, 16, 16, 128], [3, 10, 16, 16, 128]),
        ("split", [5, 300], [5, 128, 128, 44]),
        ("truncate", [5, 300], [5, 128]),
        ("drop", [5, 100, 300], [5, 100]),
    ],
)
def test_padding_to_the_longest_is_that_of_one_document_a_row(tmp_path, overlong, lengths, pieces):
    make_set(tmp_path, BUCKETS)
    arrange = {"boundaries": list(BUCKETS), "overlong": overlong}
    manifest = changed(tmp_path, lengths=bins(*lengths), config={"arrange": arrange})
    longest = max(pieces)  # no row is longer than the set's, of 128
    expected = 1 - sum(pieces) / (len(pieces) * longest)
    assert padding_to_longest(manifest) == pytest.approx(expected)


def test_padding_to_the_longest_of_short_documents_goes_by_the_longest_document(tmp_path):
    make_set(tmp_path, BUCKETS)
    assert padding_to_longest(changed(tmp_path, lengths=bins(2, 4, 8))) == pytest.approx(1 - 14 / 24)


def test_what_cleaning_counted_is_told(plain, tmp_path):
    make_set(tmp_path, BUCKETS)
    manifest = changed(tmp_path, cleaning={"documents_read": 9, "exact_duplicates": 4, "near_duplicates": 1})
    assert summarise(tmp_path, manifest).cleaning["exact_duplicates"] == 4


def test_verify_finds_a_flipped_byte_of_a_file_that_a_plain_look_does_not_read(tmp_path):
    make_set(tmp_path, BUCKETS)
    inspect_set(tmp_path, verify=True)
    file = next(tmp_path.glob("bucket-00064/*.mindrecord"))
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    assert not inspect_set(tmp_path).verified
    with pytest.raises(DataError, match=file.name):
        inspect_set(tmp_path, verify=True)


def test_a_damaged_tokenizer_is_not_decoded_with(tmp_path):
    make_set(tmp_path, BUCKETS)
    file = tmp_path / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"w77", b"w78", 1))
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        inspect_set(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [("input_ids", VOCAB_SIZE, "vocabulary"), ("input_ids", -1, "vocabulary"), ("document_ends", 1 << 20, "ends")],
)
def test_a_damaged_row_is_named_and_never_decoded(tmp_path, column, value, said):
    manifest = make_set(tmp_path, {8: 1}, shards=1)
    bucket = manifest.buckets[0]
    file = tmp_path / bucket.shards[0].block.path
    numbers = np.fromfile(file, "<i4")
    numbers[0 if column == "input_ids" else bucket.length] = value
    numbers.tofile(file)
    with pytest.raises(DataError, match=rf"\.block: row 0: .*{said}.*damaged"):
        inspect_set(tmp_path)


def test_another_tokenizer_than_the_sets_is_an_error(tmp_path):
    make_set(tmp_path / "set", BUCKETS)
    own = tmp_path / "set" / "tokenizer.json"
    own.write_bytes(open_tokenizer(own).json)
    entry = read_manifest(tmp_path / "set").tokenizer.model_dump()
    changed(tmp_path / "set", tokenizer={**entry, "file": describe(tmp_path / "set", own).model_dump()})
    inspect_set(tmp_path / "set", tokenizer=own)

    other = tmp_path / "tokenizer.json"
    other.write_bytes(own.read_bytes().replace(b'"w77"', b'"v77"'))
    with pytest.raises(DataError, match=rf"{other}: a tokenizer with SHA-256 .* prepare the set again"):
        inspect_set(tmp_path / "set", tokenizer=other)


def test_an_empty_set_is_described_without_dividing_by_nothing(tmp_path):
    make_set(tmp_path, {8: 0})
    found = inspect_set(tmp_path)
    assert (found.rows, found.padding_to_longest, found.buckets[0].padding_share) == (0, 0.0, 0.0)
    assert found.samples == [] and not math.isnan(found.padding_share)


def test_half_a_set_is_not_inspected(tmp_path):
    with pytest.raises(DataError, match="no prepared set"):
        inspect_set(tmp_path)
