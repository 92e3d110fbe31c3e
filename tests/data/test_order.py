"""The order of rows: every row once, in proportion, by seed and epoch, and resumable onto any number of ranks."""

import itertools
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data.order import Plan, Progress, deal, fresh, load, permutation, replan, save
from mindspeed_ms.errors import ConfigError, DataError

SET = "ab" * 32
sizes = st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any)


def rows_of(plan, world_size, first=0, last=None):
    """(bucket, row) of every real row of these steps, over all ranks; checks what holds of every step."""
    seen = []
    for step in range(first, plan.steps if last is None else last):
        takes = [plan.take(step, rank, world_size) for rank in range(world_size)]
        assert len({bucket for bucket, _ in takes}) == 1, "all ranks have the same bucket at a step"
        counts = [len(rows) for _, rows in takes]
        bucket = takes[0][0]
        assert 0 < sum(counts) <= plan.progress.batch[bucket]
        assert max(counts) <= -(-plan.progress.batch[bucket] // world_size)
        seen += [(bucket, int(row)) for _, rows in takes for row in rows]
    return seen


def every_row(rows):
    return [(bucket, row) for bucket, count in enumerate(rows) for row in range(count)]


@settings(max_examples=100, deadline=None)
@given(sizes, st.integers(1, 5), st.integers(1, 5), st.one_of(st.none(), st.integers(0, 2**63 - 1)), st.integers(0, 3))
def test_an_epoch_has_every_row_once_over_all_ranks(rows, batch, world_size, seed, epoch):
    plan = Plan(rows, fresh(rows, [batch * world_size] * len(rows), epoch), seed)
    assert sorted(rows_of(plan, world_size)) == every_row(rows)
    assert plan.steps == sum(-(-count // (batch * world_size)) for count in rows)


@settings(max_examples=100, deadline=None)
@given(
    sizes,
    st.integers(0, 99),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_no_row_is_lost_or_repeated_when_an_epoch_goes_on_with_other_batch_and_world_sizes(rows, seed, shuffle, parts):
    seed = seed if shuffle else None
    progress, seen, steps = fresh(rows, [3] * len(rows), epoch=2), [], 0
    for batch, world_size, share in parts:
        progress = load(json.loads(json.dumps(save(progress, SET, seed))), rows, SET, seed)
        progress = replan(Plan(rows, progress, seed), [batch * world_size] * len(rows))
        plan = Plan(rows, progress, seed)
        left = plan.steps - progress.part_step
        now = progress.part_step + min(int(share * left), left - 1)
        seen += rows_of(plan, world_size, progress.part_step, now)
        steps += now - progress.part_step
        progress = plan.after(now)
        assert progress.step == steps
    seen += rows_of(Plan(rows, progress, seed), world_size, progress.part_step)
    assert sorted(seen) == every_row(rows)


@pytest.mark.parametrize(("batch", "world_size"), [(12, 1), (6, 2), (4, 3), (2, 6)])
def test_the_same_global_batch_has_the_same_rows_on_any_number_of_ranks(batch, world_size):
    rows = [50, 31, 7]
    plan = Plan(rows, fresh(rows, [batch * world_size] * 3), seed=5)
    one = Plan(rows, fresh(rows, [12] * 3), seed=5)
    for step in range(one.steps):
        bucket, expected = one.take(step, 0, 1)
        takes = [plan.take(step, rank, world_size) for rank in range(world_size)]
        assert {number for number, _ in takes} == {bucket}
        np.testing.assert_array_equal(np.concatenate([found for _, found in takes]), expected)


def test_a_short_batch_is_dealt_as_evenly_as_can_be():
    assert [deal(7, rank, 4) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert [deal(2, rank, 4) for rank in range(4)] == [(0, 1), (1, 2), (2, 2), (2, 2)]
    assert [deal(8, rank, 4) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_without_shuffling_rows_come_as_they_are_stored():
    rows = [5, 3]
    plan = Plan(rows, fresh(rows, [2, 2], epoch=3), seed=None)
    assert [plan.take(step, 0, 1) for step in range(plan.steps)] == [
        (0, range(0, 2)),
        (0, range(2, 4)),
        (0, range(4, 5)),
        (1, range(0, 2)),
        (1, range(2, 3)),
    ]


def test_seeds_epochs_and_buckets_have_orders_of_their_own():
    rows = [200, 200]
    orders = {}
    for seed, epoch in itertools.product([0, 1, 2], [0, 1, 2]):
        plan = Plan(rows, fresh(rows, [200, 200], epoch), seed)
        for step in range(2):
            bucket, taken = plan.take(step, 0, 1)
            orders[seed, epoch, bucket] = tuple(taken.tolist())
    assert len(orders) == 18 == len(set(orders.values()))
    again = Plan(rows, fresh(rows, [200, 200], 1), 2)
    assert all(tuple(t.tolist()) == orders[2, 1, b] for b, t in (again.take(s, 0, 1) for s in range(2)))


def test_a_bucket_is_drawn_in_proportion_to_the_batches_left():
    """Over many seeds, the share of bucket 0 at each step is its share of all batches: 30 of 40."""
    rows = [60, 20]
    draws = np.array([Plan(rows, fresh(rows, [2, 2]), seed).buckets for seed in range(2000)])
    # Standard error of a share of 0.75 over 2000 draws: 0.0097.
    np.testing.assert_allclose((draws == 0).mean(axis=0), 0.75, atol=5 * 0.0097)
    # Without replacement: given the first draw, the second follows what is left, 29 of 39 or 30 of 39.
    np.testing.assert_allclose((draws[draws[:, 0] == 0][:, 1] == 0).mean(), 29 / 39, atol=0.05)
    np.testing.assert_allclose((draws[draws[:, 0] == 1][:, 1] == 0).mean(), 30 / 39, atol=0.08)


def test_permutations_are_uniform():
    """All 24 orders of four things come equally often: chi-squared over 24000 seeds, 23 degrees of freedom."""
    counts = Counter(tuple(permutation(4, seed, (0, 0)).tolist()) for seed in range(24000))
    assert len(counts) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 49.7  # exceeded once in 1000 times


@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 257, (1 << 20) + 3])
def test_a_permutation_has_every_number_once(count):
    found = permutation(count, 7, (1, 2))
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(np.sort(found), np.arange(count))


def test_a_permutation_is_the_order_of_philox_numbers_whatever_sorts_them():
    """The definition in plain Python, on NumPy's two guaranteed streams: what other versions have to give as well."""
    raw = np.random.Philox(np.random.SeedSequence(42, spawn_key=(3, 1))).random_raw(100).tolist()
    expected = sorted(range(100), key=lambda index: (raw[index] >> 7, index))
    assert permutation(100, 42, (3, 1)).tolist() == expected


def test_philox_and_seed_sequence_are_what_they_were():
    """Resuming under another NumPy rests on this; the first is Random123's known answer for a zero key and counter."""
    assert np.random.SeedSequence(42).generate_state(2).tolist() == [3444837047, 2669555309]
    # Philox4x64-10 in NumPy counts before it draws, so a counter of -1 gives the known answer of counter 0.
    zero = np.random.Philox(key=0, counter=(1 << 256) - 1).random_raw(4).tolist()
    assert [f"{word:016x}" for word in zero] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    plan = Plan([5, 3], fresh([5, 3], [2, 2], epoch=4), seed=1)
    assert plan.after(plan.steps) == fresh([5, 3], [2, 2], epoch=5)
    assert plan.after(2) == replace(fresh([5, 3], [2, 2], epoch=4), part_step=2, step=2)


def test_a_state_is_small_and_json():
    rows = [10**9] * 5
    assert len(json.dumps(save(fresh(rows, [64] * 5), SET, 3))) < 500


GOOD = save(Progress(start=(4, 2), batch=(2, 2), epoch=3, part=1, part_step=2, step=5), SET, 7)


def test_a_good_state_loads_as_it_was_saved():
    assert save(load(GOOD, [10, 6], SET, 7), SET, 7) == GOOD


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"set": "cd" * 32}, "set is"),
        ({"set": None}, "set is"),
        ({"epoch": -1}, "epoch is"),
        ({"epoch": 1.0}, "epoch is"),
        ({"epoch": True}, "epoch is"),
        ({"part": "1"}, "part is"),
        ({"part": 0}, "start is"),
        ({"start": [4]}, "start is"),
        ({"start": [4, 7]}, "start is"),
        ({"start": [-1, 2]}, "start is"),
        ({"start": "42"}, "start is"),
        ({"batch": [2, 0]}, "batch is"),
        ({"batch": [2, 2, 2]}, "batch is"),
        ({"batch": [2, 1 << 40]}, "batch is"),
        ({"part_step": 5}, "part_step is"),
        ({"part_step": -1}, "part_step is"),
        ({"step": 1}, "step is"),
        ({"step": 10**9}, "step is"),
        ({"start": [10, 6]}, "part_step is"),
        ({"more": 1}, "it has"),
    ],
)
def test_a_state_that_lies_is_refused_by_field(change, names):
    with pytest.raises(DataError, match=f"^loader state: {names}"):
        load({**GOOD, **change}, [10, 6], SET, 7)


@pytest.mark.parametrize("state", [None, [], {}, "state", {**{k: v for k, v in GOOD.items() if k != "step"}}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(DataError, match="^loader state: it has"):
        load(state, [10, 6], SET, 7)


@pytest.mark.parametrize("seed", [8, None, True])
def test_a_state_of_another_seed_is_refused(seed):
    with pytest.raises(ConfigError, match="^loader state: seed is"):
        load({**GOOD, "seed": seed}, [10, 6], SET, 7)
