"""Layouts against NumPy: which rank holds which numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy.layout import Layout, checked, squeezed

MATRIX = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3).map(tuple)


@st.composite
def layouts(draw):
    matrix = draw(MATRIX)
    axes = draw(st.permutations(range(len(matrix))))
    ranks = draw(st.integers(1, 3))
    tensor_map = tuple(axes[i] if i < len(axes) and draw(st.booleans()) else -1 for i in range(ranks))
    splits = [1 if axis == -1 else matrix[-1 - axis] for axis in tensor_map]
    shape = tuple(part * draw(st.integers(1, 3)) for part in splits)
    return Layout(matrix, tensor_map, shape)


@given(layouts())
def test_the_parts_of_all_ranks_are_the_whole_each_as_often_as_there_are_replicas(layout):
    whole = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    held = np.concatenate([layout.slice_of(whole, rank).ravel() for rank in range(layout.devices)])
    values, counts = np.unique(held, return_counts=True)
    assert np.array_equal(values, whole.ravel()) and set(counts) == {layout.replicas}
    assert layout.slice_of(whole, 0).shape == layout.slice_shape


@given(layouts())
def test_axes_of_size_1_can_be_left_out(layout):
    short = Layout(*squeezed(layout.dev_matrix, layout.tensor_map), layout.shape)
    assert 1 not in short.dev_matrix or short.dev_matrix == (1,)
    whole = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    for rank in range(layout.devices):
        assert np.array_equal(short.slice_of(whole, rank), layout.slice_of(whole, rank))


@given(layouts())
def test_a_split_group_holds_one_copy_between_its_ranks(layout):
    whole = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    groups = layout.split_groups()
    if layout.replicas == layout.devices:
        assert groups == ()
        return
    assert sorted(rank for group in groups for rank in group) == list(range(layout.devices))
    for group in groups:
        held = np.concatenate([layout.slice_of(whole, rank).ravel() for rank in group])
        assert np.array_equal(np.sort(held), whole.ravel())


def test_the_documented_example_of_a_tensor_map():
    # [64, 64] on 2 x 4 devices, columns over the last axis: rank 5 is (1, 1), so it has the second quarter of columns.
    layout = Layout((2, 4), (-1, 0), (64, 64))
    whole = np.arange(64 * 64).reshape(64, 64)
    assert np.array_equal(layout.slice_of(whole, 5), whole[:, 16:32])
    assert layout.split_groups() == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_an_optimizer_spread_over_all_replicas_cuts_the_rows_of_a_slice():
    layout = Layout((2, 2), (0, -1), (8, 3), opt_step=2, opt_size=-1)
    whole = np.arange(24).reshape(8, 3)
    rows = [layout.slice_of(whole, rank)[:, 0] // 3 for rank in range(4)]
    assert [list(part) for part in rows] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert layout.slice_shape == (2, 3)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Layout((), (-1,), (4,)), "dev_matrix"),
        (Layout((0, 2), (-1,), (4,)), "dev_matrix"),
        (Layout((2, 2), (2,), (4,)), "tensor_map holds 2"),
        (Layout((2, 2), (0, 0), (4, 4)), "at most once"),
        (Layout((2, 2), (0,), (4, 4)), "one for each of the 2 dimensions"),
        (Layout((2, 4), (0,), (6,)), "a dimension of 6 goes into 4 parts"),
        (Layout((2, 2), (0,), (6,), 2, -1), "makes 2 parts, expected a divisor of the 3 rows"),
        (Layout((2, 2), (0,), (4,), 0, 2), "step of at least 1"),
    ],
)
def test_a_layout_that_is_none_is_refused_by_name(layout, says):
    with pytest.raises(ConfigError, match="w: .*" + says.replace("(", r"\(")):
        checked(layout, "w")
