"""The life of a preparation: killed, gone on from, met by another one, out of disk; the bytes are always the same."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from data_corpus import files_of, sentences, small
from data_starts import Starts

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import read_manifest
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import ConfigError, DataError


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
def main():
    prepare([sys.argv[1]], sys.argv[2], sys.argv[3], config, workers=2, restart="restart" in sys.argv)
    print(calls)
"""


@pytest.fixture(scope="module")
def starts():
    with Starts(PROGRAM) as server:
        yield server


def test_a_kill_at_any_time_changes_nothing(tmp_path, corpus, tokenizer, starts):
    """MINDSPEED_MS_KILLS kills (50 without it): most before a call that changes the disk, others at any time.

    Up to five on one folder, then one run to the end.
    """
    began = time.monotonic()
    points = int(starts.run(corpus, tmp_path / "clean", tokenizer, 0).output)
    seconds = time.monotonic() - began
    assert points > 100
    wanted = files_of(tmp_path / "clean")
    assert len(read_manifest(tmp_path / "clean").buckets[0].shards) > 3, "several segments"
    rng = random.Random(int(os.environ.get("MINDSPEED_MS_SEED", "0")))
    kills = int(os.environ.get("MINDSPEED_MS_KILLS", "50"))
    died = folders = 0
    while died < kills:
        folders += 1
        out = tmp_path / f"killed{folders}"
        for kill in range(5):
            any_time = kill % 3 == 1
            run = starts.start(corpus, out, tokenizer, 0 if any_time else rng.randint(1, points))
            run.kill_after(rng.uniform(0.1, 1) * seconds) if any_time else run.wait()
            assert run.returncode in (0, -signal.SIGKILL), run.error
            if run.returncode == 0:
                break
            died += 1
            if not (out / "manifest.json").exists():
                with pytest.raises(DataError, match="no manifest.json in it"):
                    read_manifest(out)
        last = starts.run(corpus, out, tokenizer, 0)
        assert last.returncode == 0, last.error
        assert files_of(out) == wanted


def test_a_kill_while_a_set_is_thrown_away_leaves_none_that_is_wrong(tmp_path, corpus, tokenizer, starts):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences(50, seed=9)))
    assert starts.run(other, tmp_path / "clean", tokenizer, 0).returncode == 0
    wanted = files_of(tmp_path / "clean")
    for kill in (1, 2, 3, 5, 8, 13, 20):
        out = tmp_path / f"set{kill}"
        assert starts.run(corpus, out, tokenizer, 0).returncode == 0
        assert starts.run(other, out, tokenizer, kill, "restart").returncode == -signal.SIGKILL
        last = starts.run(other, out, tokenizer, 0, "restart")
        assert last.returncode == 0, last.error
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


def test_two_preparations_in_one_folder_do_not_meet(tmp_path, corpus, tokenizer, starts):
    from mindspeed_ms.data.job import locked

    with locked(tmp_path / "set"):
        run = starts.run(corpus, tmp_path / "set", tokenizer, 0)
        assert run.returncode == 1
        assert "another process prepares a set here" in run.error
    run = starts.run(corpus, tmp_path / "set", tokenizer, 0)
    assert run.returncode == 0, run.error


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


@pytest.mark.parametrize(
    "content", ["", "[{}]", '{"sources": [{}]}', '{"sources": 5}', '{"sources": [[1, [2], 3, 4]]}']
)
def test_a_job_that_nobody_wrote_is_begun_anew_or_refused_in_a_line(tmp_path, corpus, tokenizer, content):
    (tmp_path / "set/.work").mkdir(parents=True)
    (tmp_path / "set/.work/job.json").write_text(content)
    assert prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1).documents == 900
