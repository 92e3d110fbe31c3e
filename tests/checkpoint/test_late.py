"""Tensors that are copied late: by the update that changes them, or when somebody waits."""

import numpy as np
import pytest

from mindspeed_ms.checkpoint.kernels import native
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import KernelError
from mindspeed_ms.ops.native import aside

pytestmark = pytest.mark.skipif(not native(), reason="the reference code copies at once")


def state():
    rng = np.random.default_rng(0)
    return {
        "weight": rng.standard_normal((300, 200)).astype(np.float32),
        "turned": rng.standard_normal((30, 20)).astype(np.float32).T,  # cannot be put off: copied at once
        "seed": np.array([3, 4], np.int32),
        "none": np.zeros((0, 3), np.float32),
    }


def test_the_background_begins_when_the_update_has_copied_them(tmp_path):
    tensors = state()
    before = {name: array.copy() for name, array in tensors.items()}
    with CheckpointStore(tmp_path) as store:
        store.save(1, tensors, {}, late={"weight", "turned", "none"})
        tensors["seed"][:] = 9  # was copied at once
        assert aside.waits() and store.poll() == [] and store.steps() == []
        aside.copy_now()  # what a native optimizer does before it changes them
        for array in tensors.values():
            array[...] = 7
        saved = store.poll() + store.wait()
        assert [one.step for one in saved] == [1]
        found = store.load().tensors
        assert all(np.array_equal(found[name], array) for name, array in before.items())


@pytest.mark.parametrize("how", ["wait", "save", "close", "prune"])
def test_whoever_waits_has_them_copied(how, tmp_path):
    tensors = state()
    store = CheckpointStore(tmp_path, keep=0)
    store.save(1, tensors, {}, late=set(tensors))
    if how == "wait":
        assert [one.step for one in store.wait()] == [1]
    elif how == "save":
        store.save(2, tensors, {}, wait=True)
    elif how == "prune":
        store.prune()
    store.close()
    assert not aside.waits()
    found = CheckpointStore(tmp_path).load(1).tensors
    assert all(np.array_equal(found[name], array) for name, array in tensors.items())


def test_another_copy_that_is_put_off_is_none_of_its_business(tmp_path):
    source, target = np.ones(5, np.float32), np.zeros(5, np.float32)
    tensors = state()
    with CheckpointStore(tmp_path) as store:
        store.save(1, tensors, {}, late={"weight"})
        aside.put_off([(source, target)])  # copies what waits
        store.wait()
        assert np.array_equal(store.load().tensors["weight"], tensors["weight"])
    aside.copy_now()
    assert target.all()


def test_arrays_have_to_be_contiguous():
    with pytest.raises(KernelError, match="contiguous"):
        aside.put_off([(np.zeros((4, 4)).T, np.zeros((4, 4)))])


def test_a_commit_is_told_however_often_one_asks_meanwhile(tmp_path):
    tensors = {str(number): np.ones(1 << 20, np.float32) for number in range(8)}
    with CheckpointStore(tmp_path) as store:
        store.save(1, tensors, {})
        told = []
        while store.steps() != [1]:
            told += store.poll()
        assert [one.step for one in told + store.wait()] == [1]
