"""Loaders for the tests of loading, and how their batches are compared."""

import threading

import numpy as np
from data_sets import read_columns

from mindspeed_ms.data.loader import BucketLoader

BUCKETS = {8: 37, 16: 20, 32: 5, 64: 0}


def producers():
    """The threads that make batches."""
    return [thread for thread in threading.enumerate() if thread.name == "mindspeed-ms-data"]


def arrays(folder, **options):
    """A loader of NumPy arrays."""
    if "tokens_per_batch" not in options:
        options.setdefault("batch_size", 4)
    return BucketLoader(folder, tensors=False, **options)


def real_rows(batches):
    """The real rows of batches as (length, bytes of all columns), to be compared as multisets."""
    return sorted(
        (batch.length, b"".join(np.asarray(batch[name][row]).tobytes() for name in batch))
        for batch in batches
        for row in range(batch.rows)
    )


def stored_rows(folder, columns=("input_ids", "document_ends", "loss_mask")):
    manifest = arrays(folder).manifest
    rows = []
    for length in BUCKETS:
        stored = read_columns(folder, manifest, length)
        rows += [(length, b"".join(stored[name][row].tobytes() for name in columns)) for row in range(BUCKETS[length])]
    return sorted(rows)


def same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.length, one.rows, one.tokens, one.epoch, one.step) == (
            other.length,
            other.rows,
            other.tokens,
            other.epoch,
            other.step,
        )
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])
