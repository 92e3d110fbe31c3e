"""Bucket boundaries are the exact optimum."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data.boundaries import halved_boundaries, optimal_boundaries, padding
from mindspeed_ms.errors import DataError


def brute_force(documents, buckets, multiple_of):
    """The least padding over every choice of boundaries."""
    rounded = sorted({-(-d // multiple_of) * multiple_of for d in documents})
    best = None
    for count in range(1, min(buckets, len(rounded)) + 1):
        for inner in combinations(rounded[:-1], count - 1):
            limits = [*inner, rounded[-1]]
            cost = sum(min(limit for limit in limits if limit >= d) - d for d in documents)
            best = cost if best is None else min(best, cost)
    return best


documents = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(documents, st.integers(1, 5), st.sampled_from([1, 1, 4, 16]))
def test_the_padding_is_the_least_there_is(documents, buckets, multiple_of):
    lengths, counts = np.unique(documents, return_counts=True)
    found = optimal_boundaries(lengths, counts, buckets, multiple_of)
    assert found == sorted(set(found)) and len(found) <= buckets
    assert all(boundary % multiple_of == 0 for boundary in found)
    assert padding(lengths, counts, found) == brute_force(documents, buckets, multiple_of)


def test_enough_buckets_leave_no_padding():
    lengths = np.array([3, 7, 8])
    assert optimal_boundaries(lengths, np.array([5, 1, 2]), 9) == [3, 7, 8]


def test_large_counts_stay_exact():
    lengths, counts = np.array([1, 1000, 1001, 2000]), np.array([2**40, 2**40, 1, 2**40])
    assert optimal_boundaries(lengths, counts, 3) == [1, 1000, 2000]


def test_many_lengths_take_no_time():
    lengths = np.arange(1, 40_001)
    counts = np.random.default_rng(0).integers(1, 1000, len(lengths))
    found = optimal_boundaries(lengths, counts, 8)
    even = [5000 * i for i in range(1, 9)]
    assert padding(lengths, counts, found) <= padding(lengths, counts, even)


def test_no_documents_is_an_error():
    with pytest.raises(DataError, match="no document is left"):
        optimal_boundaries(np.array([], dtype=int), np.array([], dtype=int), 3)


def test_padding_counts_what_is_added_to_each_document():
    assert padding(np.array([2, 5]), np.array([10, 1]), [4, 8]) == 10 * 2 + 3
    with pytest.raises(DataError, match="of 9 tokens is longer than the last boundary, 8"):
        padding(np.array([9]), np.array([1]), [4, 8])


def test_halved_boundaries_end_with_the_longest_row_and_hold_two_of_the_one_below():
    assert halved_boundaries(np.array([3, 300]), 512, 5) == [32, 64, 128, 256, 512]
    assert halved_boundaries(np.array([30, 161]), 2048, 9) == [32, 64, 128, 256], "only what holds documents"
    assert halved_boundaries(np.array([3, 161]), 161, 4) == [21, 41, 81, 161]
    assert halved_boundaries(np.array([3, 161]), 176, 4, multiple_of=16) == [32, 48, 96, 176]
    with pytest.raises(DataError, match="no document is left"):
        halved_boundaries(np.array([], dtype=int), 512, 3)
