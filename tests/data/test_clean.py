"""Cleaning: each rule, what it counts, and that nothing else is touched."""

import json
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.config.data import CleanConfig
from mindspeed_ms.data.clean import COUNTS, Cleaner, read_limit
from mindspeed_ms.errors import DataError


def clean(record, **options):
    cleaner = Cleaner(CleanConfig(**options))
    found = cleaner.clean(record, "a.txt", 3)
    counts = cleaner.take_counts()
    assert set(counts) == set(COUNTS)
    return None if found is None else found[0], {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    "text", ["plain", " \tspaced\r\n ", "naïve \u00a0 é ©", "你好😀", "\u200b zero width", "\ufeffmark"]
)
def test_a_clean_document_passes_unchanged(text):
    assert clean(text.encode()) == (text, {})


@pytest.mark.parametrize(
    ("record", "text", "rule"),
    [
        (b"a\0b\0", "ab", "nul_bytes_removed"),
        (b"a\x01b\x7f", "ab", "control_characters_removed"),
        ("a\x85b\x9f\x80é".encode(), "abé", "control_characters_removed"),
        ("\u00a0a".encode(), "\u00a0a", None),
    ],
)
def test_nul_and_control_characters_are_taken_out_and_counted_once_a_document(record, text, rule):
    assert clean(record) == (text, {rule: 1} if rule else {})


def test_a_document_may_have_both():
    assert clean(b"\0a\x02") == ("a", {"nul_bytes_removed": 1, "control_characters_removed": 1})


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_exactly_the_characters_of_category_cc_but_three_are_removed(text):
    expected = "".join(c for c in text if unicodedata.category(c) != "Cc" or c in "\t\n\r")
    found, _ = clean(text.encode())
    assert found == (expected if expected.strip() else None)


@pytest.mark.parametrize("record", [b"\xff", b"ab\xe4\xbd", b"\xc0\x80", b"\xed\xa0\x80x", b"a\xe2\x00\x82\xac"])
def test_invalid_utf8_is_dropped_repaired_or_an_error(record):
    assert clean(record, invalid_utf8="drop") == (None, {"invalid_utf8": 1})
    text, counts = clean(record, invalid_utf8="replace")
    assert text == record.decode("utf-8", "replace").replace("\0", "") and "\ufffd" in text
    assert counts["invalid_utf8"] == 1
    with pytest.raises(DataError, match=r"^a\.txt: record 3: byte \d is not UTF-8; .*clean\.invalid_utf8"):
        clean(record, invalid_utf8="error")


def test_the_repaired_bytes_are_those_of_the_repaired_text():
    found = Cleaner(CleanConfig(invalid_utf8="replace")).clean(b"\xff", "a", 1)
    assert found == ("\ufffd", "\ufffd".encode())


@pytest.mark.parametrize("policy", ["drop", "replace", "error"])
def test_half_a_surrogate_pair_of_a_string_is_no_valid_unicode_either(policy):
    cleaner = Cleaner(CleanConfig(invalid_utf8=policy))
    if policy == "error":
        with pytest.raises(DataError, match="record 1: half a surrogate pair at character 1 is not UTF-8"):
            cleaner.encode("a\ud800b", "f", 1)
    else:
        assert cleaner.encode("a\ud800b", "f", 1) == {"drop": None, "replace": "a\ufffdb".encode()}[policy]
        assert cleaner.counts["invalid_utf8"] == 1


def test_documents_of_white_space_are_empty():
    assert clean(b"") == clean(" \n\u3000".encode()) == (None, {"empty": 1})
    assert clean(b"\0\0") == (None, {"empty": 1, "nul_bytes_removed": 1})


@pytest.mark.parametrize(
    ("text", "rule"), [("ab", "too_short"), ("abc", None), ("abcde", None), ("abcdef", "too_long")]
)
def test_length_is_counted_in_characters_without_the_white_space_at_the_ends(text, rule):
    wide = f"  {text.replace('a', '你')}\n\n"
    found, counts = clean(wide.encode(), min_chars=3, max_chars=5)
    assert (found, counts) == ((wide, {}) if rule is None else (None, {rule: 1}))


def test_counts_add_up_and_start_again():
    cleaner, total = Cleaner(CleanConfig()), Counter(documents_read=1)
    for _ in range(2):
        cleaner.clean(b"", "a", 1)
        total.update(cleaner.take_counts())
    assert total["empty"] == 2 and total["documents_read"] == 1 and not any(cleaner.counts.values())


@pytest.mark.parametrize("character", ["a", "\x01", "é", "😀"])
def test_the_longest_document_that_is_kept_is_short_enough_to_read_however_json_writes_it(character):
    config = CleanConfig(max_chars=10_000)
    text = character * config.max_chars
    for ascii_only in (True, False):
        assert len(json.dumps({"text": text}, ensure_ascii=ascii_only).encode()) <= read_limit(config)
