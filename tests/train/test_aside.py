"""Copies that are put off hold what tensors were before the update that changed them."""

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model

from mindspeed_ms.errors import KernelError
from mindspeed_ms.ops.aot import kernels
from mindspeed_ms.ops.native import aside
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.optimizer import SGD, Adafactor, AdamW, Lion
from mindspeed_ms.train.step import TrainStep

pytestmark = pytest.mark.skipif(kernels() != "native", reason="the reference bodies copy nothing")
OPTIMIZERS = {
    "adamw": AdamW(),
    "lion": Lion(),
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "adafactor": Adafactor(),
}


def make_step(optimizer, **options):
    spec = make_spec(num_hidden_layers=1)
    return TrainStep(CausalLMLoss(our_model(spec, drawn_weights(spec))), optimizer, 1e-2, **options)


def put_off(tensors):
    copies = {name: np.full_like(array, 7) for name, array in tensors.items()}
    aside.put_off([(array, copies[name]) for name, array in tensors.items()])
    return copies


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_makes_the_copies_before_it_changes_anything(name):
    step = make_step(OPTIMIZERS[name])
    step(make_batch(0))
    other = np.arange(5.0)  # that no optimizer ever sees
    tensors = {**step.tensors(), "other": other}
    before = {name: array.copy() for name, array in tensors.items()}
    copies = put_off(tensors)
    assert aside.waits() and all((copy == 7).all() for copy in copies.values() if copy.size)
    step(make_batch(1))
    assert not aside.waits()
    changed = 0
    for key, array in tensors.items():
        np.testing.assert_array_equal(copies[key], before[key], err_msg=key)
        changed += not np.array_equal(array, before[key])
    assert changed >= len(step.trained)
    step(make_batch(2))  # the copies are what they were: they are made once
    assert all(np.array_equal(copies[key], before[key]) for key in copies)


def test_a_copy_changes_no_bit_of_the_training():
    ends = []
    for copying in (False, True):
        step = make_step(AdamW())
        for number in range(3):
            if copying:
                kept = put_off(step.tensors())
            step(make_batch(number))
        ends.append({name: array.copy() for name, array in step.tensors().items()})
    assert kept and all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_skipped_step_leaves_them_to_the_next():
    step = make_step(AdamW())
    step(make_batch(0))
    weight = step.tensors()["model.model.norm.weight"]
    kept, good = weight.copy(), weight[0]
    weight[0] = np.nan
    copies = put_off(step.tensors())
    assert step(make_batch(1)).skipped and aside.waits()
    weight[0] = good
    assert not step(make_batch(1)).skipped and not aside.waits()
    np.testing.assert_array_equal(copies["model.model.norm.weight"], kept)


def test_they_are_made_at_once_when_asked_and_by_the_next_to_be_put_off():
    first, second = np.arange(1 << 20, dtype=np.float32), np.arange(3, dtype=np.int64)
    one, two = np.zeros_like(first), np.zeros_like(second)
    aside.put_off([(first, one)])
    aside.put_off([(second, two)])
    assert np.array_equal(first, one) and not two.any() and aside.waits()
    aside.copy_now()
    assert np.array_equal(second, two) and not aside.waits()
    first[:] = 1
    aside.copy_now()
    assert one[5] == 5


def test_every_size_and_place_is_copied_exactly():
    rng = np.random.default_rng(0)
    source, whole = rng.integers(0, 255, 5000, np.uint8), np.zeros(5200, np.uint8)
    for size in (1, 15, 16, 17, 63, 64, 65, 1000, 4999):
        for offset in (0, 1, 15, 64):
            whole[:] = 9
            aside.put_off([(source[1 : 1 + size], whole[offset : offset + size])])
            aside.copy_now()
            assert np.array_equal(whole[offset : offset + size], source[1 : 1 + size])
            assert (whole[:offset] == 9).all() and (whole[offset + size :] == 9).all()


def test_arrays_that_are_no_copies_of_one_another_are_refused():
    with pytest.raises(KernelError, match="8 bytes to 4"):
        aside.put_off([(np.zeros(2, np.float32), np.zeros(1, np.float32))])
    with pytest.raises(KernelError, match="contiguous"):
        aside.put_off([(np.zeros((4, 4), np.float32).T, np.zeros((4, 4), np.float32))])
