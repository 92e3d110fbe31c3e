"""Whatever ends a save, the commit before loads to the bit, and nothing dead stays."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faults import FULL, Failing, Recording, after_power_cut

from mindspeed_ms.checkpoint.files import FILES, Files
from mindspeed_ms.checkpoint.keep import steps_of
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MINDSPEED_MS_CHECKPOINT_KILLS", "20"))


def tensors(step):
    return {
        "frozen": np.arange(2000, dtype=np.float32),
        "w": np.random.default_rng(step).standard_normal(1500).astype(np.float32),
    }


def is_whole(found):
    return found.state == {"step": found.step} and all(
        np.array_equal(found.tensors[name], array) for name, array in tensors(found.step).items()
    )


def open_store(folder, **options):
    return CheckpointStore(folder, **{"keep": 1, "chunk_bytes": 4096, **options})


def save(store, step):
    store.save(step, tensors(step), {"step": step}, wait=True)


def dead_files(store):
    """Names beside manifests, what they name, and the lock."""
    named = {name for step in store.steps() for name in store.manifest(step).files}
    names = {path.name for path in store.folder.iterdir()} - {".lock"}
    return {name for name in names if name not in named and not steps_of([name])}


def goes_on(folder, least):
    """A new process finds a whole commit, not older than `least`; saves; and leaves nothing dead."""
    with open_store(folder) as store:
        found = store.load()
        assert (found.step if found else 0) >= least
        assert found is None or is_whole(found)
        save(store, 100)
        assert is_whole(store.load(100)) and store.verify() == [] and not dead_files(store)


def test_every_state_that_a_power_cut_may_leave_has_the_last_commit(tmp_path):
    """After each operation: data not synced is there, zeros or torn; names not synced are there, not, or some are."""
    files = Recording()
    committed = []  # operations until a step was told to be committed
    with open_store(tmp_path / "made", files=files) as store:
        for step in range(1, 4):
            save(store, step)
            committed.append((len(files.log), step))
    seen = set()
    for length in range(len(files.log) + 1):
        least = max((step for end, step in committed if end <= length), default=0)
        for data in ("all", "none", "torn"):
            for seed, names in enumerate(("all", "none", *["some"] * 8)):
                state = after_power_cut(files.log[:length], data, names, seed)
                key = (least, *sorted(state.items()))
                if key in seen:
                    continue
                seen.add(key)
                folder = tmp_path / f"{length}-{data}-{seed}"
                folder.mkdir()
                for name, content in state.items():
                    (folder / name).write_bytes(content)
                assert open_store(folder, write=False).verify() == []  # what is there is whole
                goes_on(folder, least)
    assert len(seen) > 30


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_operation_is_one_line_and_leaves_the_commit_before(number, tmp_path):
    """The first save is made on a whole disk; then the nth operation of the second fails, and all that follow."""
    for at in range(100):
        folder = tmp_path / str(at)
        with open_store(folder) as store:
            save(store, 1)
        failing = Failing(number, at, always=True)
        committed = False
        with open_store(folder, files=failing) as store:
            try:
                save(store, 2)
                committed = True
            except CheckpointError as error:
                assert "\n" not in str(error) and os.strerror(number) in str(error)
                assert ("no space left on the disk" in str(error)) == (number in FULL)
        if failing.count <= at:  # it got to its end
            assert committed
            break
        goes_on(folder, 2 if committed else 1)
    assert at > 8


@pytest.mark.parametrize(("operation", "at"), [("pwrite", 0), ("pwrite", 1), ("fsync", 1), ("rename", 0)])
def test_a_store_goes_on_after_an_error_and_leaves_nothing_of_the_save(operation, at, tmp_path):
    with open_store(tmp_path, files=Failing(errno.ENOSPC, at, (operation,))) as store:
        store.save(1, tensors(1), {"step": 1})
        with pytest.raises(CheckpointError, match="no space left"):
            store.wait()
        assert store.wait() == [] and not dead_files(store)  # the error is raised once
        assert store.steps() == []
        save(store, 2)
        assert is_whole(store.load())


def test_too_little_room_is_told_with_both_numbers_before_anything_is_written(tmp_path):
    class Small(Files):
        def free_bytes(self, folder):
            return 2_000_000

    with open_store(tmp_path, files=Small()) as store:
        with pytest.raises(CheckpointError, match="2 MB are free, step 1 may take 9 MB; make room"):
            store.save(1, {"a": np.zeros(2_000_000, np.float32)}, {})
        assert store.steps() == [] and not dead_files(store)
        save(store, 1)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    for operation in ("make_folder", "open_lock", "open_new"):
        with open_store(tmp_path / operation, files=Failing(errno.EROFS, 0, (operation,), always=True)) as store:
            with pytest.raises(CheckpointError, match=r"1\.json: cannot be written \(Read-only file system"):
                save(store, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file.*cannot be written"):
        save(open_store(tmp_path / "file"), 1)


def test_a_file_system_without_direct_access_gets_the_same_files(tmp_path):
    class Plain(Files):
        def open_new(self, path, *, direct=False):
            if direct:
                path.write_bytes(b"")  # as some do before they refuse
                raise OSError(errno.EINVAL, "no direct access")
            return super().open_new(path)

        def open_read(self, path, *, direct=False):
            if direct:
                raise OSError(errno.EINVAL, "no direct access")
            return super().open_read(path)

    class Late(Files):
        """Opens, but writes only through the page cache."""

        left = False

        def pwrite(self, handle, data, offset):
            if not self.left and not self.small(handle):
                raise OSError(errno.EINVAL, "no direct access")
            super().pwrite(handle, data, offset)

        def small(self, handle):
            return not os.readlink(f"/proc/self/fd/{handle}").endswith(".bin")

        def leave_direct(self, handle):
            self.left = True
            super().leave_direct(handle)

    contents = []
    for files in (FILES, Plain(), Late()):
        with open_store(tmp_path / type(files).__name__, files=files, keep=0) as store:
            for step in (1, 2):
                save(store, step)
                assert is_whole(store.load(step))
            contents.append([path.read_bytes() for path in sorted(store.folder.glob("*.bin"))])
            assert store.verify() == []
    assert contents[0] == contents[1] == contents[2] and len(contents[0]) == 2


CHILD = """
import sys, numpy as np
sys.path.insert(0, sys.argv[2])
from test_crash import open_store, tensors
store = open_store(sys.argv[1], keep=2)
step = int(sys.argv[3])
while True:
    store.save(step, tensors(step), {"step": step})
    for saved in store.poll():
        print(saved.step, flush=True)
    step += 1
"""


def test_a_process_killed_at_any_moment_leaves_a_whole_commit(tmp_path):
    """MINDSPEED_MS_CHECKPOINT_KILLS: how many times, 20 if not set."""
    draw, last = random.Random(5), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent), str(last + 1)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        told = int(process.stdout.readline())
        time.sleep(draw.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        told = [told, *map(int, process.communicate()[0].split())][-1]
        with open_store(tmp_path, keep=2) as store:
            found = store.load()
            assert found.step >= told and is_whole(found)
            assert store.verify() == []
            store.reclaim()
            assert not dead_files(store)
            last = found.step


@pytest.mark.parametrize("closing", [True, False])
def test_closing_finishes_a_running_save_and_a_process_that_just_ends_leaves_the_commit_before(closing, tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from mindspeed_ms.checkpoint.store import CheckpointStore\n"
        "store = CheckpointStore(sys.argv[1])\n"
        "store.save(6, {'a': np.zeros(1 << 22, np.float32)}, {}, wait=True)\n"
        "store.save(7, {'a': np.ones(1 << 22, np.float32)}, {})\n"
    ) + ("store.close()\n" if closing else "")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    found = open_store(tmp_path).load()
    assert found.step == 7 or (found.step == 6 and not closing)
    assert np.array_equal(found.tensors["a"], np.full(1 << 22, found.step - 6, np.float32))


def test_two_writers_are_told_apart_by_their_processes(tmp_path):
    with open_store(tmp_path) as first:
        save(first, 1)
        code = (
            "import sys, numpy as np\n"
            "from mindspeed_ms.checkpoint.store import CheckpointStore\n"
            "from mindspeed_ms.errors import CheckpointError\n"
            "store = CheckpointStore(sys.argv[1])\n"
            "assert store.load().step == 1 and store.verify() == []\n"
            "try:\n"
            "    store.save(2, {'a': np.ones(1)}, {})\n"
            "except CheckpointError as error:\n"
            "    print(error)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        assert f"another writer has these checkpoints (process {os.getpid()} on " in done.stdout
        with pytest.raises(CheckpointError, match=f"process {os.getpid()}"):
            open_store(tmp_path).prune()
    with open_store(tmp_path) as second:
        save(second, 2)
        assert second.steps() == [2]


def test_steps_decide_what_is_new_whatever_the_clock_says(tmp_path, monkeypatch):
    clock = iter(range(10**9, 0, -1000))
    monkeypatch.setattr("mindspeed_ms.checkpoint.commit.time.time", lambda: float(next(clock)))
    with open_store(tmp_path, keep=2) as store:
        for step in (1, 2, 3):
            save(store, step)
        assert store.steps() == [2, 3] and store.load().step == 3 and store.verify() == []
        assert store.manifest(2).time > store.manifest(3).time
