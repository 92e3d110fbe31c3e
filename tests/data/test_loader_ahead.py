"""BucketLoader makes batches ahead of time: how many, what becomes of errors, and never a hang."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from data_batches import BUCKETS, arrays, producers, same
from data_sets import make_set

from mindspeed_ms.data import gather, loader
from mindspeed_ms.errors import DataError

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, BUCKETS, loss_mask=True, shards=3)
    return folder


def test_never_more_batches_are_made_ahead_than_asked(folder, monkeypatch):
    calls = []
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: calls.append(1) or real(self, rows))
    iterator = iter(arrays(folder, prefetch=3))
    for taken in range(6):
        deadline = time.monotonic() + 60
        while len(calls) < taken + 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(calls) == taken + 3
        next(iterator)


def test_the_default_of_batches_made_ahead(folder):
    assert [arrays(folder, world_size=ranks).prefetch for ranks in (1, 2, 4, 64)] == [2, 4, 8, 8]
    assert arrays(folder, prefetch=5, world_size=64).prefetch == 5


def test_an_error_in_the_thread_surfaces_after_the_batches_before_it_and_ends_the_iteration(folder, monkeypatch):
    real = gather.Gather.__call__
    calls = []

    def failing(self, rows):
        calls.append(1)
        if len(calls) == 4:
            raise OSError("the disk is gone")
        return real(self, rows)

    monkeypatch.setattr(gather.Gather, "__call__", failing)
    made = arrays(folder, seed=6, prefetch=8)
    iterator = iter(made)
    got = [next(iterator) for _ in range(3)]
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    same([*got, *made], arrays(folder, seed=6))  # the state is still exact


def test_dropping_an_iterator_or_the_loader_ends_the_thread(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    assert len(producers()) == 1
    del iterator
    made = iter(arrays(folder))  # its loader lives through it alone
    next(made)
    del made  # the fixture sees to it that all threads end, none of them told to


def test_a_closed_iteration_ends_and_the_loader_can_be_used_again(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    made.close()
    made.close()
    assert list(iterator) == []
    assert len(list(made)) == 16


def test_closing_wakes_a_consumer_that_waits(folder, monkeypatch):
    entered, release = threading.Event(), threading.Event()
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: entered.set() or release.wait(10))
    made, got = arrays(folder), []
    iterator = iter(made)
    consumer = threading.Thread(target=lambda: got.append(list(iterator)))
    consumer.start()
    assert entered.wait(5)
    made.close()
    consumer.join(5)
    release.set()
    assert got == [[]]


def test_an_interrupted_consumer_neither_hangs_nor_loses_a_row(folder, monkeypatch):
    release = threading.Event()
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: release.wait(60) and real(self, rows))
    made = arrays(folder, seed=8)
    iterator = iter(made)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        signal.signal(signal.SIGINT, before)
    release.set()
    with pytest.raises(StopIteration):
        next(iterator)
    same(made, arrays(folder, seed=8))


def in_child(made, iterator, pipe):
    """What a forked process can do with its parent's loader."""
    try:
        next(iterator)
    except DataError as error:
        pipe.send(str(error))
    pipe.send(len(list(made)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_cannot_use_its_parents_iterator_but_its_own(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(made, iterator, there))
    child.start()
    assert here.poll(20)
    assert "belongs to the process before the fork" in here.recv()
    assert here.poll(20) and here.recv() == 16
    child.join(10)
    assert child.exitcode == 0
    assert len(list(iterator)) == 16


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "iterator = None"])
def test_leaving_python_in_the_middle_of_an_iteration_does_not_hang(folder, end):
    code = (
        "from mindspeed_ms.data.loader import BucketLoader\n"
        f"made = BucketLoader({str(folder)!r}, batch_size=1, tensors=False)\n"
        f"iterator = iter(made); next(iterator)\n{end}\n"
    )
    root = str(Path(loader.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, timeout=90, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (3 if "Exit" in end else 0, "")


def test_waiting_and_working_time_are_measured(folder, monkeypatch):
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: time.sleep(0.04) or real(self, rows))
    slow = arrays(folder, prefetch=1)
    assert slow.wait_share() == 0
    begin = time.perf_counter()
    for _ in slow:
        time.sleep(0.005)
    whole = time.perf_counter() - begin
    assert slow.wait_seconds + slow.work_seconds == pytest.approx(whole, abs=0.1)
    assert slow.work_seconds >= 17 * 0.005
    assert slow.wait_share() > 0.5  # 0.88: each batch takes 40 ms, of which 5 are the caller's
    monkeypatch.setattr(gather.Gather, "__call__", real)
    quick = arrays(folder)
    for _ in quick:
        time.sleep(0.005)
    assert quick.wait_share() < 0.5
