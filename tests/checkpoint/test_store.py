"""The store: what was saved comes back, later saves refer to earlier ones, and the rules say what stays."""

import math
import threading

import numpy as np
import pytest

from mindspeed_ms.checkpoint.records import NotFinite
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

CHUNK = 4096
STATE = {"step": {"step": 3, "scale": 0.1}, "loader": {"epoch": 0, "start": [0, 1]}, "none": None}


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "model.a": rng.standard_normal((50, 70)).astype(np.float32),
        "optimizer.m.a": rng.standard_normal((50, 70)).astype(np.float32).T,  # not contiguous
        "half": rng.standard_normal(3000).astype(np.float16),
        "seed": np.array([1, -2], np.int32),
        "scalar": np.array(3.5, np.float64),
        "empty": np.zeros((0, 4), np.float16),
        "flags": rng.integers(0, 2, 9).astype(bool),
        "long": rng.integers(-(2**62), 2**62, 5),
    }


def same(found, expected):
    return set(found) == set(expected) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@pytest.fixture
def make(tmp_path):
    stores = []

    def make(**options):
        stores.append(CheckpointStore(tmp_path / "checkpoints", **{"chunk_bytes": CHUNK, **options}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def bins(store):
    return sorted(path.name for path in store.folder.glob("*.bin"))


def test_what_was_saved_comes_back_bit_by_bit(make):
    store = make()
    store.save(3, tensors(), STATE, metric=1.5, wait=True)
    found = store.load()
    assert found.step == 3 and found.state == STATE and found.metric == 1.5
    assert same(found.tensors, tensors())


def test_what_a_save_tells(make):
    store = make()
    store.save(3, tensors(), STATE)
    (saved,) = store.wait()
    assert store.poll() == []
    files = [path for path in store.folder.iterdir() if path.suffix in (".bin", ".json")]
    assert saved.path == str(store.folder / "step-00000003.json") and saved.base and saved.step == 3
    assert saved.bytes == sum(path.stat().st_size for path in files)
    assert saved.raw_bytes == sum(array.nbytes for array in tensors().values())
    assert 0 <= saved.blocked and 0 < saved.seconds


def test_the_arrays_may_change_when_save_returns(make):
    store, mine = make(), tensors()
    store.save(1, mine, STATE)
    for array in mine.values():
        array[...] = 0
    store.wait()
    assert same(store.load().tensors, tensors())


def test_one_array_by_two_names_and_parts_of_it_are_each_saved(make):
    store, array = make(), tensors()["model.a"]
    mine = {"a": array, "tied": array, "rows": array[3:5], "all": array[:]}
    for late in ((), ("a", "tied", "all")):
        store.save(1, mine, STATE, late=late, wait=True)
        assert same(store.load().tensors, mine)


def test_tensors_are_read_into_arrays_and_a_part_of_them_by_name(make):
    store = make()
    store.save(1, tensors(), STATE, wait=True)
    into = {"half": np.zeros(3000, np.float16)}
    assert store.load(into=into).tensors["half"] is into["half"]
    assert np.array_equal(into["half"], tensors()["half"])
    assert set(store.load(names=["half", "seed"]).tensors) == {"half", "seed"}
    assert set(store.load(names=lambda name: name.startswith("model.")).tensors) == {"model.a"}
    with pytest.raises(CheckpointError, match="has no tensor 'none'"):
        store.load(1, names=["none"])
    with pytest.raises(CheckpointError, match=r"'half' is float16 \[3000\], its place float32 \[3000\]"):
        store.load(1, into={"half": np.zeros(3000, np.float32)})


def test_no_checkpoint_is_none(make):
    assert make().steps() == [] and make().load() is None


def test_what_did_not_change_is_not_written_again(make):
    store = make(keep=0)
    store.save(1, tensors(), STATE, wait=True)
    changed = tensors() | {"seed": np.array([5, 6], np.int32)}
    store.save(2, changed, STATE)
    (_, saved) = store.wait()
    assert not saved.base and len(bins(store)) == 2
    assert (store.folder / bins(store)[1]).stat().st_size == 4096
    store.save(3, changed, STATE, wait=True)
    assert len(bins(store)) == 2  # nothing to write
    assert same(store.load(1).tensors, tensors()) and same(store.load(3).tensors, changed)
    assert store.verify() == []


def test_a_value_that_is_not_finite_is_named_and_nothing_is_committed(make):
    for value in (math.nan, math.inf, -math.inf):
        store, bad = make(), tensors()
        bad["half"][2999] = value
        store.save(1, bad, STATE, finite=["model.a", "half"])
        with pytest.raises(NotFinite, match="'half' is not finite"):
            store.wait()
        assert store.wait() == [] and store.steps() == [] and bins(store) == []
        store.save(1, bad, STATE, finite=["model.a"], wait=True)
        store.forget_after(0)
        store.close()


def test_a_save_while_the_former_runs_waits_for_it(make):
    store = make(keep=0)
    for step in range(1, 6):
        store.save(step, tensors(step), {"step": step})
    assert [saved.step for saved in store.wait()] == [1, 2, 3, 4, 5]
    assert all(same(store.load(step).tensors, tensors(step)) for step in range(1, 6))
    assert threading.active_count() == 1 or not any("checkpoint" in item.name for item in threading.enumerate())
