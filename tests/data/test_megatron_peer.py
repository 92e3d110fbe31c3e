"""Megatron's own class reads what we write and writes what we read."""

import numpy as np
import pytest

from mindspeed_ms.data.megatron import MegatronReader, MegatronWriter

torch = pytest.importorskip("torch")
peer = pytest.importorskip("megatron.core.datasets.indexed_dataset")

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def documents(vocab_size):
    rng = np.random.default_rng(2)
    return [rng.integers(0, vocab_size, n) for n in rng.integers(1, 60, 200)]


@pytest.mark.parametrize("vocab_size", [300, 65499, 65500, 151936])
def test_megatron_reads_what_we_write(tmp_path, vocab_size):
    with MegatronWriter(tmp_path / "set", vocab_size) as writer:
        for document in documents(vocab_size):
            writer.add(document)
    for mmap in (True, False):
        read = peer.IndexedDataset(str(tmp_path / "set"), mmap=mmap)
        assert read.index.dtype == peer.DType.optimal_dtype(vocab_size)
        assert read.document_indices.tolist() == list(range(201))
        for found, expected in zip(read[0:200], documents(vocab_size), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_we_read_what_megatron_writes(tmp_path, dtype, multimodal):
    builder = peer.IndexedDatasetBuilder(str(tmp_path / "set.bin"), dtype, multimodal)
    for k, document in enumerate(documents(65000)):
        half = len(document) // 2 if k % 3 else 0  # some documents of two sequences
        for part in (document[:half], document[half:]) if half else (document,):
            builder.add_item(torch.from_numpy(part))
        builder.end_document()
    builder.finalize(str(tmp_path / "set.idx"))
    with MegatronReader(tmp_path / "set") as reader:
        for found, expected in zip(reader, documents(65000), strict=True):
            np.testing.assert_array_equal(found, expected)
