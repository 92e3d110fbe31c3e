"""The pool: order, errors in their place, bounded memory, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import data_pool_work as work
import numpy as np
import pytest
from data_tokenizers import TEXT, data_tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.encode import Encoder
from mindspeed_ms.data.pool import Pool
from mindspeed_ms.errors import ConfigError, DataError

# Tests that do not end a worker share one pool: starting one takes a part of a second.


@pytest.fixture(scope="module")
def pool():
    with Pool(work.doer, 2) as opened:
        yield opened


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, pids)):
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_results_come_in_order_from_all_workers():
    with Pool(work.doubler, 3) as opened:
        results = list(opened.map(range(40)))
    assert [value for value, _ in results] == [2 * i for i in range(40)]
    assert len({pid for _, pid in results}) == 3 and os.getpid() not in {pid for _, pid in results}


def test_never_more_than_the_workers_and_two_are_on_their_way(pool):
    source = iter([("echo", i) for i in range(30)])
    results = pool.map(source)
    for done in range(30):
        assert next(results) == done
        taken = 30 - source.__length_hint__()
        assert taken <= done + 4
    assert next(results, "end") == "end"


def test_a_slow_item_holds_the_later_ones_back_and_not_the_memory(pool):
    source = iter([("sleep", 0.4), *[("echo", i) for i in range(50)]])
    results = pool.map(source)
    assert next(results) is None
    assert source.__length_hint__() >= 51 - 4
    assert list(results) == list(range(50))


def test_large_arrays_go_both_ways_without_a_standstill(pool):
    arrays = [np.full(3_000_000, i, np.int32) for i in range(6)]
    for i, doubled in enumerate(pool.map(("sum", array) for array in arrays)):
        assert doubled.dtype == np.int32 and doubled.shape == (3_000_000,) and (doubled == 2 * i).all()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("data", r"^file: record 3: bad; repair it$"),
        ("damaged", r"^file: damaged; copy it again$"),
        ("other", r"^a worker failed with ZeroDivisionError: two; please report this$"),
    ],
)
def test_an_error_is_raised_in_its_place(pool, kind, message):
    results = pool.map([("sleep", 0.1), ("fail", kind), ("echo", 2)])
    assert next(results) is None
    with pytest.raises(DataError, match=message):
        next(results)
    assert list(pool.map([("echo", 7)])) == [7]  # what the failed map left behind disturbs nobody


def test_an_error_of_the_source_is_raised_after_the_results_before_it(pool):
    def source():
        yield "sleep", 0.1
        yield "echo", 1
        raise KeyError("damaged file")

    results = pool.map(source())
    assert [next(results), next(results)] == [None, 1]
    with pytest.raises(KeyError, match="damaged file"):
        next(results)


def test_an_abandoned_map_does_not_disturb_the_next(pool):
    assert next(pool.map(("echo", f"old {i}") for i in range(20))) == "old 0"
    assert list(pool.map(("echo", i) for i in range(20))) == list(range(20))


def test_a_worker_is_a_fresh_process_with_nothing_of_ours(pool, capfd):
    (facts,) = pool.map([("facts",)])
    assert facts["fork_free"] and facts["interrupt"] and not facts["blocked"]
    assert facts["parallelism"] == "false"
    assert facts["files"] == ["pipe", "pipe"]  # beside the standard ones, stderr by its other number
    list(pool.map([("print",)]))
    assert "a word" not in capfd.readouterr().out


def test_a_factory_that_fails_is_the_error_of_the_map():
    with Pool(work.broken, 2) as opened, pytest.raises(ConfigError, match="^option: x: expected y; leave it out$"):
        list(opened.map(range(5)))


@pytest.mark.parametrize(
    ("how", "message"),
    [("kill", r"signal 9 \(the system may be out of memory\); take fewer workers"), ("exit", "code 3")],
)
def test_a_worker_that_dies_is_an_error(how, message):
    with Pool(work.doer, 2) as opened:
        results = opened.map([("echo", 1), ("stop", how), *[("echo", 2)] * 10])
        with pytest.raises(DataError, match=f"^a worker process ended .*{message}"):
            list(results)


def test_leaving_ends_busy_workers_at_once():
    begin = time.monotonic()
    with Pool(work.doer, 2) as opened:
        pids = set()
        while len(pids) < 2:
            pids |= {pid for pid in opened.map([("sleep", 0.05), ("pid",), ("pid",)]) if pid}
        results = opened.map([("echo", 0), ("sleep", 60), ("spin",)])
        next(results)
        begin = time.monotonic()
    assert time.monotonic() - begin < 20 and gone(pids, 0)


def test_an_interrupt_ends_the_map_and_the_workers():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt), Pool(work.doer, 2) as opened:
            pids = {worker._process.pid for worker in opened._workers}
            timer.start()
            list(opened.map([("sleep", 60), ("sleep", 60)]))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert len(pids) == 2 and gone(pids, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_is_killed(tmp_path, how):
    file = tmp_path / "pids"
    path = os.pathsep.join(part for part in sys.path if part)
    code = f"import data_pool_work; data_pool_work.main({str(file)!r})"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        end = time.monotonic() + 30
        while not file.exists() and parent.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        pids = json.loads(file.read_text())
        assert len(pids) == 2 and all(map(alive, pids))
        parent.send_signal(how)
        parent.wait(10)
        assert gone(pids)
    finally:
        with suppress(ProcessLookupError):
            parent.kill()
        parent.wait()


def test_encoders_in_workers_give_what_one_here_gives(tmp_path):
    chunks = work.raw_chunks([f"{text} {i}" for i in range(30) for text in TEXT], 7)
    factory = work.partial(Encoder, data_tokenizer(tmp_path / "m"), PrepareConfig(), ["a"])
    here = list(map(factory(), chunks))
    with Pool(factory, 2) as opened:
        for found, expected in zip(opened.map(chunks), here, strict=True):
            assert found.counts == expected.counts and found.after == expected.after
            for name in ("tokens", "lengths", "sizes", "hashes"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_panic_of_the_rust_library_is_one_line_and_no_trace(capfd):
    with Pool(work.doer, 1) as opened:
        results = opened.map([("panic",), ("echo", 1)])
        with pytest.raises(DataError, match=r"a worker failed with PanicException: .+; please report this"):
            next(results)
        assert list(opened.map([("echo", 2)])) == [2]
    assert capfd.readouterr().err == "a word on standard error\n"
