"""Reduction of gradients behind the backward pass."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.parallel.plan.overlap import best_bucket, best_even_bucket, even_layers, reduce_behind


def cost(nbytes):
    return 0.5 + nbytes / 100


def test_a_reduction_as_short_as_a_layer_leaves_only_the_last_one_exposed():
    found = reduce_behind([1.0] * 8, [50.0] * 8, 1, lambda nbytes: 0.9)
    assert found.exposed == pytest.approx(0.9)
    assert found.hidden == pytest.approx(7 * 0.9)


def test_a_network_that_is_the_bottleneck_works_from_the_first_layer_on():
    found = reduce_behind([1.0] * 4, [1.0] * 4, 1, lambda nbytes: 3.0)
    assert found.exposed == pytest.approx(1 + 4 * 3 - 4)


def test_all_in_one_bucket_hides_nothing():
    found = reduce_behind([1.0] * 4, [25.0] * 4, 100, cost)
    assert (found.exposed, found.hidden, found.buckets) == (pytest.approx(1.5), 0, (4,))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.1, 3), st.floats(1, 400))
def test_equal_layers_need_no_walk(layers, bucket, seconds, nbytes):
    short = even_layers(layers, seconds, nbytes, min(bucket, layers), cost)
    walked = reduce_behind([seconds] * layers, [nbytes] * layers, min(bucket, layers) * nbytes * 0.999, cost)
    assert short.exposed == pytest.approx(walked.exposed, abs=1e-9)
    assert short.communication == pytest.approx(walked.communication)
    assert short.buckets == walked.buckets


def exhaustive(seconds, nbytes):
    """The least exposed over every way to cut the layers into buckets of neighbours."""
    layers = len(seconds)
    best = float("inf")
    for cuts in itertools.product((False, True), repeat=layers - 1):
        clock = free = waiting = 0.0
        for index in range(layers):
            clock += seconds[index]
            waiting += nbytes[index]
            if index == layers - 1 or cuts[index]:
                free, waiting = max(free, clock) + cost(waiting), 0.0
        best = min(best, free - clock)
    return best


def test_the_best_bucket_is_near_the_best_of_all_ways_to_cut():
    for nbytes in (5.0, 60.0, 300.0):
        seconds, sizes = [1.0] * 10, [nbytes] * 10
        _, found = best_bucket(seconds, sizes, cost)
        _, even = best_even_bucket(10, 1.0, nbytes, cost)
        right = exhaustive(seconds, sizes)
        assert right - 1e-9 <= found.exposed <= 1.25 * right
        assert even.exposed == pytest.approx(found.exposed)
        assert found.exposed <= reduce_behind(seconds, sizes, 1, cost).exposed
        assert found.exposed <= reduce_behind(seconds, sizes, sum(sizes), cost).exposed
