"""Several ranks write their parts of one commit: together or not at all."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mindspeed_ms.checkpoint.ranks import shard
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]


def tensors(rank, step):
    rng = np.random.default_rng([rank, step])
    return {
        f"rank{rank}.w": rng.standard_normal(3000).astype(np.float32),
        "slice": np.full((2, 3), 10 * step + rank, np.int32),
    }


def layout(rank):
    return {"slice": {"shape": [4, 3], "offset": [2 * rank, 0]}}


@pytest.fixture
def pair(tmp_path):
    stores = [CheckpointStore(tmp_path, rank=rank, world=2, keep=1, timeout=20, chunk_bytes=4096) for rank in range(2)]
    yield stores
    for store in stores:
        store.close()


def save(store, rank, step):
    store.save(step, tensors(rank, step), {"rank": rank, "step": step}, layout=layout(rank))


def test_both_parts_are_in_one_commit_and_each_rank_gets_its_own(pair, tmp_path):
    for step in (1, 2, 3):
        for rank in (1, 0) if step == 2 else (0, 1):
            save(pair[rank], rank, step)
        for store in pair:
            assert [saved.step for saved in store.wait()] == [step]
    assert pair[0].steps() == [3] and pair[0].verify() == []
    for rank in range(2):
        found = pair[0].load(rank=rank)
        assert found.state == {"rank": rank, "step": 3}
        assert set(found.tensors) == {"rank0.w", "rank1.w", "slice"}
        for name, array in (tensors(0, 3) | tensors(1, 3) | tensors(rank, 3)).items():
            assert np.array_equal(found.tensors[name], array)
        assert found.layout == layout(rank)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert {name.partition(".")[0] for name in left} == {"step-00000003"}  # of rank 1 too nothing old is left
    assert not any(name.endswith(".part") for name in left)


def test_a_rank_that_does_not_come_is_named_and_nothing_is_committed(tmp_path):
    with CheckpointStore(tmp_path, rank=0, world=3, timeout=0.2) as store:
        save(store, 0, 1)
        with pytest.raises(CheckpointError, match=r"step 1: no part came from rank 1, 2 within 0\.2 s"):
            store.wait()
        assert store.steps() == [] and not list(tmp_path.glob("*.bin.*"))


def test_rank_0_that_does_not_commit_is_named(tmp_path):
    with CheckpointStore(tmp_path, rank=1, world=2, timeout=0.2) as store:
        save(store, 1, 1)
        with pytest.raises(CheckpointError, match="rank 0 has not committed within"):
            store.wait()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_fails_is_an_error_of_each(bad, pair):
    for rank, store in enumerate(pair):
        values = tensors(rank, 1)
        if rank == bad:
            values["slice"] = np.array([np.nan], np.float32)
        store.save(1, values, {}, finite=["slice"])
    for rank, store in enumerate(pair):
        with pytest.raises(CheckpointError, match="'slice' is not finite") as told:
            store.wait()
        assert (f"rank {bad} could not save step 1" in str(told.value)) == (rank != bad)
    assert pair[0].steps() == []
    for rank in (1, 0):  # the next save is not held by what the last left
        save(pair[rank], rank, 2)
    assert [store.wait()[0].step for store in pair] == [2, 2]


def test_parts_of_a_former_session_do_not_count(tmp_path):
    (tmp_path / ".session").write_text("0123456789abcdef")
    with CheckpointStore(tmp_path, rank=1, world=2, timeout=0.3) as alone:
        save(alone, 1, 1)
        with pytest.raises(CheckpointError, match="rank 0 has not committed"):
            alone.wait()
    assert (tmp_path / "step-00000001.1.0123456789abcdef.part").exists()
    with CheckpointStore(tmp_path, rank=0, world=2, timeout=0.3) as store:
        save(store, 0, 1)
        with pytest.raises(CheckpointError, match="no part came from rank 1"):
            store.wait()


def test_a_rank_that_came_before_rank_0_hands_in_again(tmp_path):
    (tmp_path / ".session").write_text("0123456789abcdef")
    with CheckpointStore(tmp_path, rank=1, world=2, timeout=20) as first:
        save(first, 1, 1)
        part = tmp_path / "step-00000001.1.0123456789abcdef.part"
        while not part.exists():
            assert threading.active_count() > 1, "the save ended"
        with CheckpointStore(tmp_path, rank=0, world=2, timeout=20) as second:
            save(second, 0, 1)
            assert second.wait() and first.wait() and second.verify() == []


CHILD = """
import sys, numpy as np
from mindspeed_ms.checkpoint.store import CheckpointStore
rank = int(sys.argv[2])
with CheckpointStore(sys.argv[1], rank=rank, world=2, timeout=float(sys.argv[4])) as store:
    for step in range(1, int(sys.argv[3]) + 1):
        store.save(step, {"w": np.full(5000, 10 * step + rank, np.float32)}, {"rank": rank}, wait=True)
        print(step, flush=True)
"""


def start(folder, rank, steps, timeout):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(rank), str(steps), str(timeout)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_commit_together(tmp_path):
    processes = [start(tmp_path, rank, 12, 60) for rank in range(2)]
    assert [process.communicate()[0].split()[-1] for process in processes] == ["12", "12"]
    store = CheckpointStore(tmp_path, write=False)
    assert store.verify() == [] and store.steps() == [11, 12]
    for rank in range(2):
        assert store.load(rank=rank).tensors["w"][0] == 120 + rank


def test_a_rank_that_is_killed_leaves_the_commits_before(tmp_path):
    first, second = start(tmp_path, 0, 10**6, 1), start(tmp_path, 1, 10**6, 30)
    while int(first.stdout.readline()) < 3:
        pass
    second.send_signal(signal.SIGKILL)
    _, told = first.communicate()
    second.communicate()
    assert "no part came from rank 1 within 1 s" in told
    store = CheckpointStore(tmp_path, write=False)
    newest = store.load()
    assert newest.step >= 3 and newest.tensors["w"][0] == 10 * newest.step and store.verify() == []


def test_whole_tensors_are_shared_out_evenly():
    nbytes = {f"t{index}": 1 + index * index % 97 for index in range(200)}
    shares = [shard(nbytes, rank, 4) for rank in range(4)]
    assert sorted(name for share in shares for name in share) == sorted(nbytes)
    loads = [sum(nbytes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(nbytes.values())
    assert shard({}, 0, 2) == []
