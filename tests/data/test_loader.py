"""BucketLoader: the set's rows, each once an epoch, as batches of fixed shapes; and what it refuses."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_batches import BUCKETS, arrays, real_rows, stored_rows
from data_sets import PAD_ID, make_set, read_columns

from mindspeed_ms.data import loader
from mindspeed_ms.data.columns import DERIVED
from mindspeed_ms.data.loader import BucketLoader, NPUStaticBucketLoader
from mindspeed_ms.errors import ConfigError, DataError

PAIRS = [(4, 1), (2, 2), (3, 5)]

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, BUCKETS, loss_mask=True, shards=3)
    return folder


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("batch_size", "world_size"), PAIRS)
def test_an_epoch_has_every_row_once_over_all_ranks(folder, batch_size, world_size, shuffle):
    ranks = [
        list(arrays(folder, batch_size=batch_size, rank=rank, world_size=world_size, shuffle=shuffle, seed=3))
        for rank in range(world_size)
    ]
    assert len({tuple(batch.length for batch in batches) for batches in ranks}) == 1
    assert real_rows(batch for batches in ranks for batch in batches) == stored_rows(folder)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_batch_of_a_bucket_has_one_shape_and_is_filled_with_empty_rows(folder, shuffle):
    batches = list(arrays(folder, batch_size=6, shuffle=shuffle))
    assert sum(batch.rows < 6 for batch in batches) == 3
    for batch in batches:
        assert list(batch) == ["input_ids", "document_ends", "loss_mask"]
        assert batch["input_ids"].shape == batch["loss_mask"].shape == (6, batch.length)
        assert batch["document_ends"].shape == (6, batch.length // 4)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in batch.values())
        assert (batch["input_ids"][batch.rows :] == PAD_ID).all()
        assert not batch["document_ends"][batch.rows :].any() and not batch["loss_mask"][batch.rows :].any()
        assert batch.tokens == batch["document_ends"][:, -1].sum()


def test_without_shuffling_rows_come_as_stored(folder):
    manifest = arrays(folder).manifest
    batches = list(arrays(folder, batch_size=5, shuffle=False))
    for length in BUCKETS:
        stored = read_columns(folder, manifest, length)
        for name, expected in stored.items():
            parts = [batch[name][: batch.rows] for batch in batches if batch.length == length]
            np.testing.assert_array_equal(np.concatenate([expected[:0], *parts]), expected)


def test_rows_of_a_batch_follow_from_a_budget_of_tokens(folder):
    made = arrays(folder, tokens_per_batch=50)
    assert made.batch_rows == {8: 6, 16: 3, 32: 1, 64: 1}
    assert {batch["input_ids"].shape for batch in made} == {(6, 8), (3, 16), (1, 32)}


def test_derived_columns_are_those_of_the_stored_ones(folder):
    names = ["labels", "input_ids", "position_ids", "segment_ids"]
    for derived, stored in zip(arrays(folder, columns=names), arrays(folder), strict=True):
        assert list(derived) == names
        np.testing.assert_array_equal(derived["input_ids"], stored["input_ids"])
        for name, make in DERIVED.items():
            np.testing.assert_array_equal(derived[name], make(dict(stored)))
        assert (derived["labels"][derived.rows :] == -100).all() and derived.tokens == stored.tokens


def test_one_column_alone(folder):
    assert real_rows(arrays(folder, columns=["loss_mask"])) == stored_rows(folder, ["loss_mask"])


def test_unshuffled_full_batches_are_the_sets_own_pages_and_cannot_be_written(tmp_path):
    make_set(tmp_path, {8: 10}, shards=1)
    batches = list(arrays(tmp_path, batch_size=4, shuffle=False))
    one, two = batches[0]["input_ids"], batches[1]["input_ids"]
    assert two.ctypes.data - one.ctypes.data == 4 * 8 * 4
    for batch in batches[:2]:
        for array in batch.values():
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 1


def test_batches_outlive_their_loader(folder):
    expected = real_rows(arrays(folder, shuffle=False))
    batches = list(arrays(folder, shuffle=False))
    gc.collect()
    assert real_rows(batches) == expected


def test_tensors_have_the_values_of_the_arrays_without_a_copy(folder):
    mindspore = pytest.importorskip("mindspore")
    made = BucketLoader(folder, batch_size=4, seed=1, columns=["input_ids", "document_ends", "labels"])
    expected = arrays(folder, batch_size=4, seed=1, columns=["input_ids", "document_ends", "labels"])
    for found, array in zip(made, expected, strict=True):
        assert all(isinstance(tensor, mindspore.Tensor) for tensor in found.values())
        assert {tensor.dtype for tensor in found.values()} == {mindspore.int32}
        for name in array:
            np.testing.assert_array_equal(found[name].asnumpy(), array[name])
        assert (found.length, found.rows, found.tokens) == (array.length, array.rows, array.tokens)
    stored = BucketLoader(folder, batch_size=4, shuffle=False)
    one, two = (batch["input_ids"].asnumpy() for _, batch in zip(range(2), stored, strict=False))
    assert two.ctypes.data - one.ctypes.data == 4 * 8 * 4
    one[:] = 3  # a tensor does not know that its pages are the set's; the process and the file survive it
    assert real_rows(arrays(folder)) == stored_rows(folder)


def test_numpy_arrays_need_no_mindspore(folder):
    code = (
        "import sys; sys.modules['mindspore'] = None\n"
        "from mindspeed_ms.data.loader import BucketLoader\n"
        f"print(len(list(BucketLoader({str(folder)!r}, batch_size=4, tensors=False))))\n"
    )
    root = str(Path(loader.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, timeout=90, capture_output=True, text=True
    )
    assert done.stdout.strip() == "17", done.stderr


def test_mind_dataset_gives_byte_identical_batches(tmp_path):
    dataset = pytest.importorskip("mindspore.dataset")
    manifest = make_set(tmp_path, {16: 24}, loss_mask=True, shards=2, mindrecord=True)
    files = [str(tmp_path / shard.mindrecord.path) for shard in manifest.buckets[0].shards]
    peer = dataset.MindDataset(files, columns_list=manifest.columns, shuffle=False).batch(5)
    theirs = list(peer.create_dict_iterator(num_epochs=1, output_numpy=True))
    ours = list(arrays(tmp_path, batch_size=5, shuffle=False))
    assert len(theirs) == len(ours) == 5
    for their, our in zip(theirs, ours, strict=True):
        assert set(their) == set(our)
        for name in their:
            assert their[name].dtype == our[name].dtype
            assert their[name].tobytes() == our[name][: our.rows].tobytes()


def test_the_second_name_is_the_same_class():
    assert NPUStaticBucketLoader is BucketLoader


def test_the_sets_own_tokenizer_is_accepted_and_another_is_refused(folder, tmp_path):
    own = folder / "tokenizer.json"
    arrays(folder, tokenizer=own)
    other = tmp_path / "tokenizer.json"
    other.write_text(own.read_text().replace("w999", "w1000"))
    with pytest.raises(DataError, match=f"^{other}: a tokenizer with SHA-256 .* was made with"):
        arrays(folder, tokenizer=other)


def test_an_empty_set_is_an_error(tmp_path):
    make_set(tmp_path, {8: 0})
    with pytest.raises(DataError, match="no rows"):
        arrays(tmp_path)


def test_a_damaged_block_is_found_unless_one_asks_not_to_look(tmp_path):
    manifest = make_set(tmp_path, {8: 10})
    path = tmp_path / manifest.buckets[0].shards[0].block.path
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(DataError, match=str(path)):
        arrays(tmp_path)
    arrays(tmp_path, verify=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"batch_size": None}, "batch_size is None and tokens_per_batch None"),
        ({"batch_size": 2, "tokens_per_batch": 64}, "batch_size is 2 and tokens_per_batch 64"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"tokens_per_batch": -5}, "tokens_per_batch is -5"),
        ({"rank": 2, "world_size": 2}, "rank is 2"),
        ({"rank": -1}, "rank is -1"),
        ({"world_size": 0}, "world_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "1"}, "seed is '1'"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"prefetch": True}, "prefetch is True"),
        ({"columns": ["labels", "weights"]}, "columns: 'weights' is not in this set"),
        ({"columns": []}, "columns: got"),
    ],
)
def test_wrong_options_are_refused_by_name(folder, options, names):
    with pytest.raises(ConfigError, match=f"^{names}"):
        arrays(folder, **options)
