"""Text files in other encodings become records in UTF-8; what is invalid stays invalid."""

import codecs
import encodings.aliases

import pytest
from data_corpora import chunks, records, small_chunks, write

from mindspeed_ms.errors import ConfigError, MindSpeedError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark_wins_over_the_option(folder, encoding):
    text = "ключ\r\n诗 🙂\n"
    mark = {"utf-16-be": codecs.BOM_UTF16_BE, "utf-32-be": codecs.BOM_UTF32_BE}.get(encoding, b"")
    path = write(folder, "bom.txt", mark + text.encode(encoding))
    assert records(path, encoding="latin-1") == ["ключ".encode(), "诗 🙂".encode()]


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "shift_jis", "latin-1", "koi8-r", "utf-16-le", "cp1252"])
def test_other_encodings_come_as_utf_8(folder, encoding):
    text = "é" if encoding in ("latin-1", "cp1252") else "Ж" if encoding == "koi8-r" else "水"
    path = write(folder, "other.txt", f"{text}a\n{text}b".encode(encoding) * 9)
    with small_chunks():
        assert b"\n".join(records(path, encoding=encoding)) == f"{text}a\n{text}b".encode() * 9


@pytest.mark.parametrize(
    ("encoding", "bad"), [("ascii", b"\xe9"), ("gb18030", b"\xff"), ("utf-16-le", b"\x00\xd8"), ("cp1252", b"\x81")]
)
def test_what_an_encoding_does_not_allow_stays_invalid(folder, encoding, bad):
    path = write(folder, "bad.txt", "ok\nb".encode(encoding) + bad + "d\nok".encode(encoding))
    first, middle, last = records(path, encoding=encoding)
    assert (first, last) == (b"ok", b"ok")
    with pytest.raises(UnicodeDecodeError):
        middle.decode()


def test_utf_8_comes_as_it_is_valid_or_not(folder):
    content = b"good\n\xff\xfe bad\n\xc3\xa9\x00"
    assert records(write(folder, "raw.txt", content)) == content.split(b"\n")


def test_the_encoding_is_not_for_json(folder):
    path = write(folder, "enc.jsonl", '{"text": "é"}\n'.encode())
    assert records(path, encoding="utf-16") == ['{"text": "é"}'.encode()]


@pytest.mark.parametrize("encoding", ["utf-9", "rot13", "hex", "undefined"])
def test_an_unknown_encoding_is_refused(folder, encoding):
    with pytest.raises(ConfigError, match=rf"^encoding: '{encoding}' is not known; expected"):
        chunks(write(folder, "enc.txt", b"x"), encoding=encoding)


@pytest.mark.parametrize("encoding", ["idna", "punycode", "undefined", "a\0b", "rot13"])
def test_what_is_no_encoding_of_text_is_refused(folder, encoding):
    with pytest.raises(ConfigError, match="is not known"):
        chunks(write(folder, "a.txt", b"abc"), encoding=encoding)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "UTF_16"])
def test_utf_16_without_a_mark_needs_its_order_of_bytes(folder, encoding):
    path = write(folder, "a.txt", "some text".encode("utf-16-le"))
    with pytest.raises(ConfigError, match="no byte order mark"):
        chunks(path, encoding=encoding)
    assert chunks(write(folder, "empty.txt", b""), encoding=encoding) == []


def test_every_encoding_of_the_library_gives_records_or_one_line(folder):
    path = write(folder, "all.txt", bytes(range(256)) * 3)
    for encoding in sorted(set(encodings.aliases.aliases.values())):
        try:
            chunks(path, encoding=encoding)
        except MindSpeedError as error:
            assert "\n" not in str(error)
