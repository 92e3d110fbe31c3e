"""The .bin/.idx pair: its format by hand-packed bytes, and what is refused."""

import os
import re
import struct

import numpy as np
import pytest
from data_corpora import chunks, plain
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.data import megatron
from mindspeed_ms.data.megatron import MegatronReader, MegatronWriter
from mindspeed_ms.errors import DataError

SEQUENCES = [[1, 2, 3], [], [4], [5, 6], [65535]]
DOCUMENTS = [0, 1, 4, 4, 5]  # three sequences make the second one, none the third


def pack(sequences=SEQUENCES, documents=DOCUMENTS, code=8, dtype="<u2", modes=b"", **changes):
    """The bytes of .bin and .idx, as Megatron's description has them."""
    data = np.array([token for s in sequences for token in s], dtype).tobytes()
    lengths = [len(s) for s in sequences]
    item = np.dtype(dtype).itemsize
    pointers = [item * sum(lengths[:k]) for k in range(len(lengths))]
    values = {"lengths": lengths, "pointers": pointers, "documents": documents, "version": 1, "code": code} | changes
    counts = values.get("counts", (len(lengths), len(documents)))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", values["version"], values["code"], *counts)
    index += struct.pack(f"<{len(values['lengths'])}i", *values["lengths"])
    index += struct.pack(f"<{len(values['pointers'])}q", *values["pointers"])
    index += struct.pack(f"<{len(values['documents'])}q", *values["documents"])
    return data, index + modes


def save(folder, data, index):
    (folder / "set.bin").write_bytes(data)
    (folder / "set.idx").write_bytes(index)
    return folder / "set"


@pytest.mark.parametrize(("code", "dtype"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")])
@pytest.mark.parametrize("modes", [b"", bytes(5)])
def test_documents_are_their_sequences_joined(tmp_path, code, dtype, modes):
    sequences = [*SEQUENCES[:-1], [100]]
    with MegatronReader(save(tmp_path, *pack(sequences, code=code, dtype=dtype, modes=modes))) as reader:
        documents = list(reader)
        assert [d.tolist() for d in documents] == [[1, 2, 3], [4, 5, 6], [], [100]]
        assert {d.dtype for d in documents} == {np.dtype(np.int64)}
        assert reader.token_ends(0, 4).tolist() == [0, 3, 6, 6, 7]
        assert reader.token_ends(2, 4).tolist() == [6, 6, 7]
        assert reader.token_ends(1, 2).tolist() == [3, 6]


def test_sequences_need_not_lie_in_order(tmp_path):
    data, index = pack([[1, 2], [3]], [0, 1, 2], pointers=[2, 0])
    with MegatronReader(save(tmp_path, data, index)) as reader:
        assert [d.tolist() for d in reader] == [[2, 3], [1]]


WRONG = {
    "magic": (None, "does not begin as an index"),
    "short": (None, "does not begin as an index"),
    "version": ({"version": 2}, "version 2, type 8; expected version 1"),
    "float": ({"code": 6}, "version 1, type 6"),
    "type": ({"code": 9}, "version 1, type 9"),
    "huge": ({"counts": (1 << 60, 5)}, "bytes, its 1152921504606846976 sequences and 5 indices need"),
    "overflow": ({"counts": (1 << 63, 1 << 63)}, "need"),
    "few": ({"counts": (4, 5)}, "need"),
    "none": ({"counts": (0, 0), "lengths": [], "pointers": [], "documents": []}, "need"),
    "negative": ({"lengths": [-1, 0, 1, 2, 1]}, "sequence 0 does not lie in set.bin"),
    "long": ({"lengths": [3, 0, 1, 2, 2]}, "sequence 4 does not lie in set.bin"),
    "outside": ({"pointers": [0, 6, 6, 8, 1 << 40]}, "sequence 4 does not lie in set.bin"),
    "wrapping": ({"pointers": [0, 6, 6, 8, (1 << 63) - 1]}, "sequence 4 does not lie in set.bin"),
    "before": ({"pointers": [-2, 6, 6, 8, 12]}, "sequence 0 does not lie in set.bin"),
    "fewer": ({"lengths": [3, 0, 1, 1, 1]}, "counts 6 tokens, set.bin has 7"),
    "descending": ({"documents": [0, 4, 1, 4, 5]}, "its documents do not ascend"),
    "start": ({"documents": [1, 1, 4, 4, 5]}, "its documents do not cover its 5 sequences"),
    "end": ({"documents": [0, 1, 4, 4, 4]}, "its documents do not cover its 5 sequences"),
    "beyond": ({"documents": [0, 1, 4, 4, 6]}, "its documents do not cover its 5 sequences"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_index_that_lies_is_refused_before_anything_is_allocated(tmp_path, case):
    changes, message = WRONG[case]
    data, index = pack(**(changes or {}))
    index = {"magic": b"X" + index[1:], "short": index[:20]}.get(case, index)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        MegatronReader(save(tmp_path, data, index))
    assert str(caught.value).startswith(f"{tmp_path}/set.idx: ")


@given(st.data())
def test_no_flipped_byte_of_an_index_does_more_than_an_error(tmp_path_factory, data):
    content, index = pack()
    at = data.draw(st.integers(0, len(index) - 1))
    index = index[:at] + bytes([data.draw(st.integers(0, 255))]) + index[at + 1 :]
    try:
        with MegatronReader(save(tmp_path_factory.mktemp("flip"), content, index)) as reader:
            assert sum(map(len, reader)) == len(content) // reader.dtype.itemsize
    except DataError:
        pass


def test_checks_of_a_large_index_work_across_their_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "_BLOCK", 2)
    assert len(MegatronReader(save(tmp_path, *pack()))) == 4
    with MegatronReader(tmp_path / "set") as reader:
        assert [reader.token_ends(k, k + 1).tolist() for k in (3, 1, 2)] == [[6, 7], [3, 6], [6, 6]]
    with pytest.raises(DataError, match="do not ascend"):
        MegatronReader(save(tmp_path, *pack(documents=[0, 4, 3, 4, 5])))


def test_chunks_of_ids_resume_and_pass_over_what_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "_SLICE", 3)
    sequences = [[k] * (k % 50) for k in range(20_000)]
    save(tmp_path, *pack(sequences, list(range(20_001)), 4, "<i4"))
    got = chunks(tmp_path / "set", limit=8 * 40)
    assert {c.kind for c in got} == {"ids"}
    kept = [s for s in sequences if len(s) <= 40]
    assert [r.tolist() for c in got for r in c.records] == kept
    assert sum(c.overlong for c in got) == len(sequences) - len(kept)
    assert sum(c.bytes for c in got) == (tmp_path / "set.bin").stat().st_size
    for k, chunk in enumerate(got):
        rest = chunks(tmp_path / "set", limit=8 * 40, start=chunk.after)
        assert list(map(plain, rest)) == list(map(plain, got[k + 1 :]))


def test_a_file_that_is_cut_while_it_is_read_is_damaged(tmp_path):
    with MegatronReader(save(tmp_path, *pack())) as reader:
        os.truncate(tmp_path / "set.bin", 4)
        with pytest.raises(DataError, match=r"set\.bin: ends before byte 6"):
            list(reader)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"set\.bin: cannot be read \(No such file"):
        MegatronReader(tmp_path / "set")
    (tmp_path / "set.bin").touch()
    with pytest.raises(DataError, match=r"set\.idx: cannot be read \(No such file"):
        MegatronReader(tmp_path / "set")


@pytest.mark.parametrize(
    ("vocab_size", "code", "dtype"), [(None, 4, "<i4"), (65500, 4, "<i4"), (65499, 8, "<u2"), (7, 8, "<u2")]
)
def test_written_bytes_are_those_of_the_format(tmp_path, monkeypatch, vocab_size, code, dtype):
    monkeypatch.setattr(megatron, "_BLOCK", 2)
    documents = [[1, 2, 3], [], [4], [5, 6]]
    with MegatronWriter(tmp_path / "deep" / "set.v1", vocab_size) as writer:
        writer.add(np.array(documents[0]))
        writer.add_documents(np.array([4, 5, 6]), np.array([0, 1, 2]))
        assert not list((tmp_path / "deep").glob("set*"))
    data, index = pack(documents, [0, 1, 2, 3, 4], code, dtype)
    assert (tmp_path / "deep" / "set.v1.bin").read_bytes() == data
    assert (tmp_path / "deep" / "set.v1.idx").read_bytes() == index
    assert len(list((tmp_path / "deep").iterdir())) == 2


def test_a_writer_that_fails_leaves_the_old_pair(tmp_path):
    with MegatronWriter(tmp_path / "set", 100) as writer:
        writer.add(np.array([1, 2]))
    before = (tmp_path / "set.bin").read_bytes(), (tmp_path / "set.idx").read_bytes()
    with pytest.raises(KeyboardInterrupt), MegatronWriter(tmp_path / "set", 100) as writer:
        writer.add(np.array([3]))
        raise KeyboardInterrupt
    assert ((tmp_path / "set.bin").read_bytes(), (tmp_path / "set.idx").read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("ids", "vocab_size"), [([5, 100], 100), ([-1, 5], 100), ([1 << 31], None)])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, ids, vocab_size):
    with pytest.raises(DataError, match=f"token id {[i for i in ids if i != 5][0]}, expected 0 to"):
        with MegatronWriter(tmp_path / "set", vocab_size) as writer:
            writer.add(np.array(ids))
    assert not list(tmp_path.iterdir())


def test_lengths_have_to_fit_and_documents_to_be_there(tmp_path):
    with pytest.raises(DataError, match="3 ids for documents of 2 tokens"), MegatronWriter(tmp_path / "set") as writer:
        writer.add_documents(np.array([1, 2, 3]), np.array([1, 1]))
    with pytest.raises(DataError, match="no document to write"), MegatronWriter(tmp_path / "set"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        MegatronWriter(tmp_path / "file" / "set")
