"""Checkpoints are made beside the run: what comes while one is at work neither loses it nor waits without need."""

import os
import signal
import threading
import time

import pytest
from train_runs import command, commits, losses, make_data, read_lines, settings, weights, write_yaml

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.plan import make_plan
from mindspeed_ms.train.run import train

SLOW = 2.0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def slow(monkeypatch):
    """A disk that takes SLOW seconds to have a file; the event says that it is at one."""
    at_work, fsync = threading.Event(), Files.fsync

    def slowly(self, *arguments):
        at_work.set()
        time.sleep(SLOW)
        return fsync(self, *arguments)

    monkeypatch.setattr(Files, "fsync", slowly)
    return at_work


def go(values, resume=False, observe=None):
    return train(TrainConfig.parse(values), resume=resume, observe=observe)


def test_a_signal_while_a_checkpoint_is_made_keeps_it_and_commits_the_present_step(data, tmp_path, slow):
    values = settings(data, tmp_path / "run", run__save_every=2, run__keep=0, run__steps=100_000)

    def stop(kind, step, fields):
        if kind == "step" and slow.is_set() and not stopped:
            stopped.append(step)
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = []
    done = go(values, observe=stop)
    assert done.stopped == signal.SIGTERM and done.step == stopped[0]
    assert commits(done.out) == sorted({*range(2, done.step + 1, 2), done.step})
    assert read_lines(done.out, "checkpoint")[0]["seconds"] > SLOW


def test_a_second_signal_leaves_at_once_though_a_checkpoint_is_at_work(data, tmp_path, slow):
    values = settings(data, tmp_path / "run", run__save_every=None, run__steps=100_000)

    def twice(kind, step, fields):
        if (kind, step) == ("step", 2):
            threading.Thread(target=again).start()
            os.kill(os.getpid(), signal.SIGTERM)

    def again():
        slow.wait(60)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    sent = []
    with pytest.raises(KeyboardInterrupt, match="goes on from its last checkpoint"):
        go(values, observe=twice)
    assert time.monotonic() - sent[0] < SLOW


def test_the_checkpoint_that_an_error_speaks_of_is_there(data, tmp_path, slow):
    values = settings(data, tmp_path / "run", run__save_every=1, run__steps=50, optimizer__learning_rate=30.0)
    values["guard"] = {"max_skipped": 2, "max_loss_ratio": 1.5}
    with pytest.raises(TrainError, match="the loss has diverged") as failed:
        go(values)
    found = commits(tmp_path / "run")
    expected = f"the checkpoint of step {found[-1]} is kept" if found else "there is no checkpoint yet"
    assert expected in str(failed.value)


def test_where_there_is_no_memory_for_a_copy_the_run_waits_for_its_checkpoints(data, tmp_path, monkeypatch):
    values = settings(data, tmp_path / "aside", run__steps=4, run__save_every=2)
    plan = make_plan(TrainConfig.parse(values))
    assert plan.saves_aside and plan.summary()["checkpoints"] == "in the background"
    go(values)
    values["run"]["out"] = str(tmp_path / "waiting")
    monkeypatch.setattr("mindspeed_ms.train.memory.available_bytes", lambda: plan.memory.total - 1)
    short = make_plan(TrainConfig.parse(values))
    assert not short.saves_aside and short.memory.total < plan.memory.total
    go(values)
    assert [(line["step"], line["of"]) for line in read_lines(tmp_path / "waiting", "checkpoint")] == [(2, 2), (4, 4)]
    assert losses(tmp_path / "waiting") == losses(tmp_path / "aside")
    assert weights(tmp_path / "waiting") == weights(tmp_path / "aside")


def test_without_a_compiler_a_run_trains_and_makes_checkpoints(data, tmp_path, monkeypatch):
    values = settings(data, tmp_path / "run", run__steps=2, run__save_every=1)
    for name, value in {"PATH": str(tmp_path), "CXX": "", "MINDSPEED_MS_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    done = command(write_yaml(tmp_path / "run.yaml", values))
    assert done.returncode == 0 and "slower" in done.stderr, done.stderr
    assert commits(tmp_path / "run") == [1, 2]
