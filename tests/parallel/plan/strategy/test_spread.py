"""What a reshape does to a split tensor, against the sets of numbers that each device holds."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.parallel.plan.strategy.spread import CONTEXT, DATA, TENSOR, Mesh, broadcast, narrowed, reshaped

SHAPES = [(4, 6), (24,), (2, 3, 4), (4, 2, 3), (8, 3), (2, 12), (4, 6, 1), (1, 24), (2, 2, 6), (3, 8)]


def held(spread, shape, mesh):
    """Of each place in the mesh, the flat numbers of what it holds."""
    sizes = {DATA: mesh.data, CONTEXT: mesh.context, TENSOR: mesh.tensor}
    flat = np.arange(np.prod(shape)).reshape(shape)
    found = []
    for place in itertools.product(*(range(sizes[axis]) for axis in (DATA, CONTEXT, TENSOR))):
        at = dict(zip((DATA, CONTEXT, TENSOR), place, strict=True))
        index = []
        for axes, size in zip(spread, shape, strict=True):
            part, parts = 0, 1
            for axis in axes:
                part, parts = part * sizes[axis] + at[axis], parts * sizes[axis]
            index.append(slice(part * size // parts, (part + 1) * size // parts))
        found.append(frozenset(flat[tuple(index)].ravel().tolist()))
    return found


@st.composite
def cases(draw):
    mesh = Mesh(draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3])))
    old, new = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(SHAPES))
    spread = [()] * len(old)
    for axis in draw(st.permutations([DATA, CONTEXT, TENSOR])):
        index = draw(st.integers(0, len(old) - 1))
        if mesh.size((axis,)) > 1 and old[index] % mesh.size((*spread[index], axis)) == 0:
            spread[index] = (*spread[index], axis)
    return mesh, old, new, tuple(spread)


@settings(max_examples=150)
@given(cases())
def test_each_device_holds_the_same_numbers_after_a_reshape_that_loses_no_axis(case):
    mesh, old, new, spread = case
    out, lost = reshaped(spread, old, new, mesh)
    if not lost:
        assert held(out, new, mesh) == held(spread, old, mesh)


@settings(max_examples=60)
@given(cases())
def test_an_axis_is_lost_only_where_no_split_of_the_result_has_the_same_numbers(case):
    mesh, old, new, spread = case
    _, lost = reshaped(spread, old, new, mesh)
    if not lost:
        return
    used = [axis for axes in spread for axis in axes]
    before = held(spread, old, mesh)
    for order in itertools.permutations(used):
        for places in itertools.product(range(len(new)), repeat=len(used)):
            tried = [()] * len(new)
            for axis, place in zip(order, places, strict=True):
                tried[place] = (*tried[place], axis)
            if all(size % mesh.size(axes) == 0 for size, axes in zip(new, tried, strict=True)):
                assert held(tried, new, mesh) != before


def test_elementwise_results_are_split_as_their_inputs_and_no_axis_is_used_twice():
    given_ = [(((DATA,), (), (TENSOR,)), (4, 1, 6)), (((TENSOR,), ()), (5, 6))]
    out = broadcast(given_, (4, 5, 6))
    assert out == ((DATA,), (), (TENSOR,))
    assert narrowed(out, (4, 5, 6), (5, 6)) == ((), (TENSOR,))
    assert narrowed(out, (4, 5, 6), (4, 1, 1)) == ((DATA,), (), ())
