"""Derived columns beside a reading of their definition token by token."""

import numpy as np
import pytest
import torch
from data_sets import make_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data.columns import DERIVED, IGNORED, check_columns, labels, position_ids, segment_ids
from mindspeed_ms.errors import ConfigError


def by_token(columns):
    """The definition, one row and one token at a time."""
    ids = columns["input_ids"]
    positions, segments, wanted = np.zeros_like(ids), np.zeros_like(ids), np.full_like(ids, IGNORED)
    for row in range(len(ids)):
        start = 0
        for number, end in enumerate(dict.fromkeys(columns["document_ends"][row].tolist()), 1):
            for place in range(start, end):
                positions[row, place] = place - start
                segments[row, place] = number
                learnt = "loss_mask" not in columns or (place + 1 < end and columns["loss_mask"][row, place + 1] == 1)
                if place + 1 < end and learnt:
                    wanted[row, place] = ids[row, place + 1]
            start = end
    return {"position_ids": positions, "segment_ids": segments, "labels": wanted}


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(0, 6), st.integers(1, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_derived_columns_are_what_their_definition_says_token_by_token(length, rows, ends, loss_mask, seed):
    columns = make_rows(length, rows, min(ends, length), np.random.default_rng(seed), loss_mask)
    columns = {name: np.concatenate([array, np.zeros_like(array[:1])]) for name, array in columns.items()}  # a filler
    for name, expected in by_token(columns).items():
        found = DERIVED[name](columns)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_any_leading_dimensions_are_kept():
    columns = make_rows(24, 12, 5, np.random.default_rng(1), loss_mask=True)
    shaped = {name: array.reshape(3, 2, 2, -1) for name, array in columns.items()}
    single = {name: array[7] for name, array in columns.items()}
    for make in DERIVED.values():
        np.testing.assert_array_equal(make(shaped).reshape(12, 24), make(columns))
        np.testing.assert_array_equal(make(single), make(columns)[7])


def test_one_example_in_full():
    ids = np.array([[11, 12, 13, 21, 31, 32, 0, 0]], np.int32)
    ends = np.array([[3, 4, 6, 6]], np.int32)
    assert segment_ids(ends, 8).tolist() == [[1, 1, 1, 2, 3, 3, 0, 0]]
    assert position_ids(ends, 8).tolist() == [[0, 1, 2, 0, 0, 1, 0, 0]]
    assert labels(ids, ends).tolist() == [[12, 13, -100, -100, 32, -100, -100, -100]]
    answers = np.array([[0, 0, 1, 1, 0, 1, 0, 0]], np.int32)
    assert labels(ids, ends, answers).tolist() == [[-100, 13, -100, -100, 32, -100, -100, -100]]


def test_a_full_row_of_one_document_has_the_labels_that_pytorch_code_makes_by_shifting():
    ids = np.arange(5, 21, dtype=np.int32)[None]
    shifted = torch.nn.functional.pad(torch.from_numpy(ids), (0, 1), value=-100)[..., 1:]
    np.testing.assert_array_equal(labels(ids, np.array([[16]], np.int32)), shifted.numpy())


def test_inputs_are_left_as_they_are():
    columns = make_rows(16, 9, 4, np.random.default_rng(2), loss_mask=True)
    for array in columns.values():
        array.flags.writeable = False
    for make in DERIVED.values():
        make(columns)


def test_stored_and_derived_columns_can_be_asked_for():
    assert check_columns(["labels", "input_ids"], ["input_ids", "document_ends"]) == ["labels", "input_ids"]


@pytest.mark.parametrize("asked", [["loss_mask"], ["nothing"], [], ["labels", "labels"]])
def test_columns_that_a_set_cannot_give_are_refused_by_name(asked):
    with pytest.raises(ConfigError, match="columns: "):
        check_columns(asked, ["input_ids", "document_ends"])
