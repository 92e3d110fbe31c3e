"""Whatever byte of a prepared set changes, whoever verifies it hears which file it was in."""

import random

import pytest
from data_corpus import sentences, write_tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.inspect import inspect_set
from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.data.manifest import NAME, read_manifest
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import DataError

FLIPS = 6  # of each file, beside the first byte and the last


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verified")
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    (folder / "a.txt").write_text("\n".join(sentences(400)))
    config = PrepareConfig.parse({"arrange": {"boundaries": [16, 64]}})
    prepare([folder / "a.txt"], folder / "set", tokenizer, config, workers=1)
    return folder / "set"


def names(out):
    return [NAME, *(entry.path for entry in read_manifest(out).files())]


def test_a_set_has_a_file_of_each_kind(out):
    suffixes = {name.rpartition(".")[2] for name in names(out)}
    assert suffixes == {"json", "mindrecord", "db", "block"} and len(names(out)) == 8


@pytest.mark.parametrize("number", range(8))
def test_a_flipped_byte_is_found_in_whichever_file_it_is(out, number):
    name = names(out)[number]
    content = (out / name).read_bytes()
    rng = random.Random(number)
    places = [0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(FLIPS))]
    assert inspect_set(out, samples=1, verify=True).verified and len(BucketLoader(out, batch_size=4, tensors=False))
    try:
        for at in places:
            broken = bytearray(content)
            broken[at] ^= 1 << rng.randrange(8)
            (out / name).write_bytes(broken)
            with pytest.raises(DataError) as caught:
                inspect_set(out, samples=1, verify=True)
            assert str(out / name) in str(caught.value), at
            if name.endswith((".block", NAME)):
                with pytest.raises(DataError) as caught:
                    BucketLoader(out, batch_size=4, tensors=False)
                assert str(out / name) in str(caught.value), at
    finally:
        (out / name).write_bytes(content)
