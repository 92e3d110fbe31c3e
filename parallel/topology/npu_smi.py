"""Read what `npu-smi info -t topo` prints: which link joins any two devices, and the CPU cores near each.

The layout follows the tool's own source (npu_smi, print_npu_topo_info): a header of devices and network cards, a row
for each device with its cores at the end (none on A3 with Arm processors), then rows of the network cards and a legend.
Copies of it in the wild have lost their header, its indent or their affinity, or stand between the lines of a shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import SELF, Server
from mindspeed_ms.parallel.topology.links import KINDS
from mindspeed_ms.parallel.topology.npu_smi_text import AFFINITY, CARD, CORES, DEVICE, WORDS, lines_of, tokens_of

_MOST_CORES = 1 << 13  # as many as a Linux kernel can be built for
_MOST_DEVICES = 1 << 10
_UNKNOWN = {"", "-", "na", "n/a", "none"}


@dataclass
class _Row:
    device: int
    label: str
    cells: list[str]  # link words, as far as they go
    rest: list[str]  # what stands after them


def read_topology(text: str, where: str, name: str = "server") -> Server:
    """The server that an output of `npu-smi info -t topo` describes; `where` names it in errors.

    Raises ConfigError when there is no matrix in it, or one with a row, cell or word that is missing, unknown or
    contradicts another.
    """
    header: tuple[list[str], list[str]] | None = None  # names before the first device, and from it on
    numa = False
    rows: list[_Row] = []
    cards: set[str] = set()
    for line in lines_of(text, where):
        tokens = tokens_of(line)
        if columns := _header(tokens, first=header is None and not rows):
            if header is not None and header[1] != columns[1]:
                raise ConfigError(
                    f"{where}: there are two headers, of different devices; give the output of one server"
                )
            header, numa = columns, "numa" in line.lower()
        elif not rows and header is None and _cut(tokens):
            raise ConfigError(
                f"{where}: the header is cut off at {tokens[-1]!r}, so the rows are; give the whole output"
            )
        elif row := _row(tokens):
            rows.append(row)
        elif card := _card(tokens):
            cards.add(card)
    if not rows:
        raise ConfigError(f"{where}: {_why_none(text)}")
    return _server(rows, _columns(rows, _named(header, cards), len(cards), where), numa, where, name)


def _header(tokens: list[str], first: bool) -> tuple[list[str], list[str]] | None:
    """The columns of a header, before the first device and from there on: devices, cards and words about affinity."""
    columns = []
    for token in tokens:
        if token.lower() in AFFINITY:
            continue
        if not (DEVICE.fullmatch(token) or CARD.fullmatch(token)):
            return None
        columns.append(token)
    start = next((at for at, token in enumerate(columns) if DEVICE.fullmatch(token)), None)
    # A row whose cells were all cut off looks like the header of a single device, but does not come first.
    alone = len(columns) == 1 and len(tokens) == 1 and not first
    return None if start is None or alone else (columns[:start], columns[start:])


def _cut(tokens: list[str]) -> bool:
    """Whether the last word of a header is only the beginning of one."""
    if len(tokens) < 2 or _header(tokens[:-1], first=False) is None:
        return False
    return any(whole.startswith(tokens[-1].lower()) for whole in (*AFFINITY, "npu", "phy-id", "nic", "device"))


def _named(header: tuple[list[str], list[str]] | None, cards: set[str]) -> list[str] | None:
    """All columns. What stands before the first device and has no row is no card but a host, as pdsh names it."""
    if header is None:
        return None
    before, columns = header
    return [*before, *columns] if cards.intersection(before) else columns


def _row(tokens: list[str]) -> _Row | None:
    """A device's row: its label, which a prefix of a log may precede, and at least one word that is a link."""
    for start, token in enumerate(tokens):
        found = DEVICE.fullmatch(token)
        if not found:
            continue
        cells = []
        for word in tokens[start + 1 :]:
            if CORES.fullmatch(word.strip(",")) or (word.lower() not in WORDS and not _WORD.fullmatch(word)):
                break
            cells.append(word)
        if start and not (cells and cells[0].lower() in WORDS):
            continue  # a sentence that mentions a device
        known = any(word.lower() in WORDS for word in cells)
        rest = tokens[start + 1 + len(cells) :]
        if known or (start == 0 and not cells and not rest):
            return _Row(int(found[1]), token, cells, rest)
    return None


def _card(tokens: list[str]) -> str | None:
    """The name at the start of a network card's row: one that a link word follows, and no `= Self` of the legend."""
    for token, word, *more in zip(tokens, tokens[1:], [*tokens[2:], "X"], strict=False):
        if CARD.fullmatch(token) and word.lower() in WORDS and more[0] != "=":
            return token
    return None


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_/]{0,15}")


def _why_none(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    for line in lines:
        if "not support" in line.lower() or "dose not support" in line.lower():
            return (
                f"npu-smi says {line[:200]!r}, which is no topology; "
                "take a preset such as 910b, or a YAML that says what joins the devices"
            )
    shown = f"; it begins with {lines[0][:80]!r}" if lines else "; it is empty"
    return f"expected the matrix that `npu-smi info -t topo` prints, found no row of a device{shown}"


def _server(rows: list[_Row], columns: list[int | None], numa: bool, where: str, name: str) -> Server:
    found: dict[int, dict[int, str]] = {}
    cores: dict[int, tuple[int, ...]] = {}
    for row in rows:
        found[row.device], left = _cells(row, columns, where)
        cores[row.device] = _affinity(left, numa, f"{where}: row of {row.label}")
    order = [device for device in columns if device is not None]
    _symmetric(order, found, {row.device: row.label for row in rows}, where)
    affinity = tuple(cores[device] for device in order)
    kinds = tuple(tuple(found[first][second] for second in order) for first in order)
    return Server(name, tuple(order), kinds, affinity if any(affinity) else ())


def _columns(rows: list[_Row], header: list[str] | None, cards: int, where: str) -> list[int | None]:
    """The device of each column, None for a network card; without a header, devices and cards as the rows are."""
    devices = [row.device for row in rows]
    if len(devices) > _MOST_DEVICES:
        raise ConfigError(f"{where}: {len(devices)} rows of devices; expected those of one server")
    seen: set[int] = set()
    for row in rows:
        if row.device in seen:
            raise ConfigError(f"{where}: {row.label} has more than one row; give the output of one server")
        seen.add(row.device)
    if header is None:
        return [*devices, *[None] * cards]
    columns = [int(found[1]) if (found := DEVICE.fullmatch(token)) else None for token in header]
    named: set[int] = set()
    for device in columns:
        if device in named:
            raise ConfigError(f"{where}: the header has device {device} twice; expected each once")
        named |= set() if device is None else {device}
    if missing := [token for token, at in zip(header, columns, strict=True) if at is not None and at not in seen]:
        raise ConfigError(f"{where}: the row of {missing[0]} is missing ({len(missing)} in all); give the whole output")
    if extra := [row.label for row in rows if row.device not in named]:
        raise ConfigError(f"{where}: {extra[0]} has a row but no column ({len(extra)} in all); give the whole output")
    return columns


def _cells(row: _Row, columns: list[int | None], where: str) -> tuple[dict[int, str], list[str]]:
    """The link words of a row by device, and what stands after them."""
    words = row.cells + row.rest
    place = f"{where}: row of {row.label}"
    if len(row.cells) < len(columns):
        at = row.rest[0] if row.rest else "the end of the line"
        raise ConfigError(
            f"{place} has {len(row.cells)} links before {at!r}, expected {len(columns)}; give the whole output"
        )
    cells = {}
    for device, word in zip(columns, words[: len(columns)], strict=True):
        if word.lower() not in WORDS:
            raise ConfigError(
                f"{place}: {word!r} is no link that is known; expected one of {', '.join((SELF, *KINDS))}"
            )
        kind = WORDS[word.lower()]
        if device is None:
            continue
        if (kind == SELF) != (device == row.device):
            raise ConfigError(f"{place}: {word!r} stands in the column of device {device}; expected X in its own alone")
        cells[device] = kind
    left = words[len(columns) :]
    if left and left[0].lower() in WORDS and left[0].lower() not in _UNKNOWN:
        raise ConfigError(
            f"{place} has more links than the {len(columns)} columns; "
            "with network cards in it, the header has to be there"
        )
    return cells, left


def _affinity(left: list[str], numa: bool, place: str) -> tuple[int, ...]:
    """The cores of a cell such as 0-63,128-191. A second column, of NUMA nodes, is left alone if the header has it."""
    text = re.sub(r"\s*,\s*", ",", " ".join(left)).strip()
    text, *others = text.split(" ")
    if text.lower() in _UNKNOWN:
        return ()
    if others and not numa:
        raise ConfigError(f"{place}: {others[0]!r} stands after the CPU affinity {text!r}; expected nothing more")
    return read_affinity(text, place)


def read_affinity(text: str, place: str) -> tuple[int, ...]:
    """The cores of a text such as 0-63,128-191, ascending. Raises ConfigError."""
    if not CORES.fullmatch(text):
        raise ConfigError(f"{place}: {text[:80]!r} is no CPU affinity; expected such as 0-23 or 0-63,128-191")
    cores: set[int] = set()
    listed = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = _core(first, place), _core(last or first, place)
        if high < low:
            raise ConfigError(f"{place}: the cores {part!r} run backwards; expected such as 0-23")
        listed += high - low + 1
        if listed > _MOST_CORES:
            raise ConfigError(f"{place}: the CPU affinity has more than {_MOST_CORES} cores; expected each once")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def _core(text: str, place: str) -> int:
    if len(text) > 6 or int(text) >= _MOST_CORES:
        raise ConfigError(f"{place}: there is no core {text[:20]}; expected numbers below {_MOST_CORES}")
    return int(text)


def _symmetric(order: list[int], found: dict[int, dict[int, str]], labels: dict[int, str], where: str) -> None:
    for at, first in enumerate(order):
        for second in order[at + 1 :]:
            there, back = found[first][second], found[second][first]
            if there != back:
                raise ConfigError(
                    f"{where}: row of {labels[first]} has {there} to {labels[second]}, but row of {labels[second]} "
                    f"has {back} to {labels[first]}; expected the same word"
                )
