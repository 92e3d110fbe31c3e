"""Full checkpoints: committed or not there, verified or refused, and the ones before stay."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mindspeed_ms.checkpoint.plain import PlainStore
from mindspeed_ms.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]
STATE = {"step": {"step": 3, "scale": 0.1}, "loader": {"epoch": 0, "start": [0, 1]}, "none": None}


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "model.a": rng.standard_normal((5, 7)).astype(np.float32),
        "optimizer.m.a": rng.standard_normal((5, 7)).astype(np.float32).T,  # not contiguous
        "seed": np.array([1, -2], np.int32),
        "scalar": np.array(3.5, np.float64),
        "empty": np.zeros((0, 4), np.float16),
    }


def folder(tmp_path, step):
    return tmp_path / "checkpoints" / f"step-{step:08d}"


@pytest.fixture
def store(tmp_path):
    return PlainStore(tmp_path / "checkpoints", keep=2)


def test_what_was_saved_comes_back_bit_by_bit(store, tmp_path):
    saved = store.save(3, tensors(), STATE)
    found = store.load()
    assert found.step == 3 and found.state == STATE
    assert set(found.tensors) == set(tensors())
    for name, array in tensors().items():
        assert found.tensors[name].dtype == array.dtype and found.tensors[name].shape == array.shape
        assert found.tensors[name].tobytes() == array.tobytes()
    assert saved.path == str(folder(tmp_path, 3))
    assert saved.bytes == sum(file.stat().st_size for file in folder(tmp_path, 3).iterdir())


def test_the_tensors_are_a_file_that_the_safetensors_library_reads(store, tmp_path):
    store.save(1, tensors(), STATE)
    found = load_file(folder(tmp_path, 1) / "tensors.safetensors")
    assert all(np.array_equal(found[name], array) for name, array in tensors().items())


def test_no_checkpoint_is_none(store):
    assert store.steps() == [] and store.load() is None


def test_the_newest_are_kept_and_all_of_them_where_keep_is_0(tmp_path):
    for keep, left in ((2, [30, 200]), (0, [1, 30, 200])):
        store = PlainStore(tmp_path / str(keep), keep)
        for step in (1, 30, 200):
            store.save(step, tensors(step), STATE)
        assert store.steps() == left
        assert sorted(path.name for path in store.folder.iterdir()) == [f"step-{step:08d}" for step in left]
    with pytest.raises(CheckpointError, match="keep is -1"):
        PlainStore(tmp_path, keep=-1)


def test_a_step_that_is_saved_again_is_replaced(store, tmp_path):
    store.save(1, tensors(0), STATE)
    store.save(1, tensors(1), {"again": True})
    assert store.load().state == {"again": True}
    assert np.array_equal(store.load(1).tensors["model.a"], tensors(1)["model.a"])
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def other_value(path):
    path.write_text(path.read_text().replace('"epoch": 0', '"epoch": 1'))


DAMAGE = {
    "tensors cut": ("tensors.safetensors", cut),
    "a bit of the tensors": ("tensors.safetensors", flip),
    "no tensors": ("tensors.safetensors", Path.unlink),
    "no state": ("state.json", Path.unlink),
    "state cut": ("state.json", lambda path: path.write_bytes(path.read_bytes()[:40])),
    "state changed": ("state.json", other_value),
    "state of something else": ("state.json", lambda path: path.write_text("{}")),
    "state that is a list": ("state.json", lambda path: path.write_text("[1]")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(damage, store, tmp_path, caplog):
    store.save(1, tensors(1), STATE)
    store.save(2, tensors(2), STATE)
    name, spoil = DAMAGE[damage]
    spoil(folder(tmp_path, 2) / name)
    with pytest.raises(CheckpointError, match=f"step-00000002/{name}.*damaged"):
        store.load(2)
    found = store.load()
    assert found.step == 1 and np.array_equal(found.tensors["model.a"], tensors(1)["model.a"])
    assert "taking the checkpoint before it" in caplog.text


def test_where_each_is_damaged_the_newest_is_named(store, tmp_path):
    for step in (1, 2):
        store.save(step, tensors(), STATE)
        flip(folder(tmp_path, step) / "tensors.safetensors")
    with pytest.raises(CheckpointError, match="none of 2 checkpoints is whole; the newest: .*step-00000002"):
        store.load()


def test_another_version_of_the_format_is_refused_by_name(store, tmp_path):
    store.save(1, tensors(), STATE)
    path = folder(tmp_path, 1) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}))
    with pytest.raises(CheckpointError, match="version is 9, this program reads 1"):
        store.load(1)


def test_a_folder_that_was_renamed_is_refused(store, tmp_path):
    store.save(1, tensors(), STATE)
    folder(tmp_path, 1).rename(folder(tmp_path, 5))
    with pytest.raises(CheckpointError, match="step is 1, its folder says 5"):
        store.load(5)


def test_a_disk_without_room_is_one_line_and_leaves_the_checkpoint_before(store, tmp_path):
    """A limit on the size of files is what a test can have of a full disk."""
    store.save(1, tensors(), STATE)
    code = (
        "import resource, sys, numpy as np\n"
        "from mindspeed_ms.checkpoint.plain import PlainStore\n"
        "from mindspeed_ms.errors import CheckpointError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        "    PlainStore(sys.argv[1]).save(2, {'a': np.ones(1 << 20, np.float32)}, {})\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no space left on the disk" in done.stdout and len(done.stdout.splitlines()) == 1
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]
    assert store.load().step == 1


def test_a_process_killed_while_it_saves_leaves_the_checkpoint_before(store, tmp_path):
    store.save(1, tensors(), STATE)
    code = (
        "import sys, numpy as np\n"
        "from mindspeed_ms.checkpoint.plain import PlainStore\n"
        "store, step = PlainStore(sys.argv[1], keep=2), 1\n"
        "while True:\n"
        "    step += 1\n"
        "    store.save(step, {'a': np.full(1 << 21, step, np.float32)}, {'step': step})\n"
        "    print(step, flush=True)\n"
    )
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(store.folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        last = [2, *map(int, process.communicate()[0].split())][-1]
        found = store.load()
        assert found.step >= last
        assert found.step == 1 or np.array_equal(found.tensors["a"], np.full(1 << 21, found.step, np.float32))


def test_a_tensor_type_that_the_format_lacks_is_refused(store):
    with pytest.raises(CheckpointError, match="'a' is complex64"):
        store.save(1, {"a": np.zeros(2, np.complex64)}, {})
    assert store.steps() == []
