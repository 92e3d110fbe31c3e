"""Means, extremes and ticks, against what one would compute by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.report.series import bounds, extremes, log_ticks, moving_mean, ticks, window

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 5)), max_size=30), st.integers(1, 8))
def test_a_moving_mean_is_that_of_the_finite_values_by_their_weights(pairs, width):
    values = np.array([value for value, _ in pairs], np.float64)
    weights = np.array([weight for _, weight in pairs], np.float64)
    found = moving_mean(values, weights, width)
    assert len(found) == len(pairs)
    for at in range(len(pairs)):
        inside = [pair for pair in pairs[max(0, at - width + 1) : at + 1] if math.isfinite(pair[0]) and pair[1] > 0]
        if inside:
            mean = math.fsum(value * weight for value, weight in inside) / sum(weight for _, weight in inside)
            size = max(abs(value) for value, _ in inside)
            assert found[at] == pytest.approx(mean, rel=1e-12, abs=1e-12 * size)
        else:
            assert math.isnan(found[at])


def test_a_huge_value_leaves_no_trace_after_its_window():
    values = np.array([1.0] * 5 + [1e30] + [1.0] * 10)
    assert moving_mean(values, np.ones(16), 3)[8:].tolist() == [1.0] * 8


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.integers(1, 12))
def test_few_points_keep_the_extremes_of_every_stretch_and_both_ends(values, stretches):
    x, y = np.arange(len(values), dtype=np.float64) * 3 + 7, np.array(values, np.float64)
    found_x, found_y = extremes(x, y, stretches)
    good = np.isfinite(y)
    x, y = x[good], y[good]
    assert (np.diff(found_x) > 0).all()
    assert set(zip(found_x, found_y, strict=True)) <= set(zip(x, y, strict=True))
    if len(x) <= 2 * stretches:
        assert len(found_x) == len(x)
        return
    assert len(found_x) <= 2 * stretches + 2
    assert (found_x[0], found_x[-1]) == (x[0], x[-1])
    for stretch in range(stretches):
        begin, end = (x[0] + (x[-1] - x[0]) * part / stretches for part in (stretch, stretch + 1))
        # An edge may belong to either side, by rounding.
        inside = y[(x > begin + 1e-6) & (x < end - 1e-6)]
        near = found_y[(found_x >= begin - 1e-6) & (found_x <= end + 1e-6)]
        if len(inside):
            assert near.min() <= inside.min() and near.max() >= inside.max()


@given(st.floats(-1e12, 1e12, allow_subnormal=False), st.floats(1e-9, 1e12, allow_subnormal=False), st.integers(2, 9))
def test_ticks_are_round_evenly_spaced_and_inside(low, spread, count):
    found = ticks(low, low + spread, count)
    assert 1 <= len(found) <= 2.6 * count + 1
    size = max(abs(low), abs(low + spread))
    assert all(low - 1e-9 * size <= tick <= low + spread + 1e-9 * size for tick in found)
    gaps = np.diff(found)
    if len(gaps):
        assert gaps == pytest.approx(gaps[0], rel=1e-3)
        digits = f"{gaps[0]:.3e}".partition("e")[0].rstrip("0").rstrip(".")
        assert spread < 1e-6 * size or digits in ("1", "2", "5")


def test_ticks_of_axes_that_anybody_would_label_so():
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(2.93, 8.2, 5) == [4, 6, 8]
    assert ticks(1, 1000, 7) == [200, 400, 600, 800, 1000]
    assert log_ticks(0.05, 30) == [0.1, 1, 10]
    assert log_ticks(1.5, 12) == [2, 5, 10]


def test_an_axis_shows_all_values_unless_a_few_would_squeeze_the_rest():
    assert bounds(np.array([2.0, 3.0, np.nan, 9.0])) == (2.0, 9.0)
    low, high = bounds(np.array([*np.linspace(2, 3, 1000), 1e9]))
    assert low == 2 and 3 <= high < 4
    assert bounds(np.array([np.nan])) == (0, 1)
    assert bounds(np.array([4.0, 4.0])) == (2, 6)


@pytest.mark.parametrize(("steps", "width"), [(0, 1), (49, 4), (100, 10), (5000, 100), (10**6, 500)])
def test_a_curve_is_smoothed_over_a_share_of_its_steps(steps, width):
    assert window(steps) == width
