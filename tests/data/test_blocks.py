"""Blocks: what is mapped is what the files say, what is damaged is named, what is missing is made again."""

import os
import shutil

import numpy as np
import pytest
from data_sets import make_set, read_columns

from mindspeed_ms.data.blocks import open_blocks, verify_set
from mindspeed_ms.data.manifest import NAME, read_manifest
from mindspeed_ms.errors import DataError


def together(blocks, name):
    return np.concatenate([block.columns[name] for block in blocks])


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A set with real MindRecord files."""
    folder = tmp_path_factory.mktemp("real")
    make_set(folder, {16: 11, 48: 5}, loss_mask=True, mindrecord=True)
    return folder


@pytest.fixture
def copy(real, tmp_path):
    return shutil.copytree(real, tmp_path / "set")


@pytest.mark.parametrize("loss_mask", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_blocks_hold_the_columns_of_their_files(tmp_path, loss_mask, shards):
    manifest = make_set(tmp_path, {8: 10, 32: 1, 64: 0}, loss_mask, shards=shards)
    opened = open_blocks(tmp_path, manifest)
    for bucket, blocks in zip(manifest.buckets, opened, strict=True):
        assert [block.rows for block in blocks] == [shard.rows for shard in bucket.shards]
        for name, expected in read_columns(tmp_path, manifest, bucket.length).items():
            found = together(blocks, name)
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, expected)


def test_blocks_are_mapped_and_writing_to_them_changes_no_file(tmp_path):
    manifest = make_set(tmp_path, {8: 10}, shards=1)
    before = (tmp_path / manifest.buckets[0].shards[0].block.path).read_bytes()
    block = open_blocks(tmp_path, manifest)[0][0]
    block.columns["input_ids"][:] = 7
    assert (tmp_path / manifest.buckets[0].shards[0].block.path).read_bytes() == before
    assert (open_blocks(tmp_path, manifest)[0][0].columns["input_ids"] != 7).any()


def test_every_flipped_byte_of_a_block_is_found(tmp_path):
    manifest = make_set(tmp_path, {4: 6}, shards=1)
    path = tmp_path / manifest.buckets[0].shards[0].block.path
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        with pytest.raises(DataError, match=rf"{path}: its SHA-256 .*delete this file"):
            open_blocks(tmp_path, manifest)
    path.write_bytes(good)
    open_blocks(tmp_path, manifest)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("damage", [lambda data: data[:-4], lambda data: data + b"\0", lambda data: b""])
def test_a_block_of_another_size_is_an_error_with_and_without_verification(tmp_path, verify, damage):
    manifest = make_set(tmp_path, {8: 10})
    path = tmp_path / manifest.buckets[0].shards[1].block.path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"{path}: \d+ bytes, the manifest says"):
        open_blocks(tmp_path, manifest, verify=verify)


def test_a_block_that_is_a_link_out_of_the_set_is_refused(tmp_path):
    manifest = make_set(tmp_path / "set", {8: 10})
    path = tmp_path / "set" / manifest.buckets[0].shards[0].block.path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="leads out of its set by a link"):
        open_blocks(tmp_path / "set", manifest)


def test_missing_blocks_are_made_again_of_the_mindrecord_files_to_the_byte(copy):
    manifest = read_manifest(copy)
    good = {path: path.read_bytes() for path in copy.rglob("*.block")}
    assert len(good) == 4
    for path in good:
        path.unlink()
    for bucket, blocks in zip(manifest.buckets, open_blocks(copy, manifest), strict=True):
        assert sum(block.rows for block in blocks) == bucket.rows
    assert {path: path.read_bytes() for path in copy.rglob("*.block")} == good
    assert not list(copy.rglob(".*"))


def test_blocks_of_a_folder_that_cannot_be_written_are_made_in_the_cache(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "cache"))
    manifest = read_manifest(copy)
    lost = next(iter(sorted(copy.rglob("*.block"))))
    good = lost.read_bytes()
    lost.unlink()
    # A test may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    for _ in range(2):
        blocks = open_blocks(copy, manifest)
        np.testing.assert_array_equal(
            together(blocks[0], "input_ids")[:6].ravel(), np.frombuffer(good, "<i4")[: 6 * 16]
        )
    assert not lost.exists()
    made = tmp_path / "cache" / "blocks" / manifest.checksum / lost.relative_to(copy)
    assert made.read_bytes() == good
    made.write_bytes(good[:-1] + b"\7")
    with pytest.raises(DataError, match=f"{made}: its SHA-256"):
        open_blocks(copy, manifest)


def test_a_block_is_not_made_of_a_mindrecord_file_with_other_rows(copy):
    """The two shards of a bucket, exchanged: all is well formed, but these are not the manifest's rows."""
    manifest = read_manifest(copy)
    first, second = (shard.mindrecord for shard in manifest.buckets[0].shards)
    (copy / manifest.buckets[0].shards[0].block.path).unlink()
    changed = manifest.model_copy(deep=True)
    for kind in ("mindrecord", "index"):
        shards = changed.buckets[0].shards
        one, two = getattr(shards[0], kind), getattr(shards[1], kind)
        setattr(shards[0], kind, two)
        setattr(shards[1], kind, one)
    with pytest.raises(DataError, match=rf"{second.path}: its rows are not those of the manifest"):
        open_blocks(copy, changed)
    assert not list(copy.rglob("*.partial")) and first.path != second.path


def test_a_missing_block_without_its_mindrecord_file_is_an_error_that_names_it(tmp_path):
    manifest = make_set(tmp_path, {8: 4}, shards=1)
    shard = manifest.buckets[0].shards[0]
    (tmp_path / shard.block.path).unlink()
    (tmp_path / shard.mindrecord.path).unlink()
    with pytest.raises(DataError, match=f"{shard.mindrecord.path}: cannot be read"):
        open_blocks(tmp_path, manifest)


@pytest.mark.parametrize("kind", ["mindrecord", "index", "block"])
def test_verifying_a_set_finds_a_flipped_bit_in_any_file(tmp_path, kind):
    manifest = make_set(tmp_path, {8: 4, 16: 4})
    verify_set(tmp_path)
    for bucket in manifest.buckets:
        for shard in bucket.shards:
            path = tmp_path / getattr(shard, kind).path
            good = path.read_bytes()
            path.write_bytes(good[:-3] + bytes([good[-3] ^ 64]) + good[-2:])
            with pytest.raises(DataError, match=str(path)):
                verify_set(tmp_path)
            path.write_bytes(good)
    verify_set(tmp_path)


def test_verifying_a_set_needs_all_files_but_the_blocks(tmp_path):
    manifest = make_set(tmp_path, {8: 4}, shards=1)
    shard = manifest.buckets[0].shards[0]
    (tmp_path / shard.block.path).unlink()
    assert verify_set(tmp_path) == manifest
    for name in (shard.index.path, "tokenizer.json", NAME):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        with pytest.raises(DataError):
            verify_set(tmp_path)
        (tmp_path / name).write_bytes(kept)


@pytest.mark.parametrize("wrong", [[0, 3], [3, 2], [3, 99], [-1, 3]])
def test_ends_that_are_none_are_refused_whatever_the_checksum(tmp_path, wrong):
    from mindspeed_ms.data.blocks import _check_ends

    _check_ends(tmp_path, np.array([[2, 8], [3, 3]], np.int32), 8)
    with pytest.raises(DataError, match="no ascending ends within 8 tokens"):
        _check_ends(tmp_path, np.array([[2, 8], wrong], np.int32), 8)
