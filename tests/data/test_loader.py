"""BucketLoader: the set's rows as batches of fixed shapes, ahead of time, exactly resumable, and never a hang."""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from data_sets import PAD_ID, make_set, read_columns

from mindspeed_ms.data import gather, loader
from mindspeed_ms.data.columns import DERIVED
from mindspeed_ms.data.loader import BucketLoader, NPUStaticBucketLoader
from mindspeed_ms.errors import ConfigError, DataError

BUCKETS = {8: 37, 16: 20, 32: 5, 64: 0}
PAIRS = [(4, 1), (2, 2), (3, 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    make_set(folder, BUCKETS, loss_mask=True, shards=3)
    return folder


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    for _ in range(100):
        if not producers():
            return
        time.sleep(0.02)
    raise AssertionError(f"still running: {producers()}")


def producers():
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


def test_the_order_follows_from_seed_and_epoch_alone(folder):
    one, two = arrays(folder, seed=9), arrays(folder, seed=9, prefetch=7)
    first = list(one)
    same(two, first)
    second = list(one)
    assert [batch.epoch for batch in second] == [1] * len(second)
    assert [b["input_ids"].tobytes() for b in first] != [b["input_ids"].tobytes() for b in second]
    assert real_rows(first) == real_rows(second)
    two.set_epoch(1)
    same(two, second)
    assert [b["input_ids"].tobytes() for b in arrays(folder, seed=10)] != [b["input_ids"].tobytes() for b in first]


def test_len_is_what_iterating_gives_now(folder):
    made = arrays(folder)
    assert len(made) == len(list(made)) == 10 + 5 + 2
    iterator = iter(made)
    next(iterator), next(iterator)
    assert (len(made), made.epoch, made.step) == (15, 1, 2)
    assert len(list(iterator)) == 15
    assert (len(made), made.epoch, made.step) == (17, 2, 0)


@pytest.mark.parametrize("prefetch", [1, 2, 8])
def test_a_state_is_of_what_was_handed_over_and_not_of_what_was_made_ahead(folder, prefetch):
    whole = list(arrays(folder, seed=2))
    for taken in range(len(whole) + 1):
        made, again = arrays(folder, seed=2, prefetch=prefetch), arrays(folder, seed=2)
        iterator = iter(made)
        for _ in range(taken):
            next(iterator)
        time.sleep(0.002)  # let the thread run ahead
        again.load_state_dict(json.loads(json.dumps(made.state_dict())))
        made.close()
        if taken < len(whole):
            same(again, whole[taken:])
        else:
            assert again.epoch == 1 and len(list(again)) == len(whole)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_goes_on_over_other_world_and_batch_sizes_without_losing_or_repeating_a_row(folder, shuffle):
    state, seen = None, []
    for batch_size, world_size, steps in [(2, 2, 4), (3, 1, 3), (1, 4, 2), (2, 3, None)]:
        states = []
        for rank in range(world_size):
            made = arrays(folder, batch_size=batch_size, rank=rank, world_size=world_size, shuffle=shuffle)
            if state:
                made.load_state_dict(state)
            iterator = iter(made)
            seen += list(iterator) if steps is None else [next(iterator) for _ in range(steps)]
            made.close()
            states.append(made.state_dict())
        assert all(other == states[0] for other in states), "the state is the same on every rank"
        state = states[0]
    assert real_rows(seen) == stored_rows(folder)
    assert (state["epoch"], state["step"]) == (1, 0)


def test_leaving_an_iteration_and_iterating_again_goes_on(folder):
    made, whole = arrays(folder, seed=4), list(arrays(folder, seed=4))
    got = []
    for batch in made:
        got.append(batch)
        if len(got) == 5:
            break
    same([*got, *made], whole)


def test_a_second_iteration_ends_the_first(folder):
    made = arrays(folder, seed=4)
    first = iter(made)
    got = [next(first), next(first)]
    second = iter(made)
    got.append(next(second))
    with pytest.raises(StopIteration):
        next(first)
    same([*got, *second], arrays(folder, seed=4))


def test_never_more_batches_are_made_ahead_than_asked(folder, monkeypatch):
    calls = []
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: calls.append(1) or real(self, rows))
    iterator = iter(arrays(folder, prefetch=3))
    for taken in range(6):
        deadline = time.monotonic() + 5
        while len(calls) < taken + 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(calls) == taken + 3
        next(iterator)


def test_the_default_of_batches_made_ahead(folder):
    assert [arrays(folder, world_size=ranks).prefetch for ranks in (1, 2, 4, 64)] == [2, 4, 8, 8]
    assert arrays(folder, prefetch=5, world_size=64).prefetch == 5


def test_an_error_in_the_thread_surfaces_after_the_batches_before_it_and_ends_the_iteration(folder, monkeypatch):
    real = gather.Gather.__call__
    calls = []

    def failing(self, rows):
        calls.append(1)
        if len(calls) == 4:
            raise OSError("the disk is gone")
        return real(self, rows)

    monkeypatch.setattr(gather.Gather, "__call__", failing)
    made = arrays(folder, seed=6, prefetch=8)
    iterator = iter(made)
    got = [next(iterator) for _ in range(3)]
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    same([*got, *made], arrays(folder, seed=6))  # the state is still exact


def test_dropping_an_iterator_or_the_loader_ends_the_thread(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    assert len(producers()) == 1
    del iterator
    made = iter(arrays(folder))  # its loader lives through it alone
    next(made)
    del made  # the fixture sees to it that all threads end, none of them told to


def test_a_closed_iteration_ends_and_the_loader_can_be_used_again(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    made.close()
    made.close()
    assert list(iterator) == []
    assert len(list(made)) == 16


def test_closing_wakes_a_consumer_that_waits(folder, monkeypatch):
    entered, release = threading.Event(), threading.Event()
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: entered.set() or release.wait(10))
    made, got = arrays(folder), []
    iterator = iter(made)
    consumer = threading.Thread(target=lambda: got.append(list(iterator)))
    consumer.start()
    assert entered.wait(5)
    made.close()
    consumer.join(5)
    release.set()
    assert got == [[]]


def test_an_interrupted_consumer_neither_hangs_nor_loses_a_row(folder, monkeypatch):
    release = threading.Event()
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: release.wait(10) and real(self, rows))
    made = arrays(folder, seed=8)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    iterator = iter(made)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    release.set()
    with pytest.raises(StopIteration):
        next(iterator)
    same(made, arrays(folder, seed=8))


def in_child(made, iterator, pipe):
    """What a forked process can do with its parent's loader."""
    try:
        next(iterator)
    except DataError as error:
        pipe.send(str(error))
    pipe.send(len(list(made)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_cannot_use_its_parents_iterator_but_its_own(folder):
    made = arrays(folder)
    iterator = iter(made)
    next(iterator)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(made, iterator, there))
    child.start()
    assert here.poll(20)
    assert "belongs to the process before the fork" in here.recv()
    assert here.poll(20) and here.recv() == 16
    child.join(10)
    assert child.exitcode == 0
    assert len(list(iterator)) == 16


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "iterator = None"])
def test_leaving_python_in_the_middle_of_an_iteration_does_not_hang(folder, end):
    code = (
        "from mindspeed_ms.data.loader import BucketLoader\n"
        f"made = BucketLoader({str(folder)!r}, batch_size=1, tensors=False)\n"
        f"iterator = iter(made); next(iterator)\n{end}\n"
    )
    root = str(Path(loader.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, timeout=30, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (3 if "Exit" in end else 0, "")


def test_waiting_and_working_time_are_measured(folder, monkeypatch):
    real = gather.Gather.__call__
    monkeypatch.setattr(gather.Gather, "__call__", lambda self, rows: time.sleep(0.04) or real(self, rows))
    slow = arrays(folder, prefetch=1)
    assert slow.wait_share() == 0
    begin = time.perf_counter()
    for _ in slow:
        time.sleep(0.005)
    whole = time.perf_counter() - begin
    assert slow.wait_seconds + slow.work_seconds == pytest.approx(whole, abs=0.1)
    assert slow.work_seconds >= 17 * 0.005
    assert slow.wait_share() > 0.5  # 0.88: each batch takes 40 ms, of which 5 are the caller's
    monkeypatch.setattr(gather.Gather, "__call__", real)
    quick = arrays(folder)
    for _ in quick:
        time.sleep(0.005)
    assert quick.wait_share() < 0.5


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
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, timeout=30, capture_output=True, text=True
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


def test_a_state_of_another_set_is_refused_and_changes_nothing(folder, tmp_path):
    make_set(tmp_path, BUCKETS, seed=1)
    made, other = arrays(folder), arrays(tmp_path)
    iterator = iter(made)
    next(iterator)
    before = made.state_dict()
    with pytest.raises(DataError, match="^loader state: set is"):
        made.load_state_dict(other.state_dict())
    assert made.state_dict() == before and len(list(iterator)) == 16


def test_an_empty_set_is_an_error(tmp_path):
    make_set(tmp_path, {8: 0})
    with pytest.raises(DataError, match="no rows in this set"):
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
