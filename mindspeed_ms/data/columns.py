"""Columns that follow from the stored ones: what attention, positions and the loss need to keep documents apart.

All arrays are int32 [..., length], with whatever batch dimensions the stored columns have. `document_ends` [..., ends]
are the cumulative ends of a row's documents, the last one repeated; from there on a row is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mindspeed_ms.errors import ConfigError

Columns = dict[str, np.ndarray]

IGNORED = -100  # a label that no loss counts, by PyTorch's and MindSpore's custom


def segment_ids(document_ends: np.ndarray, length: int) -> np.ndarray:
    """The number of each token's document in its row, from 1; 0 in padding.

    A token may attend to those of equal number before it. document_ends: [..., ends]; returns int32 [..., length].
    """
    ends = _rows(document_ends)
    segments = np.zeros((len(ends), length + 1), np.int32)
    segments[:, 0] = 1
    np.put_along_axis(segments, ends, 1, axis=1)  # where a document ends the next begins, or padding
    np.cumsum(segments, axis=1, out=segments)
    segments = segments[:, :length]
    segments[np.arange(length) >= ends[:, -1:]] = 0
    return segments.reshape(*document_ends.shape[:-1], length)


def position_ids(document_ends: np.ndarray, length: int) -> np.ndarray:
    """The place of each token in its document, from 0; 0 in padding.

    document_ends: [..., ends]; returns int32 [..., length].
    """
    ends = _rows(document_ends)
    starts = np.zeros((len(ends), length + 1), np.int32)
    np.put_along_axis(starts, ends, ends, axis=1)
    np.maximum.accumulate(starts, axis=1, out=starts)
    places = np.arange(length, dtype=np.int32)
    positions = places - starts[:, :length]
    positions[places >= ends[:, -1:]] = 0
    return positions.reshape(*document_ends.shape[:-1], length)


def labels(input_ids: np.ndarray, document_ends: np.ndarray, loss_mask: np.ndarray | None = None) -> np.ndarray:
    """What each token has to predict: the next token of its document; -100 where there is none, or none to be learnt.

    input_ids: [..., length]; document_ends: [..., ends]; loss_mask: [..., length], 1 where a token is to be learnt, or
    None for all of them. Returns int32 [..., length]: they are shifted already, and go with the logits as they are.
    """
    length = input_ids.shape[-1]
    ids, ends = _rows(input_ids), _rows(document_ends)
    result = np.full(ids.shape, IGNORED, np.int32)
    result[:, :-1] = ids[:, 1:]
    if loss_mask is not None:
        result[:, :-1][_rows(loss_mask)[:, 1:] == 0] = IGNORED
    np.put_along_axis(result, np.maximum(ends - 1, 0), IGNORED, axis=1)
    result[np.arange(length) >= ends[:, -1:]] = IGNORED
    return result.reshape(input_ids.shape)


# How each derived column is made of the stored ones.
DERIVED: dict[str, Callable[[Columns], np.ndarray]] = {
    "position_ids": lambda stored: position_ids(stored["document_ends"], stored["input_ids"].shape[-1]),
    "segment_ids": lambda stored: segment_ids(stored["document_ends"], stored["input_ids"].shape[-1]),
    "labels": lambda stored: labels(stored["input_ids"], stored["document_ends"], stored.get("loss_mask")),
}


def check_columns(asked: Sequence[str], stored: Sequence[str]) -> list[str]:
    """Column names without repeats that a set with the `stored` ones can give. Raises ConfigError."""
    known = [*stored, *DERIVED]
    for name in asked:
        if name not in known:
            raise ConfigError(f"columns: {name!r} is not in this set; it has {', '.join(known)}")
    if not asked or len(set(asked)) != len(asked):
        raise ConfigError(f"columns: got {list(asked)}, expected one or more names without repeats")
    return list(asked)


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])
