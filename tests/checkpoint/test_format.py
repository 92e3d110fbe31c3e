"""docs/checkpoint-format.md is enough to read what a store writes: a reader made from it alone does."""

import ast
from pathlib import Path

import independent_reader
import numpy as np

from mindspeed_ms.checkpoint.store import CheckpointStore

CHUNK = 16384


def tensors(step):
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(20_000).astype(np.float32)
    drawn = np.random.default_rng(step)
    sparse = weights.copy()
    sparse[drawn.integers(0, 20_000, 30)] = drawn.standard_normal(30)
    return {
        "near": weights * np.float32(1 + 1e-6 * step),
        "sparse": sparse,
        "new": drawn.standard_normal(9000).astype(np.float32),
        "positive": np.abs(drawn.standard_normal(9000)).astype(np.float32) * np.float32(1e-3),
        "counts": drawn.integers(0, 50, (30, 400)).astype(np.int32),
        "wide": np.cumsum(drawn.integers(0, 9, 3000)),
        "half": drawn.standard_normal(9000).astype(np.float16),
        "large": rng.integers(0, 2**62, 5000) + step,
        "flags": drawn.integers(0, 2, 5000).astype(bool),
        "same": weights,
        "scalar": np.array(step, np.int64),
        "empty": np.zeros((3, 0), np.float32),
        "none": np.zeros(10_000, np.float32),
    }


def test_the_reader_is_short_and_knows_nothing_of_the_package():
    source = Path(independent_reader.__file__).read_text()
    assert len(source.splitlines()) <= 100
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert imported == {"hashlib", "json", "pathlib", "numpy", "xxhash", "zstandard"}


def test_a_reader_made_from_the_documentation_reads_what_is_saved(tmp_path):
    codecs = set()
    with CheckpointStore(tmp_path, keep=0, chunk_bytes=CHUNK) as store:
        for step in range(4):
            store.save(step, tensors(step), {"step": step, "text": "ä"}, wait=True)
            codecs |= {chunk.codec for entry in store.manifest(step).tensors for chunk in entry.chunks}
    for step in range(4):
        state, found = independent_reader.read(tmp_path, step)
        assert state == {"step": step, "text": "ä"} and list(found) == list(tensors(step))
        for name, array in tensors(step).items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes(), name
    assert codecs == {"raw", "block", "block-delta", "bytes", "bytes-delta"}


def test_it_reads_the_part_of_a_rank(tmp_path):
    stores = [CheckpointStore(tmp_path, rank=rank, world=2, timeout=60) for rank in range(2)]
    for rank, store in enumerate(stores):
        values = {"part": np.full(5, rank), f"own{rank}": np.ones(rank + 1)}
        store.save(1, values, {"rank": rank}, layout={"part": {"shape": [10], "offset": [5 * rank]}})
    for store in stores:
        store.close()
    for rank in range(2):
        state, found = independent_reader.read(tmp_path, 1, rank)
        assert state == {"rank": rank} and set(found) == {"part", "own0", "own1"}
        assert np.array_equal(found["part"], np.full(5, rank))


def test_every_byte_of_every_file_lies_in_one_chunk_and_large_raw_ones_begin_at_pages(tmp_path):
    with CheckpointStore(tmp_path, keep=0, chunk_bytes=1 << 17) as store:
        rng = np.random.default_rng(0)
        for step in range(2):
            values = {f"w{i}": rng.standard_normal(5000 * i + 3).astype(np.float32) for i in range(1, 20)}
            store.save(step, values, {}, wait=True)
            manifest = store.manifest(step)
            spans = {}
            for entry in manifest.tensors:
                for chunk in entry.chunks:
                    spans.setdefault(chunk.file, []).append((chunk.offset, chunk.offset + chunk.stored))
                    assert chunk.codec != "raw" or chunk.used < 65536 or chunk.offset % 4096 == 0
            (own,) = [name for name in spans if int(name[5:13]) == step]
            ends = [0, *[end for _, end in sorted(spans[own])]]
            assert [begin for begin, _ in sorted(spans[own])] == ends[:-1]
            assert ends[-1] == manifest.files[own] == (tmp_path / own).stat().st_size
            assert ends[-1] % 4096 == 0
