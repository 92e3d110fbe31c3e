"""Sets become pairs of .bin and .idx that hold their documents, and pairs become sets that hold theirs."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from data_sets import EOS_ID, VOCAB_SIZE, make_set, read_columns

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.convert import convert
from mindspeed_ms.data.manifest import read_manifest, write_manifest
from mindspeed_ms.errors import ConfigError, DataError

BUCKETS = {16: 30, 64: 12}


def documents_of(folder: Path) -> list[list[int]]:
    """A set's documents in the order of its rows, by plain loops over its plain arrays."""
    manifest = read_manifest(folder)
    found = []
    for bucket in manifest.buckets:
        if not bucket.rows:
            continue
        columns = read_columns(folder, manifest, bucket.length)
        for ids, ends in zip(columns["input_ids"].tolist(), columns["document_ends"].tolist(), strict=True):
            start = 0
            for end in ends:
                if end > start:
                    found.append(ids[start:end])
                start = end
    return found


def read_pair(prefix: Path) -> tuple[list[list[int]], int]:
    """The documents of a pair and its type code, read as the format says, byte by byte."""
    index, tokens = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    magic, version, code, sequences, entries = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    letter = {8: "H", 4: "i"}[code]
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    offsets = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
    assert struct.unpack_from(f"<{entries}q", index, 34 + 12 * sequences) == tuple(range(sequences + 1))
    pairs = zip(lengths, offsets, strict=True)
    return [list(struct.unpack_from(f"<{length}{letter}", tokens, at)) for length, at in pairs], code


def write_pair(prefix: Path, documents: list[list[int]]) -> None:
    lengths = [len(document) for document in documents]
    offsets = (4 * (np.cumsum(lengths) - lengths)).tolist()
    count = len(documents)
    Path(f"{prefix}.bin").write_bytes(b"".join(struct.pack(f"<{len(d)}i", *d) for d in documents))
    Path(f"{prefix}.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, count, count + 1)
        + struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *offsets, *range(count + 1))
    )


@pytest.mark.parametrize("name", ["pair", "pair.bin", "pair.idx"])
def test_a_pair_holds_the_documents_of_a_set_in_the_order_of_its_rows(tmp_path, name):
    make_set(tmp_path / "set", BUCKETS)
    told = []
    done = convert(tmp_path / "set", tmp_path / name, progress=lambda *what: told.append(what))
    documents, code = read_pair(tmp_path / "pair")
    assert documents == documents_of(tmp_path / "set")
    assert code == 8  # uint16, since the vocabulary is small
    assert (done.made, done.out, done.documents) == ("pair", tmp_path / "pair", len(documents))
    assert done.tokens == sum(map(len, documents)) and done.split == 0 and not done.answers_lost
    assert told[-1] == ("write", sum(BUCKETS.values()), sum(BUCKETS.values()), "rows")


def test_ids_of_a_large_vocabulary_are_written_as_int32(tmp_path):
    make_set(tmp_path / "set", BUCKETS)
    kept = read_manifest(tmp_path / "set").model_dump(mode="json", exclude={"checksum", "format", "version"})
    kept["tokenizer"]["vocab_size"] = 150_000
    write_manifest(tmp_path / "set", kept)
    convert(tmp_path / "set", tmp_path / "pair")
    documents, code = read_pair(tmp_path / "pair")
    assert code == 4 and documents == documents_of(tmp_path / "set")


def test_it_is_told_that_documents_were_split_and_that_answers_are_lost(tmp_path):
    make_set(tmp_path / "set", BUCKETS, loss_mask=True)
    kept = read_manifest(tmp_path / "set").model_dump(mode="json", exclude={"checksum", "format", "version"})
    pieces = kept["documents"]
    kept["documents"] -= 3
    for parts in (kept["sources"], kept["lengths"]):
        max(parts, key=lambda part: part["documents"])["documents"] -= 3
    write_manifest(tmp_path / "set", kept)
    done = convert(tmp_path / "set", tmp_path / "pair")
    assert (done.documents, done.split, done.answers_lost) == (pieces, 3, True)


def test_blocks_that_are_missing_do_no_harm(tmp_path):
    make_set(tmp_path / "set", BUCKETS, mindrecord=True)
    expected = documents_of(tmp_path / "set")
    for block in (tmp_path / "set").glob("*/*.block"):
        block.unlink()
    convert(tmp_path / "set", tmp_path / "pair")
    assert read_pair(tmp_path / "pair")[0] == expected


def test_a_damaged_set_makes_no_pair(tmp_path):
    make_set(tmp_path / "set", BUCKETS)
    block = sorted((tmp_path / "set").glob("*/*.block"))[-1]
    data = bytearray(block.read_bytes())
    data[40] ^= 1
    block.write_bytes(data)
    (tmp_path / "to").mkdir()
    with pytest.raises(DataError, match=block.name):
        convert(tmp_path / "set", tmp_path / "to" / "pair")
    assert not list((tmp_path / "to").iterdir())


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_an_existing_pair_is_left_alone(tmp_path, suffix):
    make_set(tmp_path / "set", BUCKETS)
    there = tmp_path / f"pair{suffix}"
    there.write_bytes(b"mine")
    with pytest.raises(ConfigError, match=f"{there}: is there already"):
        convert(tmp_path / "set", tmp_path / "pair")
    assert there.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "given", [{"tokenizer": "t"}, {"config": PrepareConfig()}, {"workers": 2}], ids=lambda g: [*g][0]
)
def test_what_only_a_pair_needs_is_refused_for_a_set(tmp_path, given):
    make_set(tmp_path / "set", BUCKETS)
    with pytest.raises(ConfigError, match="leave tokenizer, config and workers out"):
        convert(tmp_path / "set", tmp_path / "pair", **given)


def test_a_source_that_is_neither_is_an_error_that_says_what_could_be(tmp_path):
    (tmp_path / "half.bin").write_bytes(b"")
    for name in ("nothing", "half.bin"):
        with pytest.raises(DataError, match=f"{name}: no prepared set and no .bin with its .idx"):
            convert(tmp_path / name, tmp_path / "out")


def test_a_pair_without_a_tokenizer_is_an_error(tmp_path):
    write_pair(tmp_path / "pair", [[2, 3, EOS_ID]])
    with pytest.raises(ConfigError, match="give the tokenizer that made them"):
        convert(tmp_path / "pair", tmp_path / "set")


@pytest.fixture
def tokenizer(tmp_path):
    make_set(tmp_path / "other", {8: 1})
    return tmp_path / "other" / "tokenizer.json"


def test_a_set_of_a_pair_holds_all_its_documents_as_they_are(tmp_path, tokenizer):
    random = np.random.default_rng(0)
    documents = [[*random.integers(2, VOCAB_SIZE, n).tolist(), EOS_ID] for n in random.integers(1, 100, 60)]
    documents += [documents[0], [5], [5]]  # copies, and a document without EOS
    write_pair(tmp_path / "pair", documents)
    config = PrepareConfig.parse({"clean": {"dedup": False}, "arrange": {"boundaries": [32, 128], "join": True}})
    done = convert(tmp_path / "pair.idx", tmp_path / "set", tokenizer, config, workers=1)
    assert sorted(documents_of(tmp_path / "set")) == sorted(documents)
    assert (done.made, done.documents, done.split) == ("set", len(documents), 0)

    convert(tmp_path / "set", tmp_path / "again")
    assert sorted(read_pair(tmp_path / "again")[0]) == sorted(documents)


def test_without_a_configuration_copies_are_kept(tmp_path, tokenizer):
    write_pair(tmp_path / "pair", [[7, 8, EOS_ID]] * 4)
    done = convert(tmp_path / "pair", tmp_path / "set", tokenizer, workers=1)
    assert documents_of(tmp_path / "set") == [[7, 8, EOS_ID]] * 4
    assert done.manifest.documents == 4


def test_an_id_beyond_the_tokenizers_vocabulary_is_an_error(tmp_path, tokenizer):
    write_pair(tmp_path / "pair", [[7, EOS_ID], [VOCAB_SIZE, EOS_ID]])
    with pytest.raises(DataError, match=str(VOCAB_SIZE)):
        convert(tmp_path / "pair", tmp_path / "set", tokenizer, workers=1)


@pytest.mark.parametrize("out", [".", "folder", "/dev/null", "folder/.bin", "pipe"])
def test_a_pair_needs_a_name(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path / "set", BUCKETS)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="is no name for a pair"):
        convert("set", out)
    assert sorted(tmp_path.rglob("*")) == before
