"""JSON that remembers the line of every value, as strict as the parser HCCL reads rank tables with.

HCCL reads with nlohmann::json: no comments, no NaN, no control characters in strings, the last of two equal keys wins,
and from a file only the first value is read: what follows it is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_MOST_DEEP = 100  # a table has 8
_MOST_DIGITS = 310  # as many as the greatest double has, and one
_WORDS = {"true": True, "false": False, "null": None}
_COMMENT = re.compile(r'("[^"\\\n]*(?:\\.[^"\\\n]*)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class JsonError(ValueError):
    """Text that is no JSON: what was expected, and the line where."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.message, self.line = message, line


@dataclass
class Document:
    """A value, the line of every value inside it by path, and the line where ignored text begins (0: none).

    `doubled` has the keys that an object names again, and the line where.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    rest: int = 0
    doubled: list[tuple[Path, int]] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Line of the value at a path, or of the nearest value around it that exists."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Scanner:
    def __init__(self, text: str, line: int, at: int = 0):
        self.text, self.at = text, at
        self.lines: dict[Path, int] = {}
        self.doubled: list[tuple[Path, int]] = []
        self._line, self._seen = line, at

    def line(self) -> int:
        self._line += self.text.count("\n", self._seen, self.at)
        self._seen = self.at
        return self._line

    def skip(self) -> str:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def fail(self, expected: str) -> JsonError:
        line = self.line()
        found = self.text[self.at : self.at + 12].split("\n")[0]
        return JsonError(
            f"expected {expected}, found {found!r}" if found else f"expected {expected}, found the end", line
        )

    def take(self, character: str) -> None:
        if self.skip() != character:
            raise self.fail(f"'{character}'")
        self.at += 1

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if not match:
            raise self.fail("a string in double quotes, closed on its line")
        self.at = match.end()
        value: str = json.loads(match[0])
        if re.search("[\ud800-\udfff]", value):
            raise self.fail("no half of a surrogate pair in the string before")
        return value

    def value(self, path: Path) -> Any:
        first = self.skip()
        if len(path) > _MOST_DEEP:
            raise self.fail(f"at most {_MOST_DEEP} values inside each other")
        self.lines[path] = self.line()
        if first == "{":
            return self.object(path)
        if first == "[":
            return self.array(path)
        if first == '"':
            return self.string()
        match = _NUMBER.match(self.text, self.at)
        if match:
            return self.number(match)
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        raise self.fail("a value")

    def number(self, match: re.Match[str]) -> int | float:
        text = match[0]
        whole = text.lstrip("-").isdigit()
        if float(text) in (float("inf"), float("-inf")) or (whole and len(text) > _MOST_DIGITS):
            raise self.fail("a number that a computer can hold")
        self.at = match.end()
        return int(text) if whole else float(text)

    def object(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self.take("{")
        if self.skip() == "}":
            self.at += 1
            return result
        while True:
            self.skip()
            key = self.string()
            self.take(":")
            if key in result:
                self.doubled.append(((*path, key), self.line()))
            result[key] = self.value((*path, key))
            if self.skip() != ",":
                self.take("}")
                return result
            self.at += 1

    def array(self, path: Path) -> list[Any]:
        result: list[Any] = []
        self.take("[")
        if self.skip() == "]":
            self.at += 1
            return result
        while True:
            result.append(self.value((*path, len(result))))
            if self.skip() != ",":
                self.take("]")
                return result
            self.at += 1


def parse(text: str) -> Document:
    """The first value of a text. Raises JsonError with the line."""
    scanner = _Scanner(text.removeprefix("\ufeff"), 1)
    return _document(scanner)


def _document(scanner: _Scanner) -> Document:
    value = scanner.value(())
    rest = scanner.line() if scanner.skip() else 0
    return Document(value, scanner.lines, rest, scanner.doubled)


def extract(text: str) -> list[Document]:
    """The tables inside a log or among comments, for display and not for HCCL. Raises JsonError if there is none."""
    plain = _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
    error: JsonError | None = None
    for content in dict.fromkeys((text, plain)):
        found, problem = _tables(content)
        if found:
            return found
        error = problem or error
    raise error or JsonError(f"no JSON object with status or version and one of {', '.join(sorted(TABLE_KEYS))}", 1)


def _tables(text: str) -> tuple[list[Document], JsonError | None]:
    """The tables of a text, and what is wrong with the first that cannot be read."""
    tables: list[Document] = []
    error = None
    line, seen, at = 1, 0, _brace(text, 0)
    # What does not end is read again from each brace inside it: that has to stop somewhere.
    left = _READ_AGAIN * len(text)
    while at >= 0 and left > 0:
        line, seen = line + text.count("\n", seen, at), at
        scanner = _Scanner(text, line, at)
        try:
            document = _document(scanner)
        except JsonError as problem:
            left -= scanner.at - at + _A_TRY
            if _TABLE.search(text, at, scanner.at):
                error = error or problem
            at = _brace(text, at + 1)
            continue
        tables += _inside(document, ())
        at = _brace(text, scanner.at)
    return tables, error


def _brace(text: str, at: int) -> int:
    match = _OBJECT.search(text, at)
    return match.start() if match else -1


def _inside(document: Document, path: Path) -> Iterator[Document]:
    """The table that a value is, or those that it holds."""
    value = document.value
    for part in path:
        value = value[part]
    if isinstance(value, dict) and not TABLE_KEYS.isdisjoint(value) and not {"status", "version"}.isdisjoint(value):
        depth = len(path)
        lines = {place[depth:]: line for place, line in document.lines.items() if place[:depth] == path}
        yield Document(value, lines)
    elif isinstance(value, (dict, list)):
        for part in value if isinstance(value, dict) else range(len(value)):
            yield from _inside(document, (*path, part))


TABLE_KEYS = frozenset(("server_list", "rank_list", "group_list", "node_list"))
_TABLE = re.compile(r'"(?:server_list|rank_list|group_list|node_list)"\s*:')
_OBJECT = re.compile(r'\{[ \t\n\r]*"')
_READ_AGAIN = 8
_A_TRY = 100  # characters that could be read instead


def show(path: Path) -> str:
    """A path as people write it: server_list[0].device[1].rank_id."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "(the file)"
