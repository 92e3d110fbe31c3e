"""Documents share rows: every one is in one row, no row overflows, and the choice is that of best-fit decreasing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data.packing import best_fit


def slow_best_fit(lengths, capacities, most):
    """The textbook algorithm, one document after the other; returns the sorted contents of all rows."""
    rows = []
    for length in sorted(lengths, reverse=True):
        open_rows = [row for row in rows if row["room"] >= length and len(row["documents"]) < row["most"]]
        if open_rows:
            row = min(open_rows, key=lambda row: row["room"])
        else:
            kind = next(i for i, capacity in enumerate(capacities) if capacity >= length)
            row = {"kind": kind, "room": capacities[kind], "most": most[kind], "documents": []}
            rows.append(row)
        row["room"] -= length
        row["documents"].append(length)
    return rows


@st.composite
def problems(draw):
    capacities = sorted(draw(st.sets(st.integers(4, 40), min_size=1, max_size=3)))
    lengths = draw(st.lists(st.integers(1, capacities[-1]), max_size=60))
    most = [draw(st.integers(1, 12)) for _ in capacities]
    return lengths, capacities, most


@settings(max_examples=300, deadline=None)
@given(problems())
def test_every_document_has_a_row_and_no_row_overflows(problem):
    lengths, capacities, most = problem
    row_of, kinds = best_fit(np.array(lengths, dtype=np.int64), capacities, most)
    assert len(row_of) == len(lengths)
    assert sorted(set(row_of.tolist())) == list(range(len(kinds)))
    for row, kind in enumerate(kinds.tolist()):
        inside = [length for length, where in zip(lengths, row_of, strict=True) if where == row]
        assert sum(inside) <= capacities[kind] and len(inside) <= most[kind]
        # The row was opened for its longest document, as small as that allows.
        assert kind == 0 or max(inside) > capacities[kind - 1]


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_rows_are_those_of_the_textbook_algorithm(problem):
    lengths, capacities, _ = problem
    most = [len(lengths) + 1] * len(capacities)
    row_of, kinds = best_fit(np.array(lengths, dtype=np.int64), capacities, most)
    expected = slow_best_fit(lengths, capacities, most)
    used = np.bincount(row_of, weights=lengths, minlength=len(kinds)) if lengths else []
    found = sorted((kind, capacities[kind] - n) for kind, n in zip(kinds.tolist(), used, strict=True))
    # Rows with the same room are as good as one another, so only kinds and rooms are compared.
    assert sorted(kind for kind, _ in found) == sorted(row["kind"] for row in expected)
    assert sorted(room for _, room in found) == sorted(row["room"] for row in expected)


def test_many_short_documents_leave_almost_no_padding():
    lengths = np.random.default_rng(1).integers(3, 60, 50_000)
    row_of, kinds = best_fit(lengths, [2048], [512])
    assert lengths.sum() / (len(kinds) * 2048) > 0.99
    assert np.bincount(row_of, weights=lengths).max() <= 2048


def test_the_result_is_the_same_every_time():
    lengths = np.random.default_rng(2).integers(1, 500, 5000)
    first, second = (best_fit(lengths, [128, 500], [32, 125]) for _ in range(2))
    assert (first[0] == second[0]).all() and (first[1] == second[1]).all()
