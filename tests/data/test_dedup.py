"""Copies of earlier documents are found in any number of segments, in bounded memory, and the first one is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data import dedup


class FakeSegment:
    """Arrays as a segment gives them."""

    def __init__(self, **arrays):
        self.arrays = arrays

    def array(self, name):
        return self.arrays[name]


def exact(segments):
    copies = [np.zeros(len(segment.array("lengths")), dtype=bool) for segment in segments]
    dedup.exact_duplicates(segments, copies)
    return copies


def segments_of(groups):
    """Hashes made of small numbers, spread over the whole range as xxh3 does it."""
    made = []
    for group in groups:
        mixed = [((n * 0x9E3779B97F4A7C15) % 2**64, (n * 0xC2B2AE3D27D4EB4F) % 2**64) for n in group]
        hashes = np.array(mixed, dtype=np.uint64).reshape(-1, 2)
        made.append(FakeSegment(hashes=hashes, lengths=np.ones(len(group), dtype=np.int32)))
    return made


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=4), st.integers(1, 10))
def test_every_document_but_the_first_of_its_kind_is_a_copy(groups, at_once):
    before = dedup._AT_ONCE
    dedup._AT_ONCE = at_once
    try:
        found = exact(segments_of(groups))
    finally:
        dedup._AT_ONCE = before
    seen, expected = set(), []
    for group in groups:
        expected.append([n in seen or seen.add(n) is not None for n in group])
    assert [copies.tolist() for copies in found] == expected


def test_documents_that_share_half_of_the_hash_are_different():
    hashes = np.array([[1, 2], [1, 3], [4, 2], [1, 2]], dtype=np.uint64)
    segment = FakeSegment(hashes=hashes, lengths=np.ones(4, dtype=np.int32))
    assert exact([segment])[0].tolist() == [False, False, False, True]


def near(signatures, threshold=0.8, removed=None):
    segments = [FakeSegment(signatures=np.array(part, dtype=np.uint32).reshape(-1, 128)) for part in signatures]
    removed = removed or [np.zeros(len(part), dtype=bool) for part in signatures]
    return [part.tolist() for part in dedup.near_duplicates(segments, removed, threshold)]


def signature(rng, of=None, same=128):
    fresh = rng.integers(0, 2**32, 128, dtype=np.uint32)
    if of is not None:
        chosen = rng.permutation(128)[:same]
        fresh[chosen] = of[chosen]
    return fresh


def test_documents_with_similar_signatures_are_copies_of_the_first_that_is_kept():
    pytest.importorskip("datasketch")
    rng = np.random.default_rng(0)
    first = signature(rng)
    like, unlike = signature(rng, first, 122), signature(rng, first, 60)
    assert near([[first, unlike], [like, signature(rng)]]) == [[False, False], [True, False]]


def test_what_resembles_only_a_removed_document_is_kept():
    pytest.importorskip("datasketch")
    rng = np.random.default_rng(1)
    first = signature(rng)
    second = first.copy()
    second[:20] = rng.integers(0, 2**32, 20)
    third = second.copy()
    third[20:40] = rng.integers(0, 2**32, 20)  # 108/128 like the second, 88/128 like the first
    assert near([[first, second, third]]) == [[False, True, False]]


def test_exact_copies_are_not_looked_at_again():
    pytest.importorskip("datasketch")
    rng = np.random.default_rng(2)
    first = signature(rng)
    removed = [np.array([False, True])]
    assert near([[first, first]], removed=removed) == [[False, False]]
