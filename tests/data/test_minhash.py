"""MinHash signatures: what a shingle is, and that equal entries estimate the Jaccard similarity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.data import minhash
from mindspeed_ms.errors import ConfigError

datasketch = pytest.importorskip("datasketch")


def texts(*parts):
    return [part.decode() for part in parts]


def test_shingles_are_five_words_without_case_and_punctuation():
    found = minhash.shingles("One, two -- THREE\nfour's  five. six")
    assert texts(*found) == ["one two three four s", "two three four s five", "three four s five six"]


def test_characters_of_scripts_without_spaces_are_words():
    assert texts(*minhash.shingles("三国演义第一回")) == ["三 国 演 义 第", "国 演 义 第 一", "演 义 第 一 回"]
    assert texts(*minhash.shingles("abc三国 def"))[0] == "abc 三 国 def"


@pytest.mark.parametrize(("text", "shingle"), [("Two words", "two words"), (" ?! ", "?!"), ("", "")])
def test_a_short_text_is_one_shingle(text, shingle):
    assert texts(*minhash.shingles(text)) == [shingle]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_equal_entries_estimate_the_jaccard_similarity(shared, one, other):
    words = [f"w{i}" for i in range(shared + one + other + 12)]
    a, b = " ".join(words[: shared + one + 4]), " ".join(words[one : one + shared + other + 8])
    exact = len(set(minhash.shingles(a)) & set(minhash.shingles(b))) / len({*minhash.shingles(a), *minhash.shingles(b)})
    estimate = float(np.mean(minhash.signature(a) == minhash.signature(b)))
    # The number of equal entries of 128 is binomial: five standard deviations are one in two million.
    assert abs(estimate - exact) <= 5 * (exact * (1 - exact) / 128) ** 0.5 + 0.02


def test_signatures_are_those_of_datasketch_whatever_the_pieces(monkeypatch):
    text = " ".join(f"word{i % 700} {i % 11}" for i in range(900))
    theirs = datasketch.MinHash(num_perm=128, seed=1, hashfunc=minhash.xxhash.xxh32_intdigest)
    for shingle in minhash.shingles(text):
        theirs.update(shingle)
    monkeypatch.setattr(minhash, "_AT_ONCE", 100)
    found = minhash.signatures([text, "other", text])
    assert found.dtype == np.uint32 and found.shape == (3, 128)
    assert (found[0] == theirs.hashvalues).all() and (found[2] == found[0]).all() and (found[1] != found[0]).any()
    assert minhash.signatures([]).shape == (0, 128)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_bands_find_pairs_at_the_threshold_and_few_below(threshold):
    bands, rows = minhash.bands(threshold)
    assert bands * rows <= 128

    def chance(similarity):
        return 1 - (1 - similarity**rows) ** bands

    assert chance(min(1, threshold + 0.1)) > 0.7 and chance(threshold - 0.25) < 0.25


def test_without_datasketch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(ConfigError, match=r"^clean\.near_duplicates needs datasketch.*'mindspeed-ms\[data\]'$"):
        minhash.require()
