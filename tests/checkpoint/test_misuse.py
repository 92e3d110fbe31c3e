"""What a caller may do wrong, or another process meanwhile: refused in one line, and no commit is lost by it."""

import errno
import json
import math
import os
import threading

import numpy as np
import pytest

from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.records import OtherCheckpoint, Unreadable
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

A = np.arange(3000, dtype=np.float32)


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "made", keep=0) as store:
        yield store


def flip(store, step):
    path = next(store.folder.glob(f"step-{step:08}.*.bin"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def nested(depth):
    value = []
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": True}, "step is True"),
        ({"step": 1.0}, "step is 1.0"),
        ({"step": 10**18}, "from 0 to 999999999999999999"),
        ({"metric": math.nan}, "the metric of step 1 is nan, expected a finite number"),
        ({"metric": True}, "the metric of step 1 is True"),
        ({"metric": 10**400}, "the metric of step 1 is 1000"),
        ({"metric": "low"}, "the metric of step 1 is 'low'"),
        ({"state": {"a": {1: 2}}}, "key 1 is not text"),
        ({"state": {"a": [{None: 2}]}}, "key None is not text"),
        ({"state": nested(60)}, "more than 100"),
        ({"state": None}, "it is None, not an object"),
        ({"tensors": {"a": [1.0]}}, "tensor 'a' is of list, expected a NumPy array"),
        ({"tensors": {1: A}}, "tensor 1 is of ndarray, expected a NumPy array by a name that is text"),
        ({"tensors": None}, "the tensors of step 1 are None"),
        ({"finite": ["b"]}, "finite: there is no tensor 'b' among the 1 to save"),
        ({"late": ["b"]}, "late: there is no tensor 'b'"),
        ({"finite": "a"}, "finite is 'a', expected a collection of names"),
        ({"layout": {"b": {"shape": [3000], "offset": [0]}}}, "layout: there is no tensor 'b'"),
        ({"layout": {"a": {"shape": [5], "offset": [0]}}}, "layout of tensor 'a'"),
        ({"layout": {"a": {"shape": [6000], "offset": [-1]}}}, "layout of tensor 'a'"),
        ({"layout": {"a": {"shape": [6000], "offset": [0.5]}}}, "layout of tensor 'a'"),
        ({"layout": {"a": 3}}, "layout of tensor 'a'"),
    ],
)
@pytest.mark.parametrize("wait", [True, False])
def test_what_no_reader_would_give_back_is_refused_before_anything_is_written(change, told, wait, tmp_path):
    with CheckpointStore(tmp_path / "made", keep=1) as store:
        store.save(0, {"a": A}, {}, wait=True)
        before = sorted(os.listdir(store.folder))
        values = {"step": 1, "tensors": {"a": A}, "state": {}, **change}
        with pytest.raises(CheckpointError, match=told):
            store.save(values.pop("step"), values.pop("tensors"), values.pop("state"), wait=wait, **values)
        store.wait()
        assert sorted(os.listdir(store.folder)) == before and store.load().step == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": True}, "keep is True"),
        ({"keep": 1.5}, "keep is 1.5"),
        ({"keep_every": 2.5}, "keep_every is 2.5"),
        ({"keep_best": math.nan}, "keep_best is nan"),
        ({"identity": {"model": 1}}, "identity: 'model' is 1, expected text"),
        ({"identity": {1: "a"}}, "identity: 1 is 'a', expected text"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"chunk_bytes": 12}, "chunk_bytes is 12, expected a multiple of 8"),
        ({"chunk_bytes": 1 << 30}, "chunk_bytes is 1073741824"),
        ({"rank": 0.5}, "rank is 0.5 of 1"),
        ({"world": True}, "world is True"),
    ],
)
def test_options_of_which_no_readable_commit_would_come_are_refused(options, told, tmp_path):
    with pytest.raises(CheckpointError, match=told):
        CheckpointStore(tmp_path, **options)


def test_numbers_of_numpy_are_numbers(store):
    store.save(np.int64(3), {"a": A}, {}, metric=np.float32(0.5), wait=True)
    assert store.load().step == 3 and store.load().metric == 0.5


@pytest.mark.parametrize("name", ["", "\n", "../a", "a/b", "\0", "\ud800", "x" * 100_000])
def test_any_text_names_a_tensor(store, name):
    store.save(1, {name: A}, {}, wait=True)
    assert np.array_equal(store.load().tensors[name], A) and store.verify() == []


def test_what_it_would_not_read_itself_it_does_not_commit(store, monkeypatch):
    store.save(0, {"a": A}, {}, wait=True)
    monkeypatch.setattr("mindspeed_ms.checkpoint.manifest.VERSION", 2)
    with pytest.raises(CheckpointError, match="version is 2"):
        store.save(1, {"a": A}, {}, wait=True)
    assert store.steps() == [0] and len(list(store.folder.glob("*.bin"))) == 1


def test_arrays_of_another_order_of_bytes_are_not_filled(store):
    store.save(1, {"a": A}, {}, wait=True)
    for place in (np.zeros(3000, ">f4"), [0.0] * 3000):
        with pytest.raises(CheckpointError, match="its place"):
            store.load(into={"a": place})
    with pytest.raises(CheckpointError, match="names is 'a', expected a collection"):
        store.load(names="a")


def test_commits_of_another_model_are_not_pruned_away(tmp_path):
    with CheckpointStore(tmp_path, keep=1, identity={"model": "x"}) as store:
        store.save(1, {"a": A}, {}, wait=True)
    with CheckpointStore(tmp_path, keep=1, identity={"model": "y"}) as store:
        with pytest.raises(OtherCheckpoint, match="is a commit of another model: model is 'x', this run's is 'y'"):
            store.save(2, {"a": A}, {}, wait=True)
        assert store.steps() == [1] and store.verify() == []


def test_a_store_that_was_closed_knows_nothing_of_what_another_wrote_since(store):
    store.save(1, {"a": A}, {}, wait=True)
    store.save(2, {"a": A + 1}, {}, wait=True)
    store.close()
    store.close()
    with CheckpointStore(store.folder, keep=0) as other:
        other.save(2, {"a": A + 5}, {}, wait=True)
    store.save(3, {"a": A + 9}, {}, wait=True)
    assert store.verify() == [] and store.load(2).tensors["a"][0] == 5


def test_threads_that_save_wait_for_each_other(store):
    def save(first):
        for step in range(first, first + 10):
            store.save(step, {"a": np.full(100_000, step, np.float32)}, {})

    threads = [threading.Thread(target=save, args=(first,)) for first in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    store.wait()
    assert len(store.steps()) == 20
    assert all((store.load(step).tensors["a"] == step).all() for step in store.steps())


def test_a_process_that_was_forked_neither_writes_nor_holds_the_lock(store):
    store.save(1, {"a": A}, {})
    told, tell = os.pipe()
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        try:
            store.save(2, {"a": A}, {})
        except CheckpointError as error:
            store.close()
            os.write(tell, str(error).encode())
        os.read(asked, 1)
        os._exit(0)
    try:
        assert b"from which this one was forked; open it anew" in os.read(told, 1000)
        store.close()
        with CheckpointStore(store.folder, keep=0) as other:  # while the child lives
            other.save(3, {"a": A}, {}, wait=True)
        assert store.steps() == [1, 3]
    finally:
        os.write(ask, b"x")
        os.waitpid(child, 0)
        for handle in (told, tell, asked, ask):
            os.close(handle)


def test_a_full_disk_may_be_pruned(store, monkeypatch):
    store.save(1, {"a": A}, {}, wait=True)
    store.save(2, {"a": A + 1}, {}, wait=True)
    store.close()

    def full(*values):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with CheckpointStore(store.folder, keep=1) as other:
        assert other.prune() == [1] and other.steps() == [2]


def test_pruning_never_takes_the_newest_good_commit(store, caplog):
    for step in (1, 2, 3):
        store.save(step, {"a": np.random.default_rng(step).random(3000, np.float32)}, {}, wait=True)
    store.close()
    flip(store, 3)
    reader = CheckpointStore(store.folder, keep=1, write=False)
    assert reader.going() == [1] and "step 2 stays, the newest good checkpoint" in caplog.text
    with CheckpointStore(store.folder, keep=1) as pruner:
        assert pruner.prune() == [1] and pruner.steps() == [2, 3]
        flip(store, 2)
        assert pruner.prune() == [] and pruner.steps() == [2, 3]


class Meanwhile(Files):
    """Another process does something before the nth read of a file."""

    def __init__(self, act):
        self.act, self.done = act, False

    def open_read(self, path, *, direct=False):
        if path.suffix == ".bin" and not self.done:
            self.done = True
            self.act()
        return super().open_read(path, direct=direct)


def test_a_reader_goes_on_with_the_newest_when_a_run_removes_what_it_reads(tmp_path):
    with CheckpointStore(tmp_path, keep=1, keep_every=10) as run:
        run.save(10, {"a": A}, {}, wait=True)
        run.save(11, {"a": A + 1}, {}, wait=True)

        def save(step):
            run.save(step, {"a": np.random.default_rng(step).random(3000, np.float32)}, {}, wait=True)

        reader = CheckpointStore(tmp_path, write=False, files=Meanwhile(lambda: save(12)))
        assert reader.load().step == 12
        again = CheckpointStore(tmp_path, write=False, files=Meanwhile(lambda: save(12)))
        assert again.load().step == 12 and again.verify() == []
        verified = CheckpointStore(tmp_path, write=False, files=Meanwhile(lambda: save(13)))
        assert verified.verify() == []
        gone = CheckpointStore(tmp_path, write=False, files=Meanwhile(lambda: save(14)))
        with pytest.raises(CheckpointError, match="there is no such checkpoint; the newest steps are: 10, 14"):
            gone.load(13)


def test_what_is_removed_between_listing_and_reading_is_no_damage(store):
    for step in (1, 2, 3):
        store.save(step, {"a": A}, {}, wait=True)

    class Listing(Files):
        def names(self, folder):
            found = super().names(folder)
            (folder / "step-00000001.json").unlink(missing_ok=True)
            return found

    assert CheckpointStore(store.folder, write=False, files=Listing()).verify() == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("suffix", [".bin", ".json"])
def test_what_may_not_be_read_is_not_called_damaged_and_no_older_commit_taken(store, number, suffix):
    store.save(1, {"a": A}, {}, wait=True)
    store.save(2, {"a": A + 1}, {}, wait=True)

    class Closed(Files):
        def open_read(self, path, *, direct=False):
            if path.name.startswith("step-00000002") and path.suffix == suffix:
                raise OSError(number, os.strerror(number))
            return super().open_read(path, direct=direct)

    reader = CheckpointStore(store.folder, write=False, files=Closed())
    for step in (None, 2):
        with pytest.raises(Unreadable, match=os.strerror(number)) as error:
            reader.load(step)
        assert "damaged" not in str(error.value)


def test_an_entry_that_cannot_be_removed_is_named(store):
    store.save(1, {"a": A}, {}, wait=True)
    (store.folder / "step-00000005.json").mkdir()
    with pytest.raises(CheckpointError, match=r"step-00000005\.json: cannot be changed"):
        store.forget_after(1)
    assert json.loads((store.folder / "step-00000001.json").read_text().splitlines()[0])["step"] == 1
