"""MindRecord shards and blocks hold the same rows, and plain MindDataset reads them."""

import hashlib
import os
import subprocess

import numpy as np
import pytest

from mindspeed_ms.data import writer
from mindspeed_ms.data.mindrecord import read_rows, write_shard
from mindspeed_ms.errors import DataError

WIDTHS = {"input_ids": 8, "document_ends": 3}


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 2**31, (count, width), dtype=np.int32) for name, width in WIDTHS.items()}


def in_pieces(columns, size=100):
    count = len(columns["input_ids"])
    return ({name: array[i : i + size] for name, array in columns.items()} for i in range(0, count, size))


@pytest.mark.parametrize("count", [1, 1000, 2500])
def test_rows_come_back_in_order_also_by_plain_minddataset(tmp_path, count):
    import mindspore.dataset as dataset

    wanted = rows(count)
    paths = [tmp_path / "00000.mindrecord", tmp_path / "00001.mindrecord"]
    for path in paths:
        write_shard(path, WIDTHS, in_pieces(wanted), 1 << 20)
    found = list(read_rows(paths[0], list(WIDTHS)))
    for name in WIDTHS:
        assert (np.concatenate([piece[name] for piece in found]) == wanted[name]).all()
    plain = dataset.MindDataset([str(path) for path in paths], shuffle=False).batch(7)
    batches = list(plain.create_dict_iterator(num_epochs=1, output_numpy=True))
    for name, width in WIDTHS.items():
        together = np.concatenate([batch[name] for batch in batches])
        assert together.dtype == np.int32 and together.shape == (2 * count, width)
        assert (together == np.concatenate([wanted[name]] * 2)).all()


def test_the_bytes_depend_on_the_rows_alone(tmp_path):
    digests = set()
    for folder in (tmp_path / "a", tmp_path / "another" / "place"):
        folder.mkdir(parents=True)
        write_shard(folder / "00000.mindrecord", WIDTHS, in_pieces(rows(50)), 1 << 20)
        files = sorted(folder.iterdir())
        digests.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
        assert len(files) == 2 and all(file.stat().st_mode & 0o077 == 0o044 for file in files)
    assert len(digests) == 1


def test_rows_longer_than_a_page_of_mindrecord(tmp_path):
    widths = {"input_ids": 400_000}
    wanted = np.arange(800_000, dtype=np.int32).reshape(2, -1)
    write_shard(tmp_path / "00000.mindrecord", widths, iter([{"input_ids": wanted}]), 1 << 20)
    (found,) = read_rows(tmp_path / "00000.mindrecord", ["input_ids"])
    assert (found["input_ids"] == wanted).all()


def test_a_file_that_is_no_mindrecord_is_named(tmp_path):
    (tmp_path / "x.mindrecord").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"x\.mindrecord: MindRecord cannot be read"):
        list(read_rows(tmp_path / "x.mindrecord", ["input_ids"]))


def test_a_block_holds_the_columns_one_after_another(tmp_path):
    wanted = rows(30)
    writer.write_block(tmp_path / "block", WIDTHS, 30, in_pieces(wanted, 7))
    expected = b"".join(wanted[name].astype("<i4").tobytes() for name in WIDTHS)
    assert (tmp_path / "block").read_bytes() == expected


def test_both_files_of_a_shard_are_in_their_place_and_described(tmp_path):
    wanted = rows(30)
    shard = writer.write_shard_files(tmp_path, tmp_path / "w", 3, WIDTHS, 30, lambda: in_pieces(wanted), 1 << 20)
    assert shard.rows == 30 and shard.block.bytes == 4 * 30 * 11
    for file in (shard.mindrecord, shard.index, shard.block):
        data = (tmp_path / file.path).read_bytes()
        assert file.path.startswith("bucket-00008/00003.")
        assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_a_full_disk_is_one_line(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        many = {name: np.concatenate([array] * 100) for name, array in rows(2000).items()}
        with pytest.raises(DataError, match="run the same") as error:
            write_shard(small / "00000.mindrecord", WIDTHS, in_pieces(many, 2000), 1 << 20)
        assert "\n" not in str(error.value)
        with pytest.raises(DataError, match="no space left on the disk"):
            writer.write_block(small / "block", WIDTHS, 200_000, in_pieces(many, 2000))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
