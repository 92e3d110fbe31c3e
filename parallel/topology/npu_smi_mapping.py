"""Read what `npu-smi info -m` prints: which chip of which NPU is which device, and what it is called."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.npu_smi_text import plain

_ROW = re.compile(r"(\d{1,6})\s+(\d{1,6})\s+(\d{1,6}|-|NA|N/A)\s+(?:(\d{1,6}|-|NA|N/A)\s+)?([A-Za-z]\S*(?: \S+)*)")


@dataclass(frozen=True)
class Chip:
    """One chip: the NPU (card) it is on, its number there, its logic id, its physical id, and its name."""

    npu: int
    chip: int
    logic: int
    physical: int | None  # None: this version of npu-smi does not print it
    name: str  # such as Ascend910B3


def read_mapping(text: str, where: str) -> tuple[Chip, ...]:
    """The chips that compute; rows without a logic id (the board's controller, `Mcu`) are none.

    Raises ConfigError when there is no such table, or a logic id or a place comes twice.
    """
    chips: list[Chip] = []
    for line in plain(text).splitlines():
        found = _ROW.fullmatch(" ".join(line.replace("|", " ").split()))
        if not found or not found[3].isdigit():
            continue
        physical = int(found[4]) if found[4] and found[4].isdigit() else None
        chips.append(Chip(int(found[1]), int(found[2]), int(found[3]), physical, found[5].replace(" ", "")))
    if not chips:
        raise ConfigError(f"{where}: expected the table that `npu-smi info -m` prints, found no row of a chip")
    checks: tuple[tuple[str, list[object]], ...] = (
        ("logic id", [chip.logic for chip in chips]),
        ("physical id", [chip.physical for chip in chips if chip.physical is not None]),
        ("NPU and chip id", [(chip.npu, chip.chip) for chip in chips]),
    )
    for what, keys in checks:
        if len(set(keys)) < len(keys):
            twice = Counter(keys).most_common(1)[0][0]
            raise ConfigError(f"{where}: the {what} {twice} comes twice; give the output of one server")
    return tuple(chips)
