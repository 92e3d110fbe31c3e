"""What `prepare` leaves out and counts: near copies, overlong documents, and all that can be wrong with files."""

import gzip
import json
import random
import zlib

import pytest
from data_corpus import files_of, noise, pieces_of, sentences
from tokenizers import Tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import read_manifest
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import DataError


def texts(out):
    """The documents of a set, sorted."""
    library = Tokenizer.from_file(str(out / "tokenizer.json"))
    return sorted(library.decode(list(ids[:-1])) for ids in pieces_of(out))


def counted(manifest):
    return {name: count for name, count in manifest.cleaning.items() if count}


def shingles(text):
    words = text.split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def similarity(one, other):
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


@pytest.mark.parametrize("shard_tokens", [1024, 1 << 20])
def test_near_copies_of_earlier_documents_are_left_out_and_counted(tmp_path, tokenizer, shard_tokens):
    pytest.importorskip("datasketch")
    rng = random.Random(7)
    originals = [" ".join(f"w{rng.randrange(10_000)}" for _ in range(60)) for _ in range(40)]
    changed = [text.replace(text.split()[30], "other") for text in originals[::2]]
    copies = [originals[3], changed[2]]  # a near copy's copy is an exact one
    files = {"a.txt": originals, "b.txt": [*changed, "short one"], "c.txt": [*copies, "another"]}
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines))
    everything = [*originals, *changed, "short one", "another"]
    pairs = [(i, j) for j in range(60) for i in range(j) if similarity(everything[i], everything[j]) > 0.1]
    assert pairs == [(2 * k, 40 + k) for k in range(20)]
    assert all(similarity(everything[i], everything[j]) > 0.8 for i, j in pairs)
    inputs = [tmp_path / name for name in files]
    for threshold, near in ((0.5, 20), (0.97, 0), (None, 0)):
        clean = {"near_duplicates": threshold}
        config = PrepareConfig.parse({"clean": clean, "shard_tokens": shard_tokens})
        manifest = prepare(inputs, tmp_path / f"set{threshold}", tokenizer, config, workers=1)
        found = {"documents_read": 64, "exact_duplicates": 2, "near_duplicates": near}
        assert counted(manifest) == {name: count for name, count in found.items() if count}
        kept = [*originals, *([] if near else changed), "short one", "another"]
        assert texts(tmp_path / f"set{threshold}") == sorted(kept)
        assert [source.documents for source in manifest.sources] == [40, 1 if near else 21, 1]


@pytest.mark.parametrize("mode", ["bucket", "pack"])
@pytest.mark.parametrize(
    ("overlong", "rule", "pieces"),
    [
        ("split", "overlong_split", [3, 64, 64, 1, 64, 64, 2, 10]),
        ("truncate", "overlong_truncated", [3, 64, 64, 64, 10]),
        ("drop", "overlong_dropped", [3, 64, 10]),
    ],
)
def test_documents_longer_than_a_row_are_split_cut_or_dropped_and_counted(
    tmp_path, tokenizer, mode, overlong, rule, pieces
):
    documents = [list(range(100 * k, 100 * k + n)) for k, n in enumerate((3, 64, 65, 130, 10))]
    documents = [[token % 399 + 1 for token in ids] for ids in documents]
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    arrange = {"mode": mode, "max_length": 64, "overlong": overlong}
    config = PrepareConfig.parse({"read": {"ids_key": "ids"}, "arrange": arrange})
    manifest = prepare([file], tmp_path / "set", tokenizer, config, workers=1)
    assert counted(manifest) == {"documents_read": 5, rule: 2}
    assert manifest.documents == (3 if overlong == "drop" else 5)
    parts = [tuple(ids[at : at + 64]) for ids in documents for at in range(0, len(ids), 64)]
    if overlong == "drop":
        parts = [tuple(ids) for ids in documents if len(ids) <= 64]
    elif overlong == "truncate":
        parts = [tuple(ids[:64]) for ids in documents]
    assert [len(part) for part in parts] == pieces
    assert sorted(pieces_of(tmp_path / "set")) == sorted(parts)


def write_everything_bad(folder):
    """A corpus with all that can be wrong in it; its documents as they are kept, and what has to be counted."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    lines = noise(60_000, seed=3)
    lines = [f"{number} {lines[60 * number : 60 * number + 59]}" for number in range(1000)]
    packed = gzip.compress("\n".join(lines).encode())[:40_000]
    unpacked = zlib.decompressobj(wbits=31).decompress(packed).decode().split("\n")[:-1]
    table = [f"row {number} {noise(50, seed=number)}" for number in range(300)]
    pq.write_table(pa.table({"text": table}), folder / "06.parquet", row_group_size=100, use_dictionary=False)
    place = pq.ParquetFile(folder / "06.parquet").metadata.row_group(1).column(0).data_page_offset
    broken = bytearray((folder / "06.parquet").read_bytes())
    broken[place : place + 64] = bytes(64)
    contents = {
        "00.txt": b"first\r\nsecond\n\nthird",
        "01.txt": b"with a \0 NUL and \0 one more\nand a \x07 bell\nboth \0 \x1b of them\n",
        "02.txt": b"valid here\nbad \xff\xfe here\nvalid after\n",
        "03.txt": b"before the long line\n" + b"x" * (50 << 20) + b"\nafter the long line\n",
        "04.txt": b"",
        "04.jsonl": b"",
        "04.txt.gz": b"",
        "05.txt.gz": packed,
        "06.parquet": broken,
        "07.txt": "ключ in UTF-8\n".encode() + "café in Latin-1\n".encode("latin-1") + "你好 in GB".encode("gb18030"),
        "08.txt": "sixteen bits 水\nand a second 行".encode("utf-16"),
        "09.jsonl": b'{"text": "an object"}\n{"text": "cut o\n\n[1]\n{"other": 1}\n{"text": null}\n'
        b'{"text": "half \\ud800 a pair"}\n{"text": "third"}\n{"text": "  "}\n{"text": "' + b"y" * 1001 + b'"}\n',
        "10.txt": b"second\nthe very last",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    kept = ["first", "second", "third", "with a  NUL and  one more", "and a  bell", "both   of them"]
    kept += ["valid here", "valid after", "before the long line", "after the long line", *unpacked, *table[:100]]
    kept += ["ключ in UTF-8", "sixteen bits 水", "and a second 行", "an object", "the very last"]
    assert 100 < len(unpacked) < 900
    counts = {
        "documents_read": 4 + 3 + 3 + 3 + len(unpacked) + 100 + 3 + 2 + 9 + 2,
        "nul_bytes_removed": 2,
        "control_characters_removed": 2,
        "invalid_utf8": 1 + 2 + 1,
        "too_long": 1 + 1,
        "empty": 1 + 1,
        "bad_json": 2,
        "no_text": 2,
        "exact_duplicates": 2,
        "damaged_files": 3,
    }
    return kept, counts


EVERYTHING = {"clean": {"max_chars": 1000}, "arrange": {"max_length": 512}, "shard_tokens": 4096}


def test_of_a_corpus_with_everything_bad_in_it_all_that_is_good_is_kept_and_the_rest_counted(tmp_path, tokenizer):
    kept, counts = write_everything_bad(tmp_path / "corpus")
    config = PrepareConfig.parse({**EVERYTHING, "read": {"skip_damaged": True}})
    manifest = prepare([tmp_path / "corpus"], tmp_path / "set", tokenizer, config, workers=2)
    assert texts(tmp_path / "set") == sorted(kept)
    assert counted(manifest) == counts
    assert manifest.documents == len(kept) == sum(source.documents for source in manifest.sources)


def test_of_a_corpus_with_everything_bad_in_it_each_damaged_file_is_named(tmp_path, tokenizer):
    write_everything_bad(tmp_path / "corpus")
    config = PrepareConfig.parse(EVERYTHING)
    for name in ("04.txt.gz", "05.txt.gz", "06.parquet"):
        with pytest.raises(DataError) as caught:
            prepare([tmp_path / "corpus"], tmp_path / f"set-{name}", tokenizer, config, workers=1)
        assert str(tmp_path / "corpus" / name) in str(caught.value) and "\n" not in str(caught.value)
        (tmp_path / "corpus" / name).unlink()
    manifest = prepare([tmp_path / "corpus"], tmp_path / "set", tokenizer, config, workers=1)
    assert manifest.cleaning["damaged_files"] == 0


@pytest.mark.slow
def test_ray_makes_the_same_bytes_as_processes_here(tmp_path, tokenizer):
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        ray.shutdown()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join([*sentences(20_000), *sentences(20_000, seed=1), "not \ufffd bad", "nul \0"]))
    config = PrepareConfig.parse({"arrange": {"max_length": 64, "join": True}, "shard_tokens": 65536})
    for engine in ("local", "ray"):
        prepare([corpus], tmp_path / engine, tokenizer, config, workers=2, engine=engine)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    assert len(read_manifest(tmp_path / "ray").buckets[-1].shards) > 2
