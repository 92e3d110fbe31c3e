"""No byte of a store may differ, and no manifest is believed: damage is found, refused and named, never followed."""

import hashlib
import json
import logging
import os
import shutil

import numpy as np
import pytest

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError

TENSORS = {"w": np.arange(100, dtype=np.float32), "half": np.ones(40, np.float16)}


@pytest.fixture
def made(tmp_path):
    """A store of steps 1 and 2 of which 2 refers to 1 for one tensor."""
    with CheckpointStore(tmp_path / "made", keep=0, chunk_bytes=256) as store:
        store.save(1, TENSORS, {"n": 1})
        store.save(2, {**TENSORS, "w": TENSORS["w"] + np.float32(0.125)}, {"n": 2}, wait=True)
    return tmp_path / "made"


def opened(folder, **options):
    return CheckpointStore(folder, write=False, **options)


def spoilt(path):
    """Each content that differs from a file's by one byte, or lacks its end; the least are told first."""
    content = path.read_bytes()
    for index in range(len(content)):
        yield content[:index] + bytes([content[index] ^ (1 << index % 8)]) + content[index + 1 :]
        if index % 7 == 0 or len(content) - index < 70:
            yield content[:index]
    yield content + b"\0"


def test_every_flipped_byte_and_every_truncation_is_found_and_refused(made):
    of_step = {"1": [1, 2], "2": [2]}  # whose commits need a file
    paths = sorted(path for path in made.iterdir() if not path.name.startswith("."))
    assert [path.suffix for path in paths] == [".bin", ".json", ".bin", ".json"]
    store = opened(made)
    assert store.verify() == []
    for path in paths:
        whole = path.read_bytes()
        hurt = of_step[path.name[12]] if path.suffix == ".bin" else [int(path.name[12])]
        everywhere = set()
        for content in spoilt(path):
            path.write_bytes(content)
            found = {problem.step for problem in store.verify()}
            assert hurt[0] in found and found <= set(hurt)
            everywhere |= found
            for step in (1, 2):
                if step in found:
                    with pytest.raises(CheckpointError, match=path.name):
                        store.load(step)
                else:
                    assert store.load(step).state == {"n": step}
        assert everywhere == set(hurt)
        path.unlink()
        assert {problem.step for problem in store.verify()} == (set(hurt) if path.suffix == ".bin" else set())
        path.write_bytes(whole)
    assert store.verify() == []


def test_the_newest_good_commit_is_named_and_taken(made, caplog):
    (path,) = made.glob("step-00000002.0.*.bin")
    data = bytearray(path.read_bytes())
    data[5] ^= 16
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="not those that were saved.*the newest good .* of step 1"):
        opened(made).load(2)
    with caplog.at_level(logging.WARNING):
        found = opened(made).load()
    assert found.step == 1 and np.array_equal(found.tensors["w"], TENSORS["w"])
    assert "the newest good checkpoint is that of step 1, which is taken" in caplog.text


def test_a_part_is_loaded_though_the_rest_is_damaged(made):
    entry = next(entry for entry in opened(made).manifest(2).tensors if entry.name == "half")
    path = made / entry.chunks[0].file
    data = bytearray(path.read_bytes())
    data[entry.chunks[0].offset] ^= 1
    path.write_bytes(data)
    found = opened(made).load(2, names=["w"])
    assert np.array_equal(found.tensors["w"], TENSORS["w"] + np.float32(0.125))
    with pytest.raises(CheckpointError, match="not those that were saved"):
        opened(made).load(2, names=["half"])


def test_a_damaged_commit_is_not_named_as_the_newest_good_one(made):
    with CheckpointStore(made, keep=0, chunk_bytes=256) as store:
        store.save(3, {**TENSORS, "w": TENSORS["w"] + np.float32(0.5)}, {"n": 3}, wait=True)
    for step in (2, 3):
        (path,) = made.glob(f"step-{step:08d}.0.*.bin")
        data = bytearray(path.read_bytes())
        data[5] ^= 16
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match="the newest good checkpoint is that of step 1$"):
        opened(made).load(3)
    assert opened(made).load().step == 1


def test_where_none_is_whole_the_newest_is_named(made):
    for path in made.glob("*.bin"):
        path.unlink()
    with pytest.raises(CheckpointError, match="none of 2 checkpoints is whole; the newest: .*bin: is missing"):
        opened(made).load()


def test_a_removed_base_costs_its_commits_and_the_next_save_is_whole(made):
    (path,) = made.glob("step-00000001.0.*.bin")
    path.unlink()
    assert {problem.step for problem in opened(made).verify()} == {1, 2}
    with CheckpointStore(made, keep=0, chunk_bytes=256) as store:
        store.save(3, TENSORS, {"n": 3}, wait=True)
        assert store.verify(3) == []
        found = store.load()
        assert found.step == 3 and all(np.array_equal(found.tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_commit_of_another_model_is_refused(tmp_path):
    with CheckpointStore(tmp_path, identity={"model": "llama 2 layers"}) as store:
        store.save(1, TENSORS, {}, wait=True)
        assert store.load().identity == {"model": "llama 2 layers"}
    assert opened(tmp_path).load().step == 1
    for step in (None, 1):
        with pytest.raises(CheckpointError, match="model is 'llama 2 layers', this run's is 'qwen'"):
            opened(tmp_path, identity={"model": "qwen"}).load(step)


def rewrite(folder, step, change):
    """Change a manifest as somebody would who knows the format: the SHA-256 fits."""
    path = folder / f"step-{step:08d}.json"
    values = json.loads(path.read_bytes().split(b"\n")[0])
    line = change(values)
    if not isinstance(line, bytes):
        line = json.dumps(values).encode()
    path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


def test_another_version_of_the_format_is_refused_by_name(made):
    rewrite(made, 2, lambda values: values.update(version=9))
    for step in (None, 2):
        with pytest.raises(CheckpointError, match="version is 9, this program reads 1; use the version"):
            opened(made).load(step)


def chunk(values, tensor=0, number=0):
    return values["tensors"][tensor]["chunks"][number]


def put(place, value):
    def change(values):
        at = values
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value

    return change


FIRST = ("tensors", 0, "chunks", 0)
HOSTILE = {
    "deep": lambda values: b"[" * 200_000,
    "deep in an object": lambda values: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "no object": lambda values: b"[]",
    "no JSON": lambda values: b"{",
    "NaN": lambda values: b'{"format": NaN}',
    "invalid UTF-8": lambda values: b'{"a": "\xff"}',
    "an endless number": lambda values: b'{"step": ' + b"9" * 100_000 + b"}",
    "a huge step": put(["step"], 10**400),
    "a step as text": put(["step"], "2"),
    "another format": put(["format"], "x"),
    "no files": put(["files"], None),
    "no tensors": put(["tensors"], None),
    "tensors that are text": put(["tensors"], ["w"]),
    "a path in files": lambda values: values["files"].update({"../x": 4096}),
    "a path behind a name": lambda values: values["files"].update({"step-00000001.0.aaaaaaaa.bin/../x": 4096}),
    "a file of a later step": lambda values: values["files"].update({"step-00000009.0.aaaaaaaa.bin": 4096}),
    "a file that nothing needs": lambda values: values["files"].update({"step-00000001.0.aaaaaaaa.bin": 4096}),
    "a file without a size": lambda values: values["files"].update(dict.fromkeys(values["files"], -1)),
    "a file of a huge size": lambda values: values["files"].update(dict.fromkeys(values["files"], 2**80)),
    "a tensor twice": lambda values: values["tensors"].append(values["tensors"][0]),
    "a name that is none": put(["tensors", 0, "name"], 7),
    "an unknown dtype": put(["tensors", 0, "dtype"], "object"),
    "a dtype of another size": put(["tensors", 0, "dtype"], "float64"),
    "a dtype that is a list": put(["tensors", 0, "dtype"], ["float32"]),
    "a huge shape": put(["tensors", 0, "shape"], [2**50, 2**50]),
    "a shape that is empty and huge": put(["tensors", 0, "shape"], [0, 2**60, 2**60]),
    "a shape of 33 axes": put(["tensors", 0, "shape"], [1] * 33),
    "a negative length": put(["tensors", 0, "shape"], [-100]),
    "a length that is no number": put(["tensors", 0, "shape"], [1e2]),
    "a length that is true": put(["tensors", 0, "shape"], [100, True]),
    "a rank that there is not": put(["tensors", 0, "rank"], 1),
    "a layout that does not hold it": put(["tensors", 0, "layout"], {"shape": [10], "offset": [5]}),
    "no chunks": put(["tensors", 0, "chunks"], []),
    "a chunk that is none": put(FIRST, 5),
    "a chunk of a file that there is not": put([*FIRST, 0], 99),
    "a chunk of a negative file": put([*FIRST, 0], -1),
    "a negative offset": put([*FIRST, 1], -4096),
    "an offset behind the end": put([*FIRST, 1], 2**40),
    "more stored than the file has": put([*FIRST, 2], 2**40),
    "less stored than used": put([*FIRST, 2], 1),
    "more used than the chunk has": put([*FIRST, 3], 10**6),
    "nothing used": put([*FIRST, 3], 0),
    "an unknown codec": put([*FIRST, 4], "pickle"),
    "a codec that is a list": put([*FIRST, 4], ["raw"]),
    "a checksum that is none": put([*FIRST, 5], "zz"),
    "a difference without a base": put([*FIRST, 4], "bytes-delta"),
    "a base where none is taken": lambda values: put(FIRST, [*chunk(values)[:6], chunk(values)[:6]])(values),
    "overlapping chunks": lambda values: put(["tensors", 0, "chunks", 1, 1], chunk(values)[1] + 1)(values),
    "chunks of 0 bytes": put(["chunk_bytes"], 0),
    "chunks of a terabyte": put(["chunk_bytes"], 2**40),
    "a world of none": put(["world"], 0),
    "a state of a rank that there is not": put(["rank_states"], {"3": {}}),
    "a state that is a list": put(["state"], []),
    "a previous step after it": put(["previous"], {"step": 5, "sha256": "0" * 64}),
    "an infinite time": lambda values: json.dumps({**values, "time": 0}).replace('"time": 0', '"time": 1e999').encode(),
    "a time of 400 digits": put(["time"], 10**400),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_one_line(case, made):
    rewrite(made, 1, HOSTILE[case])
    with pytest.raises(CheckpointError) as told:
        opened(made).load(1)
    assert "\n" not in str(told.value) and len(str(told.value)) < 1000
    assert "step-00000001.json" in str(told.value) and "step 2" in str(told.value)
    assert [problem.step for problem in opened(made).verify()] == [1]


def test_an_overlong_manifest_is_not_read(made):
    os.truncate(made / "step-00000002.json", 2**40)
    with pytest.raises(CheckpointError, match="cannot be read .longer than"):
        opened(made).load(2)


def test_links_folders_and_pipes_are_no_files_of_a_store(made, tmp_path):
    path = made / "step-00000002.json"
    outside = tmp_path / "outside.json"
    shutil.move(path, outside)
    for make in (lambda: path.symlink_to(outside), path.mkdir, lambda: os.mkfifo(path)):
        make()
        with pytest.raises(CheckpointError, match=r"step-00000002\.json: cannot be read .*not a plain file"):
            opened(made).load(2)
        assert opened(made).load().step == 1
        with CheckpointStore(made, chunk_bytes=256, keep=1) as store:
            store.reclaim()
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.move(outside, path)
    assert opened(made).verify() == []  # no file was removed that the unreadable manifest may have needed
    (found,) = made.glob("step-00000002.0.*.bin")
    shutil.move(found, outside)
    found.symlink_to(outside)
    with pytest.raises(CheckpointError, match="cannot be read .a symbolic link"):
        opened(made).load(2)


def test_a_commit_that_followed_another_is_told_of(made):
    rewrite(made, 1, put(["time"], 5))
    assert [problem.step for problem in opened(made).verify()] == [2]
    assert "the commit of step 1 is another than the one before it" in opened(made).verify()[0].message
