"""JSON that remembers the line of every value, as strict as the parser HCCL reads rank tables with.

HCCL reads with nlohmann::json: no comments, no NaN, no control characters in strings, the last of two equal keys wins,
and from a file only the first value is read: what follows it is ignored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_WORDS = {"true": True, "false": False, "null": None}
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class JsonError(ValueError):
    """Text that is no JSON: what was expected, and the line where."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.message, self.line = message, line


@dataclass
class Document:
    """A value, the line of every value inside it by path, and the line where ignored text begins (0: none)."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    rest: int = 0

    def line(self, path: Path) -> int:
        """Line of the value at a path, or of the nearest value around it that exists."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Scanner:
    def __init__(self, text: str, line: int):
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self._line, self._seen = line, 0

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
        self.lines[path] = self.line()
        if first == "{":
            return self.object(path)
        if first == "[":
            return self.array(path)
        if first == '"':
            return self.string()
        match = _NUMBER.match(self.text, self.at)
        if match:
            self.at = match.end()
            return json.loads(match[0])
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        raise self.fail("a value")

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


def parse(text: str, line: int = 1) -> Document:
    """The first value of a text whose first line has the given number. Raises JsonError with the line."""
    scanner = _Scanner(text.removeprefix("\ufeff"), line)
    try:
        value = scanner.value(())
    except RecursionError:
        raise JsonError("nested too deep to be a rank table", line) from None
    rest = scanner.line() if scanner.skip() else 0
    return Document(value, scanner.lines, rest)


def extract(text: str) -> Document:
    """The table inside a log or among comments, for display and not for HCCL. Raises JsonError if there is none."""
    plain = _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
    error = JsonError("no JSON object with a server_list, rank_list, group_list or node_list", 1)
    for number, content in enumerate((text, plain)):
        for match in re.finditer(r"^[^\n{]*?(\{)", content, re.MULTILINE):
            start = match.start(1)
            try:
                document = parse(content[start:], content.count("\n", 0, start) + 1)
            except JsonError as problem:
                error = problem if number else error
                continue
            if isinstance(document.value, dict) and not TABLE_KEYS.isdisjoint(document.value):
                return document
    raise error


TABLE_KEYS = frozenset(("server_list", "rank_list", "group_list", "node_list"))


def show(path: Path) -> str:
    """A path as people write it: server_list[0].device[1].rank_id."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "(the file)"
