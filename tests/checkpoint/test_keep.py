"""Bases, differences, references and what stays."""

import json
import logging

import numpy as np
import pytest

from mindspeed_ms.checkpoint.diff import diff
from mindspeed_ms.checkpoint.keep import kept
from mindspeed_ms.checkpoint.records import Problem
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

CHUNK = 4096


@pytest.fixture
def make(tmp_path):
    stores = []

    def make(**options):
        stores.append(CheckpointStore(tmp_path / "store", **{"chunk_bytes": CHUNK, "keep": 0, **options}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def noise(seed, size=4000):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def bins(store):
    return sorted(path.name for path in store.folder.glob("*.bin"))


def chunks(store, step, name):
    (entry,) = [entry for entry in store.manifest(step).tensors if entry.name == name]
    return entry.chunks


def test_the_rules_say_which_steps_stay_and_why():
    metrics = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 5.0}
    assert kept(metrics, 0) == dict.fromkeys(metrics, "all")
    assert kept(metrics, 2) == {40: "newest", 50: "newest"}
    assert kept(metrics, 1, keep_every=20) == {20: "every 20", 40: "every 20", 50: "newest"}
    assert kept(metrics, 1, keep_best=2) == {20: "best", 40: "best", 50: "newest"}
    assert kept({1: 1.0, 2: 1.0}, 1, None, 1) == {2: "newest, best"}
    assert kept({}, 2, 5, 1) == {}


def test_old_commits_go_and_their_files_unless_a_later_one_refers_to_them(make):
    store = make(keep=1, keep_every=4, keep_best=1)
    for step in range(1, 7):
        metric = 0.5 if step == 2 else float(step)
        store.save(step, {"frozen": noise(0), "w": noise(step)}, {}, metric=metric, wait=True)
    assert store.steps() == [2, 4, 6]
    assert store.kept() == {2: "best", 4: "every 4", 6: "newest"}
    assert [int(name[5:13]) for name in bins(store)] == [1, 2, 4, 6]  # 1 has what is frozen
    assert store.verify() == []
    for step in store.steps():
        assert np.array_equal(store.load(step).tensors["w"], noise(step))
        assert np.array_equal(store.load(step).tensors["frozen"], noise(0))


def test_a_base_comes_first_after_eight_commits_and_when_names_or_shapes_change(make):
    store = make()
    for step in range(1, 18):
        store.save(step, {"w": noise(step)}, {})
    bases = [saved.step for saved in store.wait() if saved.base]
    assert bases == [1, 9, 17]
    assert [store.manifest(step).base for step in (8, 9, 10)] == [1, 9, 9]
    store.save(18, {"w": noise(1)}, {})
    store.save(19, {"w": noise(1), "v": noise(2)}, {})
    store.save(20, {"w": noise(1), "v": noise(2)[:-1]}, {})
    store.save(21, {"w": noise(1), "v": noise(2)[:-1].astype(np.float64)}, {})
    assert [saved.base for saved in store.wait()] == [False, True, True, True]
    assert store.verify() == []


def test_a_difference_is_to_one_chunk_that_needs_no_other(make):
    store = make()
    w = noise(0)
    for step in range(1, 8):
        store.save(step, {"w": w + np.float32(1e-6 * step)}, {}, wait=True)
        for chunk in chunks(store, step, "w"):
            assert chunk.base is None or chunk.base.base is None
    assert any(chunk.base is not None for chunk in chunks(store, 7, "w"))
    for step in (1, 2, 3, 4, 5, 6):
        store.folder.joinpath(f"step-{step:08d}.json").unlink()  # a commit names all that it needs
    assert np.array_equal(store.load(7).tensors["w"], w + np.float32(7e-6))


def test_a_base_refers_to_what_did_not_change_unless_its_file_is_mostly_dead(make):
    store = make(keep=1)
    large, small = noise(0, 20_000), noise(1, 4000)
    for step in range(1, 10):
        store.save(step, {"large": large, "small": small, "w": noise(step)}, {}, wait=True)
    assert store.manifest(9).base == 9
    assert {chunk.file for chunk in chunks(store, 9, "large")} == {bins(store)[0]}  # of step 1, mostly alive
    assert int(bins(store)[0][5:13]) == 1
    for step in range(10, 26):  # from 10 on most of the file of step 1 is dead: the next base copies the rest
        store.save(step, {"large": noise(step, 20_000), "small": small, "w": noise(step)}, {}, wait=True)
    assert int(bins(store)[0][5:13]) >= 17
    assert np.array_equal(store.load().tensors["small"], small) and store.verify() == []


def test_the_only_commit_that_looks_whole_stays(make):
    store = make()
    store.save(1, {"w": noise(1)}, {})
    store.save(2, {"w": noise(2)}, {}, wait=True)
    store.close()
    (store.folder / bins(store)[1]).unlink()
    with make(keep=1) as store:
        assert store.prune() == [] and store.kept() == {1: "whole", 2: "newest"}
        assert store.load().step == 1


def test_files_stay_that_a_damaged_manifest_may_need(make, caplog):
    store = make()
    for step in (1, 2, 3):
        store.save(step, {"w": noise(step)}, {}, wait=True)
    store.close()
    path = store.folder / "step-00000002.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with make(keep=1) as store, caplog.at_level(logging.WARNING):
        assert store.prune() == [1]
        assert len(bins(store)) == 3 and "files of steps to 2 stay" in caplog.text
    path.write_bytes(whole)
    assert np.array_equal(store.load(2).tensors["w"], noise(2))


def test_later_commits_are_forgotten_when_a_run_goes_on_from_an_earlier_one(make):
    store = make()
    for step in (1, 2, 3):
        store.save(step, {"w": noise(step)}, {}, wait=True)
    (store.folder / "step-00000003.json").write_text("damaged")
    assert store.forget_after(1) == [2, 3]
    assert store.steps() == [1] and len(bins(store)) == 1
    store.save(2, {"w": noise(5)}, {}, wait=True)
    assert np.array_equal(store.load().tensors["w"], noise(5)) and store.verify() == []


def test_a_step_that_is_saved_again_is_replaced_and_its_files_go(make):
    store = make()
    for seed in (1, 2):
        store.save(5, {"w": noise(seed)}, {"seed": seed}, wait=True)
    found = store.load()
    assert found.state == {"seed": 2} and np.array_equal(found.tensors["w"], noise(2))
    assert store.steps() == [5] and len(bins(store)) == 1 and store.verify() == []


def test_what_a_writer_left_behind_is_reclaimed_and_nothing_else(make):
    store = make()
    store.save(1, {"w": noise(1)}, {}, wait=True)
    mine = set(store.folder.iterdir())
    dead = ["step-00000002.0.01234567.bin", ".step-00000002.json.1-2.partial", "step-00000002.3.ab.part"]
    others = ["notes.txt", "step-2.0.01234567.bin", "step-00000001.0.XYZ.bin", "tensors.bin", ".hidden"]
    for name in dead + others:
        (store.folder / name).write_bytes(b"12345")
    assert store.reclaim() == 15
    assert set(store.folder.iterdir()) == mine | {store.folder / name for name in others}


def test_a_store_to_read_refuses_to_write(make):
    for change in ("prune", "reclaim"):
        with pytest.raises(CheckpointError, match="was opened to read"):
            getattr(make(write=False), change)()
    with pytest.raises(CheckpointError, match="was opened to read"):
        make(write=False).save(1, {}, {})
    assert not (make(write=False).folder).exists()


@pytest.mark.parametrize(
    ("options", "told"), [({"keep": -1}, "keep is -1"), ({"rank": 2, "world": 2}, "rank is 2 of 2")]
)
def test_options_that_cannot_be(options, told, make):
    with pytest.raises(CheckpointError, match=told):
        make(**options)


def test_what_cannot_be_saved_is_named_before_anything_is_written(make):
    store = make()
    for tensors, state, told in (
        ({"a": np.zeros(2, np.complex64)}, {}, "'a' is complex64, expected one of float64"),
        ({"a": np.array(["x"])}, {}, "'a' is <U1"),
        ({}, {"x": float("nan")}, "the state of step 1 is not what JSON holds"),
        ({}, {"x": object()}, "the state of step 1 is not what JSON holds"),
    ):
        with pytest.raises(CheckpointError, match=told):
            store.save(1, tensors, state)
    assert store.wait() == [] and store.steps() == []


def test_what_differs_between_commits(make):
    store = make()
    w = noise(0)
    changed = w.copy()
    changed[[5, 9]] += np.float32(0.5), np.float32(-2)
    store.save(1, {"w": w, "old": w, "same": w, "n": np.array([2**62], np.int64)}, {"a": {"b": 1, "c": 2}, "d": None})
    store.save(2, {"w": changed, "new": w, "same": w, "n": np.array([2**62 + 1])}, {"a": {"b": 1, "c": 3}}, wait=True)
    found = diff(store.load(1), store.load(2))
    assert [(item.name, item.what, item.changed, item.total) for item in found.tensors] == [
        ("n", "changed", 1, 1), ("new", "added", 4000, 4000), ("old", "removed", 4000, 4000), ("w", "changed", 2, 4000),
    ]  # fmt: skip
    assert found.tensors[0].largest == 1 and found.tensors[3].largest == pytest.approx(2, abs=1e-6)
    assert [(item.key, item.before, item.after) for item in found.state] == [("a.c", 2, 3), ("d", None, None)]
    assert diff(store.load(1), store.load(1)).tensors == []


def test_a_manifest_is_two_lines_of_text(make):
    store = make()
    store.save(1, {"w": noise(0)}, {"ä": "ö"}, metric=2.5, wait=True)
    first, second, rest = (store.folder / "step-00000001.json").read_bytes().split(b"\n")
    values = json.loads(first)
    assert (values["format"], values["version"], values["metric"]) == ("mindspeed-ms-checkpoint", 1, 2.5)
    assert len(second) == 64 and rest == b"" and store.verify(1) == []
    assert store.verify(2) == [
        Problem(2, f"{store.folder}/step-00000002.json: there is no such checkpoint; the newest steps are: 1")
    ]
