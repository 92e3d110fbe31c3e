"""The words and lines of `npu-smi info -t topo`, however the text has come: colours, wide letters, wrapped lines."""

from __future__ import annotations

import re
import unicodedata

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import SELF
from mindspeed_ms.parallel.topology.links import KINDS

DEVICE = re.compile(r"(?:NPU|Phy[-_]?ID|Device)[-_]?(\d{1,6})", re.IGNORECASE)
# NIC0, mlx5_0, bond0: a name with a number in it, but nothing that means to be a device.
CARD = re.compile(r"(?!(?:NPU|Phy[-_]?ID)[-_]?\d)[A-Za-z][\w.:-]*\d[\w.:-]*", re.ASCII | re.IGNORECASE)
CORES = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", re.ASCII)
WORDS = {word.lower(): word for word in (SELF, *KINDS)} | {"n/a": "NA"}
AFFINITY = ("cpu", "numa", "affinity", "node")  # of a header

_SPACED = re.compile(r"\b(NPU|Phy[-_ ]?ID|Device) (?=\d)", re.IGNORECASE)
_NO_DEVICE = re.compile(r"(?:NPU|Phy[-_]?ID|Device)[-_]?\d{7,}", re.IGNORECASE)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[(][A-Z0-9]|[@-Z\\-_])")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_QUOTED = re.compile(r"\s*([\"'])(.*?)(?:\\n)?\1[\s,;)\]]*")  # a line of a program that holds the output
_FRAME = str.maketrans(dict.fromkeys("│┃║", "|") | {"`": None})
_MOST = 16 << 20  # characters: 1,024 devices make a matrix of 11 million
_LONGEST = 1 << 16  # characters of a line
_MOST_LINES = 1 << 16


def lines_of(text: str, where: str) -> list[str]:
    """The lines, as plain letters, those that a terminal wrapped put together. Raises ConfigError for far too much."""
    expected = "expected what `npu-smi info -t topo` prints of one server"
    if len(text) > _MOST:
        raise ConfigError(f"{where}: {len(text)} characters; {expected}")
    lines = plain(text).translate(_FRAME).replace("**", "").splitlines()
    longest = max(map(len, lines), default=0)
    if longest > _LONGEST or len(lines) > _MOST_LINES:
        raise ConfigError(f"{where}: {len(lines)} lines, the longest of {longest} characters; {expected}")
    return _unwrapped([found[2] if (found := _QUOTED.fullmatch(line)) else line for line in lines], where)


def plain(text: str) -> str:
    """The text without colours and letters that are not seen, and with wide letters and blanks as ordinary ones."""
    text = _ESCAPE.sub("", text)
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def tokens_of(line: str) -> list[str]:
    """A line's words, without the marks of tables, and with `NPU 0` as one word."""
    return _SPACED.sub(r"\1", line.replace("|", " ")).replace("Phy ID", "Phy-ID").split()


def _unwrapped(lines: list[str], where: str) -> list[str]:
    """The lines with the rest of a row or header put behind its beginning, where a terminal or editor has cut it."""
    lines = [line.expandtabs() for line in lines]
    width = max((len(line) for line in lines), default=0)
    found: list[str] = []
    inside, parts = "", 1  # what the last line belongs to, and of how many it was put together
    for line in lines:
        tokens = tokens_of(line)
        cut = len(line) == width and len(tokens) > 1  # the last word may go on in the next line
        if odd := _odd(tokens):
            raise ConfigError(f"{where}: {odd[:40]} is no device; expected a number below 1000000")
        begins = _begins(tokens[:-1] if cut else tokens)
        if inside and tokens and (not begins or begins == inside == "header"):
            rest = found[-1].ljust(width * parts) + line
            words = tokens_of(rest)[len(tokens_of(found[-1])) - 1 :]
            if all(_belongs(word, inside) for word in (words[:-1] if cut else words)):
                found[-1] = rest
                parts += 1
                continue
        inside, parts = begins, 1
        found.append(line)
    return found


def _begins(tokens: list[str]) -> str:
    """Whether a line begins a row or a header: a device, before a link word or among its like."""
    for at, token in enumerate(tokens):
        if DEVICE.fullmatch(token) or CARD.fullmatch(token):
            if tokens[at + 1 : at + 2] and tokens[at + 1].lower() in WORDS:
                return "row"
            if DEVICE.fullmatch(token) and all(_belongs(other, "header") for other in tokens[at:]):
                return "header"
    return ""


def _belongs(token: str, inside: str) -> bool:
    """Whether a word can stand in the rest of a row, or of a header."""
    if inside == "row":
        return token.lower() in WORDS or bool(CORES.fullmatch(token.strip(",")))
    return token.lower() in AFFINITY or bool(DEVICE.fullmatch(token) or CARD.fullmatch(token))


def _odd(tokens: list[str]) -> str:
    """A row's or header's name of a device that can be none."""
    if not any(token.lower() in WORDS or DEVICE.fullmatch(token) for token in tokens):
        return ""
    return next((token for token in tokens if _NO_DEVICE.fullmatch(token)), "")
