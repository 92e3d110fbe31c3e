"""The content of a text file as UTF-8 in pieces: decompressed, decoded, a JSON array laid out as JSON lines."""

from __future__ import annotations

import codecs
import itertools
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mindspeed_ms.data.sources import Damaged
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.paths import open_regular

_BLOCK = 1 << 20
# Of compressed data little is fed at a time: what it can swell to is held in memory, and lost where damage follows.
_FED = 1 << 10
_HEAD = 4096
# Longest first: the mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Strings and objects without anything nested as one match, if they end in the piece; of commas only those at depth 1.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_FLAT = rb"\{[^\"{}\[\]]*(?:" + _STRING + rb"[^\"{}\[\]]*)*\}"
_OUTSIDE = re.compile(_FLAT + b"|" + _STRING + rb'|["\[\]{},]')
_DEEPER = re.compile(_FLAT + b"|" + _STRING + rb'|["\[\]{}]')
_IN_STRING = re.compile(rb'["\\]')
# The first line of a JSON object that goes on in the next.
_OBJECT_OVER_LINES = re.compile(rb"\s*\{(?:[^\n]*[\[{,:])?[ \t\r]*\n")
_NO_TEXT = ("idna", "punycode", "undefined")  # for the names of hosts
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")

Pieces = Iterator[tuple[bytes, int]]  # content, never empty, and how many bytes of the file were read for all so far

# A lone surrogate, encoded with surrogatepass, is invalid UTF-8: the cleaner is to see that something was wrong.
codecs.register_error("mindspeed_ms.invalid", lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


class Stream:
    """The content of a file from an offset on: `data` is what has been read of it and not been dropped yet."""

    def __init__(self, path: Path, encoding: str = "utf-8", array: bool = False, offset: int = 0) -> None:
        """`array`: a content that begins with [ becomes one line an element. Raises ConfigError on an encoding.

        Offsets count bytes of the content; of a plain file in UTF-8 these are its own, and reading begins there.
        """
        self.data = b""
        self.ended = False
        self.damage: Damaged | None = None  # why it ended early
        self._pieces, self._plain, first = _open(path, encoding, array, offset)
        self.offset = offset or first  # of data[0] in the content
        self._read = self.offset if self._plain else 0
        self._marks: deque[tuple[int, int]] = deque()
        self._consumed = 0
        while not self.ended and self._read < offset:
            self.data = self._next()
        self.data = self.data[len(self.data) - max(0, self._read - offset) :]

    def grow(self, size: int) -> None:
        """Have `size` bytes in `data`, or all that is left."""
        parts, total = [self.data], len(self.data)
        while total < size and not self.ended:
            parts.append(self._next())
            total += len(parts[-1])
        self.data = b"".join(parts) if len(parts) > 1 else self.data

    def drop(self, size: int) -> None:
        """Be done with the first `size` bytes of `data`."""
        self.data = self.data[size:]
        self.offset += size

    def consumed(self) -> int:
        """Bytes of the file that the content up to `offset` took; the same wherever reading began."""
        if self._plain:
            return self.offset
        while self._marks and self._marks[0][0] <= self.offset:
            self._consumed = self._marks.popleft()[1]
        return self._consumed

    def _next(self) -> bytes:
        try:
            piece, after = next(self._pieces, (b"", 0))
        except Damaged as error:
            self.damage, piece = error, b""
        self.ended = not piece
        self._read += len(piece)
        if piece and not self._plain:
            self._marks.append((self._read, after))
        return piece


def _open(path: Path, encoding: str, array: bool, offset: int) -> tuple[Pieces, bool, int]:
    """The pieces, whether offsets of content are offsets in the file, and the offset where content begins."""
    try:
        " ".encode(encoding)  # also refuses codecs that are no text encodings
        codecs.getincrementaldecoder(encoding)
        encoding = codecs.lookup(encoding).name
        if encoding in _NO_TEXT:
            raise LookupError
    except (LookupError, ValueError):
        raise ConfigError(f"encoding: {encoding!r} is not known; expected a name such as utf-8, gb18030") from None
    packed = path.suffix.lower() in (".gz", ".zst")
    head, pieces = _peek(_decompress(path) if packed else _blocks(path, 0))
    first = 0
    for mark, name in _MARKS:
        if head.startswith(mark):
            encoding = name
            break
    else:
        if head.startswith(codecs.BOM_UTF8):
            encoding, first = "utf-8", 3
        elif encoding in ("utf-16", "utf-32") and head:
            raise ConfigError(
                f"{path}: has no byte order mark, which {encoding} needs; give the encoding {encoding}-le or -be"
            )
    if encoding != "utf-8":
        head, pieces = _peek(_decode(pieces, encoding, path))
    if array and _OBJECT_OVER_LINES.match(head, first):
        raise DataError(f"{path}: one JSON object over several lines; expected an array or JSON lines")
    array = array and head[first:].lstrip().startswith(b"[")
    if packed or encoding != "utf-8" or array:
        pieces = _after(pieces, first)
        return (_lines_of_array(pieces, path) if array else pieces), False, 0
    return _blocks(path, offset or first), True, first


def _blocks(path: Path, offset: int) -> Pieces:
    try:
        with open_regular(path) as file:
            file.seek(offset)
            while block := file.read(_BLOCK):
                offset += len(block)
                yield block, offset
    except OSError as error:
        raise Damaged(f"{path}: cannot be read at byte {offset} ({error.strerror}); make it readable") from None


def _peek(pieces: Pieces) -> tuple[bytes, Pieces]:
    """The head of the content, which stays in the pieces; damage in it comes when they are read."""
    head, taken = b"", []
    try:
        while len(head) < _HEAD and (item := next(pieces, None)):
            taken.append(item)
            head += item[0]
    except Damaged as error:
        pieces = _raising(error)
    return head, itertools.chain(taken, pieces)


def _raising(error: Damaged) -> Pieces:
    raise error
    yield


def _after(pieces: Pieces, size: int) -> Pieces:
    for piece, after in pieces:
        piece, size = piece[size:], max(0, size - len(piece))
        if piece:
            yield piece, after


def _decompress(path: Path) -> Pieces:
    """gzip members or zstd frames, one after another.

    Not every change breaks the code: what a checksum finds wrong at the end of a member has been passed on by then.
    """
    begin, errors = _gzip() if path.suffix.lower() == ".gz" else _zstd()
    decoder, padding, end = None, b"", 0
    for block, after in _blocks(path, 0):
        for start in range(0, len(block), _FED):
            fed = block[start : start + _FED]
            end = after - len(block) + start + len(fed)
            while fed := fed if decoder or not padding else fed.lstrip(padding):
                decoder, padding = decoder or begin(), b"\0"  # what follows a gzip member may be padded with zeros
                try:
                    piece = decoder.decompress(fed)
                except errors as error:
                    raise Damaged(f"{path}: damaged in the {_FED} bytes before byte {end} ({error})") from None
                if piece:
                    yield piece, end
                fed, decoder = (decoder.unused_data, None) if decoder.eof else (b"", decoder)
    if not end:
        raise Damaged(f"{path}: is empty, which compressed data never is; copy it again")
    if decoder:
        raise Damaged(f"{path}: truncated, it ends in the middle of compressed data; copy it again")


def _gzip() -> tuple[Callable[[], Any], type[Exception]]:
    return lambda: zlib.decompressobj(wbits=31), zlib.error


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    try:
        import zstandard
    except ImportError:
        raise ConfigError("reading .zst needs zstandard; run pip install 'mindspeed-ms[data]'") from None
    return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError


def _decode(pieces: Pieces, encoding: str, path: Path) -> Pieces:
    decoder = codecs.getincrementaldecoder(encoding)("mindspeed_ms.invalid")
    after = 0
    for piece, at in itertools.chain(pieces, [(b"", 0)]):
        after = at or after
        try:
            text = decoder.decode(piece, final=not piece)
        except ValueError as error:  # some codecs ask no handler of errors
            raise Damaged(f"{path}: cannot be decoded as {encoding} ({error}); give its encoding") from None
        if text:
            yield text.encode("utf-8", "surrogatepass"), after


def _lines_of_array(pieces: Pieces, path: Path) -> Pieces:
    """One line an element of a JSON array: found by brackets, commas and strings, else not looked at."""
    depth, in_string, at = 0, False, 0
    for piece, after in pieces:
        piece = piece.translate(_ONE_LINE)
        lines, begin = [], 0
        at = max(0, at)  # 1 when the piece before ended with a backslash
        while match := (_IN_STRING if in_string else _OUTSIDE if depth < 2 else _DEEPER).search(piece, at):
            at = match.end()
            if at - match.start() > 1:
                continue
            sign = match[0]
            if sign == b'"':
                in_string = not in_string
            elif sign == b"\\":
                at += 1
            elif sign in b"[{":
                depth += 1
                begin = at if depth == 1 else begin
            elif sign in b"]}":
                depth -= 1
            if sign in b",]}" and depth == (sign == b","):
                lines.append(piece[begin : at - 1])
                begin = at
                if depth == 0:
                    yield b"\n".join([*lines, b""]), after
                    return _expect_end(itertools.chain([(piece[at:], after)], pieces), path)
        at -= len(piece)
        yield b"\n".join([*lines, piece[begin:]]) or b" ", after
    raise Damaged(f"{path}: truncated, its JSON array does not end; copy it again")


def _expect_end(pieces: Pieces, path: Path) -> None:
    for piece, after in pieces:
        if piece.strip():
            raise Damaged(f"{path}: its JSON array ends before byte {after} and more follows; expected JSON lines")
