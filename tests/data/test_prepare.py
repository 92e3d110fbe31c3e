"""`prepare`: every document once, the same bytes whatever happens on the way, and clear words when it cannot go on."""

import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from data_corpus import files_of, sentences, write_chat_model, write_tokenizer
from tokenizers import Tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import read_manifest
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import ConfigError, DataError, MindSpeedError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(sentences(600)))
    lines = [json.dumps({"text": text}) for text in sentences(300, seed=1)]
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    return folder


def small(**arrange):
    return PrepareConfig.parse({"arrange": {"max_length": 64, **arrange}, "shard_tokens": 4096})


def documents(out):
    """The documents of a set by its blocks and manifest alone, as tuples of ids."""
    manifest = read_manifest(out)
    found = []
    for bucket in manifest.buckets:
        for shard in bucket.shards:
            flat = np.fromfile(out / shard.block.path, dtype="<i4")
            ids = flat[: shard.rows * bucket.length].reshape(shard.rows, bucket.length)
            ends = flat[shard.rows * bucket.length :].reshape(shard.rows, bucket.ends)
            for row, stops in zip(ids, ends.tolist(), strict=True):
                starts = [0, *stops[:-1]]
                found += [tuple(row[a:b].tolist()) for a, b in zip(starts, stops, strict=True) if b > a]
                assert (row[stops[-1] :] == manifest.tokenizer.pad_id).all()
    return found


ARRANGEMENTS = [{}, {"join": True}, {"boundaries": [16, 32, 64], "max_length": None}, {"mode": "pack"}]


@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=str)
def test_every_document_is_in_the_set_once_with_its_tokens(tmp_path, corpus, tokenizer, arrange):
    manifest = prepare([corpus], tmp_path / "set", tokenizer, small(**arrange), workers=2)
    library = Tokenizer.from_file(str(tokenizer))
    texts = sentences(600) + sentences(300, seed=1)
    wanted = Counter()
    for encoding in library.encode_batch(texts, add_special_tokens=False):
        ids = [*encoding.ids, 0]
        wanted.update(tuple(ids[i : i + 64]) for i in range(0, len(ids), 64))
    assert Counter(documents(tmp_path / "set")) == wanted
    tokens = sum(len(ids) * count for ids, count in wanted.items())
    places = sum(bucket.rows * bucket.length for bucket in manifest.buckets)
    assert (manifest.tokens, manifest.documents) == (tokens, 900)
    assert manifest.padding_share == pytest.approx(1 - tokens / places)
    assert [source.documents for source in manifest.sources] == [600, 300]
    assert [source.name for source in manifest.sources] == ["corpus/a.txt", "corpus/b.jsonl.gz"]
    assert sum(part.documents for part in manifest.lengths) == 900
    assert manifest.lengths[-1].upto == max(len(e.ids) + 1 for e in library.encode_batch(texts)), (
        "exact, not a bin's edge"
    )
    assert len(manifest.buckets[-1].shards) > 1, "several segments"
    named = {entry.path for entry in manifest.files()} | {"manifest.json"}
    assert set(files_of(tmp_path / "set")) == named, "nothing else is left in the folder"


def test_a_stream_is_the_corpus_end_to_end(tmp_path, corpus, tokenizer):
    manifest = prepare([corpus / "a.txt"], tmp_path / "set", tokenizer, small(mode="stream"), workers=1)
    library = Tokenizer.from_file(str(tokenizer))
    encoded = library.encode_batch(sentences(600), add_special_tokens=False)
    wanted = [token for encoding in encoded for token in [*encoding.ids, 0]]
    assert [token for part in documents(tmp_path / "set") for token in part] == wanted
    (bucket,) = manifest.buckets
    assert bucket.rows - len(bucket.shards) <= len(wanted) // 64 <= bucket.rows


def test_the_boundaries_are_those_that_pad_least(tmp_path, corpus, tokenizer):
    """Beside every choice of three boundaries there is."""
    from itertools import combinations

    manifest = prepare([corpus / "a.txt"], tmp_path / "set", tokenizer, small(buckets=3, max_length=40), workers=1)
    lengths = Counter(len(ids) for ids in documents(tmp_path / "set"))
    best = min(
        sum(count * (next(b for b in (*pair, max(lengths)) if b >= n) - n) for n, count in lengths.items())
        for pair in combinations(sorted(lengths)[:-1], 2)
    )
    assert sum(bucket.rows * bucket.length - bucket.tokens for bucket in manifest.buckets) == best


def test_workers_do_not_change_the_bytes(tmp_path, corpus, tokenizer):
    for workers in (1, 2):
        prepare([corpus], tmp_path / f"set{workers}", tokenizer, small(), workers=workers)
    assert files_of(tmp_path / "set1") == files_of(tmp_path / "set2")


def test_copies_and_unusable_documents_are_left_out_and_counted(tmp_path, tokenizer):
    text = tmp_path / "x.txt"
    text.write_bytes(
        b"one text\n\nanother\none text\nwith a \0 in it\nbad \xff\xfe\none text\nlong " + b"x" * 500 + b"\n"
    )
    config = PrepareConfig.parse({"clean": {"max_chars": 100}, "arrange": {"max_length": 64}})
    manifest = prepare([text], tmp_path / "set", tokenizer, config, workers=1)
    library = Tokenizer.from_file(str(tokenizer))
    expected = ["one text", "another", "with a  in it"]
    assert sorted(library.decode(list(ids[:-1])) for ids in documents(tmp_path / "set")) == sorted(expected)
    counted = {name: count for name, count in manifest.cleaning.items() if count}
    assert counted == {
        "documents_read": 8,
        "empty": 1,
        "exact_duplicates": 2,
        "nul_bytes_removed": 1,
        "invalid_utf8": 1,
        "too_long": 1,
    }


def test_conversations_are_learnt_where_the_assistant_speaks(tmp_path):
    model = write_chat_model(tmp_path / "model")
    turns = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "was calm"}]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": turns}) + "\n" + json.dumps({"messages": turns * 2}) + "\n")
    config = PrepareConfig.parse({"read": {"messages_key": "messages"}, "arrange": {"mode": "pack", "max_length": 256}})
    manifest = prepare([file], tmp_path / "set", model, config, workers=1)
    assert manifest.columns == ["input_ids", "document_ends", "loss_mask"]
    (bucket,) = manifest.buckets
    (shard,) = bucket.shards
    flat = np.fromfile(tmp_path / "set" / shard.block.path, dtype="<i4")
    ids, mask = flat[:256], flat[256 + bucket.ends :]
    library = Tokenizer.from_file(str(model / "tokenizer.json"))
    said = library.decode(ids[mask == 1].tolist(), skip_special_tokens=False)
    assert said.replace("\n", "") == "was calm</s>" * 3


def test_a_finished_set_is_left_alone_and_another_one_is_not_overwritten(tmp_path, corpus, tokenizer):
    out = tmp_path / "set"
    first = prepare([corpus], out, tokenizer, small(), workers=1)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert prepare([corpus], out, tokenizer, small(), workers=2) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times
    with pytest.raises(DataError, match="set of another configuration; choose another folder, or --restart"):
        prepare([corpus], out, tokenizer, small(buckets=2), workers=1)
    with pytest.raises(DataError, match="set of another corpus"):
        prepare([corpus / "a.txt"], out, tokenizer, small(), workers=1)
    other = tmp_path / "other.json"
    other.write_text(Path(tokenizer).read_text().replace("</s>", "<end>"))
    with pytest.raises(DataError, match="set of another tokenizer"):
        prepare([corpus], out, other, small(), workers=1)
    assert read_manifest(out) == first
    again = prepare([corpus], out, tokenizer, small(buckets=2), workers=1, restart=True)
    prepare([corpus], tmp_path / "fresh", tokenizer, small(buckets=2), workers=1)
    assert again == read_manifest(out) and files_of(out) == files_of(tmp_path / "fresh")


def test_a_folder_with_other_things_in_it_is_not_touched(tmp_path, corpus, tokenizer):
    out = tmp_path / "set"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(DataError, match=r"holds 'thesis\.tex', which is not of a set"):
        prepare([corpus], out, tokenizer, small(), workers=1)
    assert files_of(out) == {"thesis.tex": b"precious"}
    with pytest.raises(DataError, match="is a file"):
        prepare([corpus], out / "thesis.tex", tokenizer, small(), workers=1)


def test_a_set_inside_of_its_corpus_or_around_it_is_refused(tmp_path, corpus, tokenizer):
    with pytest.raises(ConfigError, match="lie in one another"):
        prepare([corpus], corpus / "set", tokenizer, small(), workers=1)
    with pytest.raises(ConfigError, match="lie in one another"):
        prepare([corpus / "a.txt"], corpus, tokenizer, small(), workers=1)
    assert sorted(files_of(corpus)) == ["a.txt", "b.jsonl.gz"]


def test_a_context_shorter_than_the_rows_is_refused(tmp_path, corpus):
    model = write_chat_model(tmp_path / "model")
    (model / "config.json").write_text(json.dumps({"vocab_size": 400, "max_position_embeddings": 48}))
    with pytest.raises(ConfigError, match="max_length: rows of 64 tokens, the model's context is 48"):
        prepare([corpus], tmp_path / "set", model, small(), workers=1)
    config = PrepareConfig.parse({"arrange": {"boundaries": [16, 49]}})
    with pytest.raises(ConfigError, match="boundaries: rows of 49 tokens, the model's context is 48"):
        prepare([corpus], tmp_path / "set", model, config, workers=1)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("bad", [-1, 400, 1 << 40])
def test_a_token_id_outside_of_the_vocabulary_names_its_document(tmp_path, tokenizer, bad):
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in ([1, 2], [3, bad, 4])))
    config = PrepareConfig.parse({"read": {"ids_key": "ids"}, "arrange": {"max_length": 64}})
    with pytest.raises(MindSpeedError, match=rf"ids\.jsonl: record 2: token id {bad} is outside the vocabulary of 400"):
        prepare([file], tmp_path / "set", tokenizer, config, workers=1)


def test_no_documents_is_an_error(tmp_path, tokenizer):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match="no document is left after cleaning"):
        prepare([tmp_path / "empty.txt"], tmp_path / "set", tokenizer, small(), workers=1)


@pytest.mark.parametrize("skip", [False, True])
def test_a_damaged_file_is_named_and_the_rest_is_kept_if_asked(tmp_path, corpus, tokenizer, skip):
    good = (corpus / "b.jsonl.gz").read_bytes()
    (corpus / "a2.jsonl.gz").write_bytes(good[: len(good) // 2])
    config = PrepareConfig.parse({"read": {"skip_damaged": skip}, "arrange": {"max_length": 64}, "shard_tokens": 4096})
    if not skip:
        with pytest.raises(DataError, match=r"a2\.jsonl\.gz"):
            prepare([corpus], tmp_path / "set", tokenizer, config, workers=1)
        # What was done is used once the file is mended; it is another corpus then, so the folder is begun anew.
        (corpus / "a2.jsonl.gz").unlink()
        assert prepare([corpus], tmp_path / "set", tokenizer, config, workers=1, restart=True).documents == 900
        return
    manifest = prepare([corpus], tmp_path / "set", tokenizer, config, workers=1)
    assert manifest.cleaning["damaged_files"] == 1
    assert manifest.sources[-1].documents + manifest.sources[1].documents == 300, "copies of a2's are found in b"


PROGRAM = """
import os, shutil, signal, sys
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import readers
from mindspeed_ms.data.prepare import prepare

# Before each of these the process may be killed: sys.argv[4] says before which call.
calls = 0
def counted(function):
    def call(*arguments, **more):
        global calls
        calls += 1
        if calls == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call
for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "unlink"), (shutil, "rmtree")):
    setattr(module, name, counted(getattr(module, name)))
readers.CHUNK_RECORDS = 40  # many chunks, so that segments end inside of files
config = PrepareConfig.parse({"arrange": {"max_length": 64, "join": True}, "shard_tokens": 2048})
prepare([sys.argv[1]], sys.argv[2], sys.argv[3], config, workers=2, restart="restart" in sys.argv)
print(calls)
"""


def start(corpus, out, tokenizer, kill=0, *more):
    command = [sys.executable, "-c", PROGRAM, str(corpus), str(out), str(tokenizer), str(kill), *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes)


def test_a_kill_at_any_time_changes_nothing(tmp_path, corpus, tokenizer):
    """MINDSPEED_MS_KILLS kills (50 without it): most before a call that changes the disk, others at any time.

    In groups of five on one folder, then one run to the end.
    """
    began = time.monotonic()
    process = start(corpus, tmp_path / "clean", tokenizer)
    points = int(process.communicate()[0])
    seconds = time.monotonic() - began
    assert points > 100
    wanted = files_of(tmp_path / "clean")
    assert len(read_manifest(tmp_path / "clean").buckets[0].shards) > 3, "several segments"
    rng = random.Random(int(os.environ.get("MINDSPEED_MS_SEED", "0")))
    kills = int(os.environ.get("MINDSPEED_MS_KILLS", "50"))
    died = 0
    for group in range(-(-kills // 5)):
        out = tmp_path / f"killed{group}"
        for kill in range(5):
            process = start(corpus, out, tokenizer, rng.randint(1, points) if kill else 0)
            if not kill:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=rng.uniform(0.1, 1) * seconds)
                process.kill()
            _, error = process.communicate()
            assert process.returncode in (0, -signal.SIGKILL), error
            died += process.returncode != 0
            if not (out / "manifest.json").exists():
                with pytest.raises(DataError, match="no manifest.json in it"):
                    read_manifest(out)
        last = start(corpus, out, tokenizer)
        _, error = last.communicate()
        assert last.returncode == 0, error
        assert files_of(out) == wanted
    assert died >= kills // 2


def test_a_kill_while_a_set_is_thrown_away_leaves_none_that_is_wrong(tmp_path, corpus, tokenizer):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences(50, seed=9)))
    process = start(other, tmp_path / "clean", tokenizer)
    assert process.wait() == 0
    wanted = files_of(tmp_path / "clean")
    for kill in (1, 2, 3, 5, 8, 13, 20):
        out = tmp_path / f"set{kill}"
        assert start(corpus, out, tokenizer).wait() == 0
        process = start(other, out, tokenizer, kill, "restart")
        assert process.wait() == -signal.SIGKILL
        last = start(other, out, tokenizer, 0, "restart")
        _, error = last.communicate()
        assert last.returncode == 0, error
        assert files_of(out) == wanted


def test_finished_segments_are_not_tokenized_again(tmp_path, corpus, tokenizer, monkeypatch):
    monkeypatch.setattr("mindspeed_ms.data.readers.CHUNK_RECORDS", 40)

    def interrupt(phase, done, total, unit):
        if phase == "tokenize" and (tmp_path / "set" / ".work" / "segments" / "00001").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1, progress=interrupt)
    done = sum(json.loads(path.read_text())["bytes"] for path in (tmp_path / "set").rglob("segment.json"))
    told = []
    prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1, progress=lambda *args: told.append(args))
    assert told[0][:2] == ("tokenize", done) and done > 0, "it goes on after what is there"


def test_two_preparations_in_one_folder_do_not_meet(tmp_path, corpus, tokenizer):
    from mindspeed_ms.data.job import locked

    with locked(tmp_path / "set"):
        process = start(corpus, tmp_path / "set", tokenizer)
        _, error = process.communicate()
        assert process.returncode == 1
        assert "another process prepares a set here" in error
    process = start(corpus, tmp_path / "set", tokenizer)
    assert process.wait() == 0, process.stderr.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
@pytest.mark.parametrize("size", ["64k", "600k", "5m"])
def test_a_full_disk_loses_nothing(tmp_path, corpus, tokenizer, size):
    out, fresh = tmp_path / "disk" / "set", tmp_path / "fresh"
    out.parent.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(out.parent)], check=True)
    try:
        with pytest.raises(DataError, match="run the same") as error:
            prepare([corpus], out, tokenizer, small(), workers=1)
        assert "\n" not in str(error.value)
        subprocess.run(["mount", "-o", "remount,size=500m", str(out.parent)], check=True)
        prepare([corpus], out, tokenizer, small(), workers=1)
        prepare([corpus], fresh, tokenizer, small(), workers=1)
        assert files_of(out) == files_of(fresh)
    finally:
        subprocess.run(["umount", "-l", str(out.parent)], check=True)


def test_half_a_set_is_gone_on_from_where_what_was_read_stays_the_same(tmp_path, corpus, tokenizer):
    good = (corpus / "b.jsonl.gz").read_bytes()
    (corpus / "b.jsonl.gz").write_bytes(good[: len(good) // 2])
    with pytest.raises(DataError, match=r"b\.jsonl\.gz"):
        prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1)
    segments = files_of(tmp_path / "set" / ".work" / "segments")
    assert any(name.startswith("00000/") for name in segments)
    with pytest.raises(DataError, match=r"begun with another arrange.buckets, None: now it is 2; give that again"):
        prepare([corpus], tmp_path / "set", tokenizer, small(buckets=2), workers=1)
    (corpus / "b.jsonl.gz").write_bytes(good)  # it had not come to the end of this one
    prepare([corpus], tmp_path / "mended", tokenizer, small(), workers=1)
    (corpus / "c.txt").write_text("one more")
    prepare([corpus], tmp_path / "more", tokenizer, small(), workers=1)
    manifest = prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1)
    assert manifest.documents == 901
    assert files_of(tmp_path / "set") == files_of(tmp_path / "more")
    (corpus / "a.txt").write_text("another")
    with pytest.raises(DataError, match="holds a set of another corpus"):
        prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1)


def test_what_has_finished_no_segment_is_begun_anew(tmp_path, corpus, tokenizer):
    config = PrepareConfig.parse({"read": {"text_key": "txt"}, "arrange": {"max_length": 64}})
    with pytest.raises(DataError, match="no record has the key 'txt'"):
        prepare([corpus], tmp_path / "set", tokenizer, config, workers=1)
    assert prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1).documents == 900


def test_a_set_is_no_corpus(tmp_path, corpus, tokenizer):
    prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1)
    with pytest.raises(DataError, match="is a prepared set; give the corpus"):
        prepare([tmp_path / "set"], tmp_path / "again", tokenizer, small(), workers=1)
