"""Rows hold the documents' tokens, in order and complete, with their ends, and padding after them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.config.data import ArrangeConfig
from mindspeed_ms.data.arrange import concatenated, cut, layouts, rows

PAD = -7
lengths_of = st.lists(st.integers(0, 50), max_size=60)


def corpus(lengths):
    """Tokens that are all different, and where each document starts."""
    lengths = np.array(lengths, dtype=np.int64)
    return np.arange(lengths.sum(), dtype=np.int32), np.cumsum(lengths) - lengths, lengths


def read(layout, length, tokens, loss=None):
    """Each row as the list of its documents, by its ends alone; checks padding and filling on the way."""
    ends = int(layout.per_row.max()) if len(layout.per_row) else 1
    found = []
    for piece in rows(layout, length, ends, PAD, tokens, loss):
        assert {array.dtype for array in piece.values()} == {np.dtype(np.int32)}
        for ids, stops in zip(piece["input_ids"], piece["document_ends"], strict=True):
            stops = stops.tolist()
            assert stops == sorted(stops)
            assert (ids[stops[-1] :] == PAD).all()
            starts = [0, *stops[:-1]]
            found.append([ids[a:b].tolist() for a, b in zip(starts, stops, strict=True) if b > a])
    return found


def documents(tokens, starts, lengths):
    return [tokens[a : a + n].tolist() for a, n in zip(starts.tolist(), lengths.tolist(), strict=True) if n]


@settings(max_examples=100, deadline=None)
@given(lengths_of, st.booleans(), st.sampled_from(["bucket", "pack"]))
def test_every_document_is_in_one_row_whole(lengths, join, mode):
    tokens, starts, lengths = corpus(lengths)
    boundaries = [8, 20, 50] if mode == "bucket" else [50]
    given = {"boundaries": boundaries, "join": join} if mode == "bucket" else {"max_length": 50}
    arrange = ArrangeConfig(mode=mode, **given)
    found = []
    for layout, length in zip(layouts(cut(starts, lengths, arrange), boundaries, arrange), boundaries, strict=True):
        inside = read(layout, length, tokens)
        assert join or mode == "pack" or all(len(row) == 1 for row in inside)
        assert all(row == sorted(row) for row in inside), "the order of the corpus inside a row"
        found += [document for row in inside for document in row]
    assert sorted(found) == sorted(documents(tokens, starts, lengths))


@pytest.mark.parametrize(
    ("overlong", "expected"),
    [("split", [[0, 1, 2, 3], [4, 5, 6, 7], [8], [9, 10]]), ("truncate", [[0, 1, 2, 3], [9, 10]]), ("drop", [[9, 10]])],
)
def test_documents_longer_than_the_longest_row(overlong, expected):
    tokens, starts, lengths = corpus([9, 2])
    arrange = ArrangeConfig(boundaries=[4], overlong=overlong)
    (layout,) = layouts(cut(starts, lengths, arrange), [4], arrange)
    assert [row[0] for row in read(layout, 4, tokens)] == expected


@settings(max_examples=100, deadline=None)
@given(lengths_of, st.integers(1, 40))
def test_a_stream_is_everything_end_to_end(lengths, length):
    tokens, starts, lengths = corpus(lengths)
    (layout,) = concatenated(starts, lengths, length)
    found = read(layout, length, tokens)
    flat = [[token for piece in row for token in piece] for row in found]
    assert [token for row in flat for token in row] == tokens.tolist()
    assert all(len(row) == length for row in flat[:-1])
    cuts = set(np.cumsum(lengths).tolist()) | set(range(0, int(lengths.sum()), length))
    assert all(piece[0] in cuts for row in found for piece in row)


def test_the_loss_mask_goes_with_its_tokens():
    tokens, starts, lengths = corpus([3, 2, 4])
    loss = np.array([0, 1, 1, 0, 1, 0, 0, 1, 0], dtype=np.uint8)
    arrange = ArrangeConfig(mode="pack", max_length=8)
    (layout,) = layouts(cut(starts, lengths, arrange), [8], arrange)
    for piece in rows(layout, 8, 4, PAD, tokens, loss):
        ids = piece["input_ids"]
        assert (piece["loss_mask"][ids != PAD] == loss[ids[ids != PAD]]).all()
        assert (piece["loss_mask"][ids == PAD] == 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"boundaries": [4, 4]}, "ascending"),
        ({"boundaries": [8, 4]}, "ascending"),
        ({"boundaries": []}, "ascending"),
        ({"mode": "pack", "join": True}, "join has no effect in mode pack"),
        ({"mode": "stream", "overlong": "drop"}, "overlong has no effect"),
        ({"boundaries": [4], "buckets": 3}, "buckets has no effect beside boundaries"),
        ({"boundaries": [4], "max_length": 4}, "max_length has no effect beside boundaries"),
        ({"mode": "stream", "max_documents": 3}, "max_documents has no effect"),
        ({"max_length": 100, "multiple_of": 16}, "100 is not a multiple of multiple_of, 16"),
    ],
)
def test_settings_without_effect_are_errors(given, message):
    from mindspeed_ms.errors import ConfigError

    with pytest.raises(ConfigError, match=message):
        ArrangeConfig.parse(given)
