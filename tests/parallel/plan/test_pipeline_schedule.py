"""Simulated pipeline schedules against the bubbles and the micro-batches in flight that the papers state."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import memory
from mindspeed_ms.parallel.plan.pipeline_schedule import (
    SCHEDULES,
    bubble,
    events,
    in_flight,
    play,
    span,
    work_of,
)
from mindspeed_ms.parallel.plan.settings import Settings


def share_of_idle(schedule, stages, micro_batches, virtual=1, weight=None):
    chunks = stages * virtual
    run = play(schedule, stages, micro_batches, [1 / virtual] * chunks, [2 / virtual] * chunks, weight=weight)
    return 1 - 3 * micro_batches / run.seconds


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_1f1b_and_gpipe_stand_idle_p_minus_1_of_m_plus_p_minus_1(stages):
    for micro_batches in (1, 2, 5, 8, 32):
        right = (stages - 1) / (micro_batches + stages - 1)
        assert share_of_idle("1f1b", stages, micro_batches) == pytest.approx(right)
        assert share_of_idle("gpipe", stages, micro_batches) == pytest.approx(right)
        assert bubble("1f1b", stages, micro_batches) == pytest.approx(right)


@pytest.mark.parametrize(("stages", "virtual"), [(2, 2), (4, 2), (4, 4), (8, 3)])
def test_interleaving_v_chunks_makes_the_bubble_v_times_smaller(stages, virtual):
    # Narayanan et al. 2021, section 2.2: the bubble over the ideal time is (p - 1) / (v m).
    for rounds in (1, 2, 5):
        micro_batches = rounds * stages
        ideal = 3 * micro_batches
        right = ideal * (stages - 1) / (virtual * micro_batches)
        idle = share_of_idle("interleaved", stages, micro_batches, virtual)
        assert idle == pytest.approx(right / (ideal + right))
        assert bubble("interleaved", stages, micro_batches, virtual) == pytest.approx(idle)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zero_bubble_stands_idle_for_p_minus_1_times_forward_plus_backward_less_weight(stages):
    # Qi et al. 2023, table 2: (p - 1)(T_F + T_B - T_W) of ZB-H1, against (p - 1)(T_F + T_B + T_W) of 1F1B.
    for micro_batches in (stages, 2 * stages, 5 * stages):
        idle = share_of_idle("zero_bubble", stages, micro_batches)
        assert idle == pytest.approx((stages - 1) / (3 * micro_batches + stages - 1))
        assert bubble("zero_bubble", stages, micro_batches) == pytest.approx(idle)


def peak_held(schedule, stages, micro_batches, virtual, stage):
    """Counts what is alive in the order of work itself: from its forward pass to its last gradient."""
    last = "W" if schedule == "zero_bubble" else "B"
    held = peak = 0
    for kind, _, _ in work_of(schedule, stages, micro_batches, virtual, stage):
        held += {"F": 1, last: -1}.get(kind, 0)
        peak = max(peak, held)
    return peak / virtual


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_micro_batches_in_flight_are_those_that_the_order_of_work_holds(schedule):
    for stages, rounds, virtual in itertools.product(
        (2, 4, 8), (1, 2, 4), (2, 3) if schedule == "interleaved" else (1,)
    ):
        for stage in range(stages):
            held = peak_held(schedule, stages, rounds * stages, virtual, stage)
            assert in_flight(schedule, stages, rounds * stages, virtual, stage) == pytest.approx(held)


def test_the_first_stage_of_1f1b_holds_as_many_micro_batches_as_there_are_stages_and_gpipe_all():
    assert in_flight("1f1b", 8, 64, 1, 0) == 8
    assert in_flight("1f1b", 8, 64, 1, 7) == 1
    assert in_flight("1f1b", 8, 3, 1, 0) == 3
    assert in_flight("gpipe", 8, 64, 1, 7) == 64
    # Narayanan et al. 2021: interleaving holds 1 + (p - 1) / (p v) as much as 1F1B.
    assert in_flight("interleaved", 8, 64, 2, 0) == pytest.approx(8 * (1 + 7 / 16))


@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)])
def test_every_micro_batch_runs_once_on_every_chunk_after_what_it_needs_and_no_stage_does_two_things(schedule, virtual):
    stages, micro_batches = 4, 8
    chunks = stages * virtual
    forward = [1 + 0.3 * i for i in range(chunks)]
    found = events(schedule, stages, micro_batches, forward, [2 * t for t in forward], 0.25)
    kinds = "FBW" if schedule == "zero_bubble" else "FB"
    done = {(e.kind, e.chunk * stages + e.stage, e.micro_batch): e for e in found}
    assert len(found) == len(done) == len(kinds) * chunks * micro_batches
    for (kind, place, number), event in done.items():
        before = {"F": ("F", place - 1), "B": ("B", place + 1), "W": ("B", place)}[kind]
        if (*before, number) in done:
            far = done[(*before, number)]
            assert event.start >= far.end + (0.25 if far.stage != event.stage else 0) - 1e-9
        if kind == "B":
            assert event.start >= done["F", place, number].end - 1e-9
    for stage in range(stages):
        own = sorted((e.start, e.end) for e in found if e.stage == stage)
        assert all(one[1] <= two[0] + 1e-9 for one, two in itertools.pairwise(own))
    assert Counter(e.stage for e in found) == dict.fromkeys(range(stages), len(found) // stages)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counting_what_repeats_gives_what_playing_all_gives(data):
    stages = data.draw(st.sampled_from([2, 4, 8]))
    schedule = data.draw(st.sampled_from(SCHEDULES))
    virtual = 2 if schedule == "interleaved" else 1
    micro_batches = stages * data.draw(st.integers(1, 12))
    seconds = st.floats(0.5, 1.5)
    forward = data.draw(st.lists(seconds, min_size=stages * virtual, max_size=stages * virtual))
    backward = [2 * t for t in forward]
    transfer = data.draw(st.sampled_from([0.0, 0.05]))
    every = play(schedule, stages, micro_batches, forward, backward, transfer).seconds
    assert span(schedule, stages, micro_batches, forward, backward, transfer).seconds == pytest.approx(every, rel=0.02)


def test_no_stage_ends_before_its_work_is_done_where_what_repeats_is_counted():
    # A light first chunk and lighter last ones: the first rounds do not show yet that some stages have more to do.
    forward = [26.3, *[37.9] * 12, 28.4, 28.4, 34.4]
    backward = [45.2, *[57.0] * 12, 42.7, 42.7, 53.5]
    args = ("interleaved", 8, 128, forward, backward)
    counted = span(*args)
    for stage, end in enumerate(counted.ends):
        assert end >= 128 * sum(forward[stage::8] + backward[stage::8])
    assert counted.seconds == pytest.approx(play(*args).seconds, rel=1e-9)


def test_counting_what_repeats_is_exact_for_equal_stages():
    for schedule, virtual in (("gpipe", 1), ("1f1b", 1), ("interleaved", 3), ("zero_bubble", 1)):
        args = (schedule, 8, 200, [1.0] * 8 * virtual, [2.0] * 8 * virtual, 0.1)
        assert span(*args).seconds == pytest.approx(play(*args).seconds, rel=1e-12)


def test_the_slowest_stage_sets_the_pace():
    uneven = play("1f1b", 4, 64, [1, 1, 1.5, 1], [2, 2, 3, 2]).seconds
    # The slow stage works all the time but for the first micro-batch's way there and the last one's way back.
    assert uneven == pytest.approx(64 * 4.5 + 2 * 1 + 1 * 3 + 2 * 2, abs=3)


def test_a_schedule_or_virtual_stages_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="one of gpipe"):
        play("1F1B", 2, 2, [1, 1], [1, 1])
    with pytest.raises(ConfigError, match="interleaved"):
        play("1f1b", 2, 2, [1] * 4, [1] * 4)


def test_the_model_of_memory_counts_the_same_micro_batches():
    for schedule, virtual in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)):
        for stage in range(4):
            one = Settings(pipeline=4, micro_batches=8, schedule=schedule, virtual=virtual)
            held = sum(memory.in_flight(one, stage)) / virtual
            assert held == pytest.approx(in_flight(schedule, 4, 8, virtual, stage)), (schedule, stage)
