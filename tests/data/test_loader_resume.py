"""BucketLoader: the order of batches, and going on from a state exactly, also on other ranks or batch sizes."""

import json
import time

import pytest
from data_batches import BUCKETS, arrays, real_rows, same, stored_rows
from data_sets import make_set

from mindspeed_ms.errors import DataError

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, BUCKETS, loss_mask=True, shards=3)
    return folder


def test_the_order_follows_from_seed_and_epoch_alone(folder):
    one, two = arrays(folder, seed=9), arrays(folder, seed=9, prefetch=7)
    first = list(one)
    same(two, first)
    second = list(one)
    assert [batch.epoch for batch in second] == [1] * len(second)
    assert [b["input_ids"].tobytes() for b in first] != [b["input_ids"].tobytes() for b in second]
    assert real_rows(first) == real_rows(second)
    two.set_epoch(1)
    same(two, second)
    assert [b["input_ids"].tobytes() for b in arrays(folder, seed=10)] != [b["input_ids"].tobytes() for b in first]


def test_len_is_what_iterating_gives_now(folder):
    made = arrays(folder)
    assert len(made) == len(list(made)) == 10 + 5 + 2
    iterator = iter(made)
    next(iterator), next(iterator)
    assert (len(made), made.epoch, made.step) == (15, 1, 2)
    assert len(list(iterator)) == 15
    assert (len(made), made.epoch, made.step) == (17, 2, 0)


@pytest.mark.parametrize("prefetch", [1, 2, 8])
def test_a_state_is_of_what_was_handed_over_and_not_of_what_was_made_ahead(folder, prefetch):
    whole = list(arrays(folder, seed=2))
    for taken in range(len(whole) + 1):
        made, again = arrays(folder, seed=2, prefetch=prefetch), arrays(folder, seed=2)
        iterator = iter(made)
        for _ in range(taken):
            next(iterator)
        time.sleep(0.002)  # let the thread run ahead
        again.load_state_dict(json.loads(json.dumps(made.state_dict())))
        made.close()
        if taken < len(whole):
            same(again, whole[taken:])
        else:
            assert again.epoch == 1 and len(list(again)) == len(whole)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_goes_on_over_other_world_and_batch_sizes_without_losing_or_repeating_a_row(folder, shuffle):
    state, seen = None, []
    for batch_size, world_size, steps in [(2, 2, 4), (3, 1, 3), (1, 4, 2), (2, 3, None)]:
        states = []
        for rank in range(world_size):
            made = arrays(folder, batch_size=batch_size, rank=rank, world_size=world_size, shuffle=shuffle)
            if state:
                made.load_state_dict(state)
            iterator = iter(made)
            seen += list(iterator) if steps is None else [next(iterator) for _ in range(steps)]
            made.close()
            states.append(made.state_dict())
        assert all(other == states[0] for other in states), "the state is the same on every rank"
        state = states[0]
    assert real_rows(seen) == stored_rows(folder)
    assert (state["epoch"], state["step"]) == (1, 0)


def test_leaving_an_iteration_and_iterating_again_goes_on(folder):
    made, whole = arrays(folder, seed=4), list(arrays(folder, seed=4))
    got = []
    for batch in made:
        got.append(batch)
        if len(got) == 5:
            break
    same([*got, *made], whole)


def test_a_second_iteration_ends_the_first(folder):
    made = arrays(folder, seed=4)
    first = iter(made)
    got = [next(first), next(first)]
    second = iter(made)
    got.append(next(second))
    with pytest.raises(StopIteration):
        next(first)
    same([*got, *second], arrays(folder, seed=4))


def test_a_state_of_another_set_is_refused_and_changes_nothing(folder, tmp_path):
    make_set(tmp_path, BUCKETS, seed=1)
    made, other = arrays(folder), arrays(tmp_path)
    iterator = iter(made)
    next(iterator)
    before = made.state_dict()
    with pytest.raises(DataError, match="^loader state: set is"):
        made.load_state_dict(other.state_dict())
    assert made.state_dict() == before and len(list(iterator)) == 16
