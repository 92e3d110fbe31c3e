"""The commands `mindspeed-ms data ...`: what they print, what they pass on, and what they say of a mistake."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from data_sets import EOS_ID, make_set, read_columns

from mindspeed_ms.cli.data_options import prepare_config
from mindspeed_ms.cli.data_prepare import prepare
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import read_manifest
from mindspeed_ms.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]
# 40 lines of 1 to 40 words, one of them twice, and an empty one.
LINES = [" ".join(f"w{(7 * n + k) % 900 + 2}" for k in range(n)) for n in range(1, 41)]
CORPUS = "\n".join([*LINES, LINES[4], ""]) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus and a tokenizer that knows its words."""
    folder = tmp_path_factory.mktemp("commands")
    make_set(folder / "other", {16: 9, 32: 5}, loss_mask=True)
    (folder / "corpus.txt").write_text(CORPUS)
    (folder / "tokenizer.json").write_bytes((folder / "other" / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture
def ms(capsys, place, monkeypatch):
    """Runs a command in this process and returns what it printed."""
    from mindspeed_ms.cli.main import app

    monkeypatch.chdir(place)

    def call(*arguments: str) -> str:
        app(args=["data", *arguments], prog_name="mindspeed-ms", standalone_mode=False)
        shown = capsys.readouterr()
        assert shown.err == ""  # progress is for a terminal
        return shown.out

    return call


def prepare_set(ms, out: str, *options: str) -> dict:
    basic = ["--out", out, "--tokenizer", "tokenizer.json", "--workers", "1", "--json"]
    return json.loads(ms("prepare", "corpus.txt", *basic, *options))


def cli(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mindspeed_ms.cli.main", "data", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "NO_COLOR": "1", **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_prepare_says_what_it_made_and_made_it(ms, place):
    found = prepare_set(ms, "one", "--boundaries", "8,41", "--no-join")
    assert found["documents"] == 40 and found["tokens"] == sum(n + 1 for n in range(1, 41))
    assert [(b["length"], b["rows"]) for b in found["buckets"]] == [(8, 7), (41, 33)]
    assert found["cleaning"]["exact_duplicates"] == 1
    rows = read_columns(place / "one", read_manifest(place / "one"), 8)["input_ids"]
    expected = [[*(int(word[1:]) for word in line.split()), EOS_ID] for line in LINES[:7]]
    assert [[token for token in row if token] for row in rows.tolist()] == expected


def test_prepare_prints_totals_buckets_and_what_cleaning_did(ms):
    basic = ["--out", "two", "--tokenizer", "tokenizer.json", "--workers", "1"]
    shown = ms("prepare", "corpus.txt", *basic, "--boundaries", "8,41")
    assert re.search(r"^documents +40$", shown, re.MULTILINE)
    assert re.search(r"^padding +\d\d\.\d\d%$", shown, re.MULTILINE)
    assert re.search(r"^ +41 +33 +33 +", shown, re.MULTILINE)
    assert re.search(r"^exact duplicates +1$", shown, re.MULTILINE)
    assert "bad json" not in shown  # of which there was none


def test_a_file_gives_the_base_and_options_go_before_it(ms, place):
    (place / "base.yaml").write_text("clean: {dedup: false}\narrange: {mode: pack, max_length: 64}\n")
    from_file = prepare_set(ms, "three", "--config", "base.yaml")
    assert (from_file["documents"], from_file["buckets"][0]["length"]) == (41, 64)
    changed = prepare_set(ms, "four", "--config", "base.yaml", "--dedup", "--max-length", "128")
    assert (changed["documents"], changed["buckets"][0]["length"]) == (40, 128)


def test_where_to_compute_and_to_keep_copies_is_passed_on(ms, place, monkeypatch):
    calls = []

    def record(*given, progress, **options):
        calls.append((*given, options))
        return read_manifest(place / "other")

    monkeypatch.setattr("mindspeed_ms.data.prepare.prepare", record)
    basic = ["prepare", "a", "b", "--out", "nowhere", "--tokenizer", "t.json"]
    where = ["--engine", "ray", "--ray-address", "head:6379", "--workers", "3", "--cache", "copies", "--restart"]
    ms(*basic)
    ms(*basic, *where)
    given = (["a", "b"], Path("nowhere"), Path("t.json"), PrepareConfig())
    default = {"workers": None, "engine": "local", "ray_address": None, "cache": None, "restart": False}
    named = {"workers": 3, "engine": "ray", "ray_address": "head:6379", "cache": Path("copies"), "restart": True}
    assert calls == [(*given, default), (*given, named)]


def test_of_a_set_that_is_complete_it_is_said_that_nothing_was_done(ms):
    command = ["prepare", "corpus.txt", "--out", "done", "--tokenizer", "tokenizer.json", "--workers", "1"]
    first = ms(*command)
    assert ms(*command) == "already complete: nothing was done\n\n" + first
    assert ms(*command, "--restart") == first
    assert json.loads(ms(*command, "--json"))["documents"] == 40


def test_the_same_command_again_changes_nothing_and_restart_begins_anew(ms, place):
    first = prepare_set(ms, "five")
    before = (place / "five" / "manifest.json").read_bytes()
    assert prepare_set(ms, "five") == first
    with pytest.raises(DataError):
        prepare_set(ms, "five", "--eos", "--mode", "stream")
    assert prepare_set(ms, "five", "--mode", "stream", "--restart")["mode"] == "stream"
    assert (place / "five" / "manifest.json").read_bytes() != before


def test_inspect_shows_lengths_sources_and_samples(ms, place):
    prepare_set(ms, "six", "--buckets", "2")
    shown = ms("inspect", "six", "--samples", "40", "--verify")
    assert "all files are as the manifest says" in shown
    assert re.search(r"^ +33-48 +[█#]+ +9  < row of 41$", shown, re.MULTILINE)
    assert re.search(r"^corpus\.txt +40 +860 +100 ", shown, re.MULTILINE)
    for line in LINES[:10]:
        assert f"{line} <eos>\n" in shown
    assert "Answers" not in shown


def test_inspect_marks_the_answers_of_conversations(ms, place):
    shown = ms("inspect", "other", "--samples", "14")
    assert "Answers, which are learnt, stand between « and »." in shown
    marked = re.findall(r"«(.*?)»", shown.partition("\nAnswers")[0])
    masks = [read_columns(place / "other", read_manifest(place / "other"), n)["loss_mask"] for n in (16, 32)]
    whole = [line for line in shown.splitlines() if re.match(r" +\d+  ", line)]
    assert sum(len(answer.split()) for answer in marked) == sum(int(mask.sum()) for mask in masks)
    assert all("..." not in line for line in whole)


def test_inspect_draws_a_plot_and_gives_everything_as_json(ms, place):
    assert ms("inspect", "other", "--plot", "plot.svg").endswith("\nplot  plot.svg\n")
    assert (place / "plot.svg").read_text().startswith("<?xml")
    found = json.loads(ms("inspect", "other", "--samples", "2", "--json"))
    assert {"buckets", "sources", "lengths", "cleaning", "samples", "padding_to_longest"} <= set(found)
    assert len(found["samples"]) == 2


def test_samples_cannot_command_a_terminal(capsys):
    from mindspeed_ms.cli.data_output import show_samples
    from mindspeed_ms.data.inspect import Inspection
    from mindspeed_ms.data.samples import Part, Sample, SampleDocument

    hostile = Part("a\x1b[2J\u202e\nb中", None)
    sample = Sample(8, 0, 3, [SampleDocument(3, [hostile])])
    show_samples(Inspection("s", "t", "bucket", 1, 1, 3, 0.0, 0.0, False, [], [], [], {}, [sample]))
    assert capsys.readouterr().out.endswith("       3  a\\x1b[2J\\u202e\\nb中\n")


def test_convert_goes_to_a_pair_and_back(ms, place):
    prepare_set(ms, "seven")
    done = json.loads(ms("convert", "seven", "pair", "--json"))
    assert done == {"pair": "pair", "documents": 40, "tokens": 860, "more_by_splitting": 0, "answers_lost": False}
    back = ["convert", "pair", "eight", "--tokenizer", "tokenizer.json", "--workers", "1"]
    assert re.search(r"^documents +40$", ms(*back), re.MULTILINE)
    assert read_manifest(place / "eight").tokens == 860
    shown = ms("convert", "other", "pair2")
    assert "Which tokens belong to answers is not in it" in shown


def test_a_trained_tokenizer_is_reported_and_can_be_prepared_with(ms, place):
    (place / "tale.jsonl").write_text('{"tale": "once upon a time there was a fox"}\n' * 20)
    options = ["--out", "tale", "--vocab-size", "300", "--special-token", "<|im_start|>", "--text-key", "tale"]
    done = json.loads(ms("tokenizer", "tale.jsonl", *options, "--json"))
    assert (done["folder"], done["documents"], done["bytes"]) == ("tale", 20, 20 * 32)
    vocabulary = json.loads((place / "tale" / "tokenizer.json").read_text())["model"]["vocab"]
    assert "<|im_start|>" in vocabulary and done["vocab_size"] == len(vocabulary) <= 300
    found = ms(
        "prepare", "tale.jsonl", "--text-key", "tale", "--out", "tale-set", "--tokenizer", "tale", "--workers", "1"
    )
    assert re.search(r"^exact duplicates +19$", found, re.MULTILINE)
    assert "once upon a time there was a fox<|endoftext|>" in ms("inspect", "tale-set")

    shown = ms("tokenizer", "tale.jsonl", "--out", "words", "--kind", "wordpiece", "--text-key", "tale")
    assert re.search(r"^bytes per token +\d", shown, re.MULTILINE)


def test_every_key_of_the_configuration_has_its_option_with_the_right_default_in_its_help():
    shown = cli("prepare", "--help", cwd=ROOT).stdout
    keys = {}
    for section, field in PrepareConfig.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys |= {key: entry.default for key, entry in inner.items()} if inner else {section: field.default}
    parameters = set(prepare.__annotations__)
    for key, default in keys.items():
        option = re.search(rf"^│ +--{key.replace('_', '-')} .*$", shown, re.MULTILINE)
        assert option and key in parameters, key
        if isinstance(default, (int, str)) and not isinstance(default, bool):
            assert f"Default: {default}." in option[0], key
    assert {key for key, default in keys.items() if isinstance(default, bool)} == {
        "skip_damaged",
        "dedup",
        "eos",
        "join",
    }


def test_options_are_parsed_into_the_section_that_has_their_key():
    config = prepare_config(None, boundaries="16,32", min_chars=3, join=True, shard_tokens=4096, text_key=None)
    expected = {"clean": {"min_chars": 3}, "arrange": {"boundaries": [16, 32], "join": True}, "shard_tokens": 4096}
    assert config == PrepareConfig.parse(expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"boundaries": "128,many"}, "--boundaries 128,many: expected lengths with commas between"),
        ({"boundaries": "256,128"}, "options: arrange.boundaries is .*ascending"),
        ({"min_chars": 0}, "options: clean.min_chars is 0"),
        ({"mode": "pack", "buckets": 3}, "buckets has no effect in mode pack"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_one_line_that_names_it(given, said):
    with pytest.raises(ConfigError, match=said):
        prepare_config(None, **given)


def test_an_unknown_key_of_a_file_is_named(tmp_path):
    (tmp_path / "c.yaml").write_text("arrange: {bucket: 3}\n")
    with pytest.raises(ConfigError, match=r"unknown key 'arrange.bucket'; did you mean 'buckets'"):
        prepare_config(tmp_path / "c.yaml", min_chars=3)


def test_a_mistake_is_one_line_on_stderr_and_exit_2(place, tmp_path):
    done = cli("inspect", str(tmp_path), cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path}: no manifest.json in it") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "corpus.txt", "--tokenizer", "tokenizer.json"],
        ["prepare", "corpus.txt", "--out", "x", "--tokenizer", "tokenizer.json", "--engine", "slurm"],
        ["prepare", "corpus.txt", "--out", "x", "--tokenizer", "tokenizer.json", "--ray-address", "a:1"],
        ["inspect"],
        ["convert", "set"],
        ["melt"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_makes_nothing(place, arguments):
    done = cli(*arguments, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: mindspeed-ms data" in done.stderr and "Traceback" not in done.stderr
    assert not (place / "x").exists()
