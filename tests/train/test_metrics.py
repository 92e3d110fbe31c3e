"""metrics.jsonl: whole lines, plain JSON, and no step twice."""

import json
import math
import mmap
import resource
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindspeed_ms.data.loader import Batch
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.metrics import MetricsWriter, resident_bytes


def lines(folder):
    """What a reader gets that knows nothing but JSON; constants that JSON does not have are refused."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")

    def refuse(name):
        raise AssertionError(name)

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@dataclass(frozen=True)
class Result:
    """What a step answers, by its fields."""

    step: int
    loss: float = 2.5
    tokens: int = 90
    learning_rate: float = 1e-3
    grad_norm: float = 0.5
    clipped: bool = False
    skipped: bool = False
    loss_scale: float = 1.0
    seconds: float = 0.25
    compiled: tuple = ()


def batch(length, rows, tokens, epoch=0):
    """Eight rows, of which some are real."""
    return Batch({"input_ids": np.zeros((8, length), np.int32)}, length, rows, tokens, epoch, step=0)


def test_a_line_says_kind_step_and_time_and_what_it_was_given(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("start", 0, model={"parameters": np.int64(7)}, data={"folder": Path("a/b")})
        writer.write("sample", 3, prompt="a\nb", text='"\x00\x85\u2028 春\ud800', tokens=np.int32(4))
        writer.write("eval", 3, loss=np.float32(0.5), perplexity=math.exp(0.5))
    start, sample, evaluation = lines(tmp_path)
    assert {key: start[key] for key in ("kind", "step", "model", "data")} == {
        "kind": "start",
        "step": 0,
        "model": {"parameters": 7},
        "data": {"folder": "a/b"},
    }
    assert 1.7e9 < start["time"] <= sample["time"]
    assert (sample["prompt"], sample["text"], sample["tokens"]) == ("a\nb", '"\x00\x85\u2028 春\ud800', 4)
    assert (evaluation["loss"], evaluation["perplexity"]) == (0.5, math.exp(0.5))


def test_numbers_that_json_lacks_are_strings_that_float_reads(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("eval", 1, loss=math.nan, values=[math.inf, np.float32(-math.inf), 1.0])
    (line,) = lines(tmp_path)
    assert math.isnan(float(line["loss"]))
    assert [float(value) for value in line["values"]] == [math.inf, -math.inf, 1.0]


def test_a_step_is_a_line_with_its_speed_and_memory_and_its_compilations_others(tmp_path):
    compiled = SimpleNamespace(graph="step", shapes=((8, 512),), reason="first batch of [8, 512]", seconds=3.5)
    with MetricsWriter(tmp_path) as writer:
        writer.write_step(Result(1, compiled=(compiled,)), [batch(512, 7, 1000, epoch=2)], wait_seconds=0.25)
        writer.write_step(Result(2, loss=math.inf, skipped=True), [batch(512, 8, 9, epoch=2)], wait_seconds=0)
    compilation, first, second = lines(tmp_path)
    assert (compilation["kind"], compilation["step"], compilation["shapes"]) == ("compile", 1, [[8, 512]])
    assert (compilation["reason"], compilation["seconds"]) == ("first batch of [8, 512]", 3.5)
    # 1000 tokens in a quarter of a second of waiting and a quarter of computing
    assert (first["step"], first["tokens_per_second"], first["step_seconds"]) == (1, 2000.0, 0.25)
    assert (second["skipped"], second["loss"], second["epoch"]) == (True, "Infinity", 2)
    assert (first["length"], first["rows"], first["data_tokens"], first["places"]) == (512, 7, 1000, 8 * 512)
    assert "buckets" not in first
    page = resource.getpagesize()
    assert page < first["rss_bytes"] <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 256 * page


def test_micro_batches_of_several_lengths_are_counted_by_length(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        batches = [batch(512, 3, 700), batch(64, 8, 400), batch(512, 8, 4000)]
        writer.write_step(Result(1), batches, wait_seconds=0)
    (line,) = lines(tmp_path)
    assert (line["length"], line["rows"], line["data_tokens"], line["places"]) == (512, 19, 5100, 16 * 512 + 8 * 64)
    assert line["buckets"] == [[64, 8, 400, 8 * 64], [512, 11, 4700, 16 * 512]]


def test_resident_memory_grows_with_what_is_held():
    before = resident_bytes()
    with mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE) as held:  # an array may get pages that the process holds already
        held.write(b"\1" * len(held))
        assert resident_bytes() - before > 32 << 20


def test_operators_are_counted_from_one_line_to_the_next(tmp_path):
    now = {"Dense": (5.0, 50)}  # of an earlier run in this process
    with MetricsWriter(tmp_path, op_times=lambda: dict(now)) as writer:
        writer.write_operators(0)
        now.update(Dense=(6.5, 53), Attention=(0.25, 2))
        writer.write_operators(10)
        now.update(Dense=(7.0, 54))
        writer.write_operators(20)
    found = [(line["step"], line["operators"]) for line in lines(tmp_path)]
    assert found == [(10, {"Dense": [1.5, 3], "Attention": [0.25, 2]}), (20, {"Dense": [0.5, 1]})]


def test_nothing_is_counted_where_there_are_no_native_operators(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("start", 0)
        writer.write_operators(1)
    assert [line["kind"] for line in lines(tmp_path)] == ["start"]


def test_a_resumed_run_takes_no_step_twice(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in range(1, 8):
            writer.write("step", step, loss=float(step))
            if step % 2 == 0:
                writer.write("checkpoint", step, seconds=0.1)
    with MetricsWriter(tmp_path, resume_step=4) as writer:
        writer.write("resume", 4, changes=[])
        for step in range(5, 7):
            writer.write("step", step, loss=-float(step))
    found = [(line["kind"], line["step"], line.get("loss")) for line in lines(tmp_path)]
    assert found == [
        ("step", 1, 1.0),
        ("step", 2, 2.0),
        ("checkpoint", 2, None),
        ("step", 3, 3.0),
        ("step", 4, 4.0),
        ("checkpoint", 4, None),
        ("resume", 4, None),
        ("step", 5, -5.0),
        ("step", 6, -6.0),
    ]


@pytest.mark.parametrize("torn", [b'{"kind": "step", "step": 3, "lo', b'{"kind": "step", "step": 3}', b"\x00\x00\x00"])
def test_a_line_torn_by_a_crash_is_cut_off_when_the_run_goes_on(tmp_path, torn):
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 2):
            writer.write("step", step)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    with MetricsWriter(tmp_path, resume_step=2) as writer:
        writer.write("step", 3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_damaged_line_takes_no_others_with_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n[' + "[" * 100_000 + '\n7\n{"kind": "step", "step": 2}\n')
    before = path.read_text()
    MetricsWriter(tmp_path, resume_step=2).close()
    assert path.read_text() == before


def test_a_run_that_stopped_before_its_first_line_goes_on(tmp_path):
    MetricsWriter(tmp_path).close()
    MetricsWriter(tmp_path).close()
    (tmp_path / "metrics.jsonl").unlink()
    with MetricsWriter(tmp_path, resume_step=0) as writer:
        writer.write("start", 0)
    assert [line["kind"] for line in lines(tmp_path)] == ["start"]


def test_the_lines_of_another_run_are_not_added_to(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("start", 0)
    with pytest.raises(TrainError, match=r"metrics\.jsonl: holds another run; resume that one or train into another"):
        MetricsWriter(tmp_path)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(TrainError, match=r"none/metrics\.jsonl: cannot be opened \(No such file or directory\)"):
        MetricsWriter(tmp_path / "none")


def test_a_full_disk_is_one_line_and_leaves_whole_lines(tmp_path):
    """A limit on the size of files fails as a full disk does: what fits of the line is written, then an error comes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsWriter(tmp_path) as writer:
        writer.write("step", 1)
        size = writer.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        try:
            with pytest.raises(
                TrainError, match=r"metrics\.jsonl: cannot be written \(File too large\); make room and"
            ):
                writer.write("step", 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert writer.path.stat().st_size == size
        writer.write("step", 3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 3]


def test_an_unknown_kind_is_refused(tmp_path):
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="kind 'stepp'; expected start, "):
        writer.write("stepp", 1)


@pytest.mark.peer
def test_tensorboard_shows_the_curves_of_the_lines(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resume, last in ((None, 5), (3, 6)):
        with MetricsWriter(tmp_path, resume_step=resume) as writer:
            for step in range((resume or 0) + 1, last + 1):
                writer.write_step(Result(step, loss=1.0 / step), [batch(64, 4, 200)], wait_seconds=0)
            writer.write("eval", last, loss=0.5, perplexity=2.0)
    events = accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    written = [(line["step"], line["loss"]) for line in lines(tmp_path) if line["kind"] == "step"]
    assert [step for step, _ in shown] == [1, 2, 3, 4, 5, 6] == [step for step, _ in written]
    assert [value for _, value in shown] == pytest.approx([loss for _, loss in written], rel=1e-6)
    assert [event.value for event in events.Scalars("eval/perplexity")] == [2.0]
    assert [event.value for event in events.Scalars("speed/tokens_per_second")] == [800.0] * 6
