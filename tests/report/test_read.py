"""Reading runs: whole ones, running ones, crashed and damaged ones."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import BEGIN, start, step, whole_run, write_lines

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.report.figures import figures, operator_seconds, phase_seconds, state
from mindspeed_ms.report.page import page
from mindspeed_ms.report.read import read_run


def values(run, smooth=1):
    return {entry.key: entry.value for entry in figures(run, smooth)}


def test_the_figures_of_a_run_are_those_of_its_lines(tmp_path):
    lines = [start(run={"steps": 4})]
    lines += [
        {"kind": "compile", "step": 1, "time": BEGIN + 1, "graph": "step", "shapes": [[8, 64]], "seconds": 8.0},
        step(1, 5.0, step_seconds=10.0, grad_norm=3.0, clipped=True),
        step(2, 4.0, tokens=100, step_seconds=0.3, rss_bytes=3 << 30),
        step(3, "NaN", skipped=True, grad_norm="Infinity"),
        step(4, 1.0, tokens=300, step_seconds=0.5, data_tokens=500),
        {"kind": "eval", "step": 2, "time": BEGIN + 5, "loss": 3.0, "perplexity": 20.0, "seconds": 1.0},
        {"kind": "eval", "step": 4, "time": BEGIN + 6, "loss": 3.5, "perplexity": 33.0, "seconds": 2.0},
        {"kind": "operators", "step": 4, "time": BEGIN + 6, "operators": {"Dense": [0.5, 10], "AdamW": [0.1, 4]}},
        {"kind": "operators", "step": 4, "time": BEGIN + 7, "operators": {"Dense": [0.25, 5]}},
        {"kind": "checkpoint", "step": 4, "time": BEGIN + 9, "seconds": 0.5, "bytes": 100},
        {"kind": "end", "step": 4, "time": BEGIN + 20, "reason": "complete", "seconds": 20.0},
    ]
    run = read_run(write_lines(tmp_path / "run", lines))
    found = values(run, smooth=3)
    assert found["steps"] == 4
    assert found["train_loss"] == (4.0 * 100 + 1.0 * 300) / 400
    assert (found["eval_loss"], found["best_eval_loss"], found["perplexity"]) == (3.5, 3.0, 33.0)
    assert found["tokens"] == 1700
    # The first step compiled, so it says nothing of speed; each waited 0.1 s.
    assert found["step_seconds"] == 0.4
    assert found["tokens_per_second"] == pytest.approx(sorted([400 / 0.4, 400 / 0.5, 500 / 0.6])[1])
    assert found["wait_share"] == pytest.approx(0.3 / 1.5)
    assert found["padding_share"] == pytest.approx(1 - 1700 / 2048)
    assert found["peak_rss_bytes"] == 3 << 30
    assert (found["clipped"], found["skipped"], found["highest_grad_norm"]) == (1, 1, math.inf)
    assert (found["compilations"], found["compile_seconds"], found["seconds"]) == (1, 8.0, 20.0)
    assert operator_seconds(run) == {"Dense": (0.75, 15), "AdamW": (0.1, 4)}
    spent = phase_seconds(run)
    assert spent["compilation"] == 8.0
    assert spent["steps"] == pytest.approx(10.0 + 0.3 + 0.4 + 0.5 - 8.0)
    assert (spent["waiting for data"], spent["evaluation"], spent["checkpoints"]) == (pytest.approx(0.4), 3.0, 0.5)
    assert sum(spent.values()) == pytest.approx(20.0)
    assert state(run) == "complete: 4 of 4 steps"


def test_micro_batches_of_several_lengths_are_counted_by_length(tmp_path):
    lines = [step(1, length=128, buckets=[[64, 8, 300, 512], [128, 4, 400, 512]]), step(2), step(3)]
    run = read_run(write_lines(tmp_path / "run", lines))
    assert run.buckets == {64: [24, 1100, 1536, 2], 128: [4, 400, 512, 1]}


def test_a_running_and_a_killed_run_say_how_far_they_are(tmp_path):
    lines = [start(run={"steps": 100}), step(1), step(2)]
    folder = write_lines(tmp_path / "run", lines)
    assert state(read_run(folder)) == "running, or killed: 2 of 100 steps"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step(3))[:100])
    run = read_run(folder)
    assert run.steps["step"].tolist() == [1, 2] and run.damaged == 0


def test_a_run_that_was_resumed_for_longer_is_measured_by_its_new_length(tmp_path):
    resume = {"kind": "resume", "step": 2, "time": BEGIN + 9, "config": {"run": {"steps": 8}}}
    folder = write_lines(tmp_path / "run", [start(run={"steps": 2}), step(1), step(2), resume, step(3)])
    assert state(read_run(folder)) == "running, or killed: 3 of 8 steps"


def test_a_resumed_run_runs_again_and_its_pause_is_no_time_of_it(tmp_path):
    lines = [
        start(),
        {**step(1), "time": BEGIN + 10},
        {"kind": "end", "step": 1, "time": BEGIN + 11, "reason": "interrupted"},
        {"kind": "resume", "step": 1, "time": BEGIN + 5000, "changes": ["run.steps"]},
        {**step(2), "time": BEGIN + 5004},
    ]
    folder = write_lines(tmp_path / "run", lines)
    run = read_run(folder)
    assert run.seconds == 15
    assert state(run) == "running, or killed: 2 steps"
    assert state(read_run(write_lines(tmp_path / "before", lines[:3]))) == "interrupted: 1 steps"


def test_of_steps_that_come_twice_the_later_line_counts(tmp_path):
    lines = [step(1, 1.0), step(2, 2.0), step(3, 3.0), step(2, 20.0), step(4, 4.0)]
    steps = read_run(write_lines(tmp_path / "run", lines)).steps
    assert list(zip(steps["step"], steps["loss"], strict=True)) == [(1, 1), (2, 20), (3, 3), (4, 4)]


DAMAGE = [
    b"\x00\xff\x00\n",
    b"[" * 100_000 + b"\n",
    b'{"kind": "model", "step": 1}\n',
    b'{"kind": "step", "step": -1}\n',
    b'{"kind": "step", "step": true}\n',
    b'{"kind": "step", "step": 1e300}\n',
    b'{"kind": "step", "step": ' + b"9" * 4000 + b"}\n",
    b'{"kind": ["step"], "step": 1}\n',
    b'{"kind": "start", "step": 0, "config": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}\n",
    b"17\n",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_lines_are_left_out_and_counted(tmp_path, damage):
    folder = write_lines(tmp_path / "run", [step(1), step(2)])
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(damage + content)
    run = read_run(folder)
    assert run.steps["step"].tolist() == [1, 2] and run.damaged == 1
    assert "1 damaged lines were left out" in page([run])


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KINDS = ["start", "resume", "step", "compile", "skip", "eval", "sample", "checkpoint", "operators", "end"]
NAMES = sorted({name for line in whole_run(8) for name in line} - {"kind", "step"} | {"buckets", "changes"})


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.dictionaries(st.sampled_from(NAMES), ODD, max_size=6)),
        min_size=1,
        max_size=6,
    )
)
def test_a_page_is_made_whatever_the_values_are(tmp_path_factory, drawn):
    lines = [{**fields, "kind": kind, "step": number} for kind, number, fields in drawn]
    run = read_run(write_lines(tmp_path_factory.mktemp("odd"), lines))
    assert page([run]).endswith("</html>\n")
    assert page([run, run]).endswith("</html>\n")


@pytest.mark.parametrize("content", [None, "", "\n\n", '{"a": 1}\n', "pickle"])
def test_a_folder_that_is_no_run_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl.*; give the folder of") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_no_run(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ConfigError, match="not a plain file"):
        read_run(tmp_path)
