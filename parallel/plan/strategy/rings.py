"""The ring-group side file: which ranks form each group, on which slots they sit, and in which ring.

MindSpore's strategy file has no place for rings. They act through the order of ranks (the rank table) and through the
groups that follow from it; this file, JSON of our own, says both, and can be checked against the strategy files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mindspeed_ms.config.base import Config
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy.make import StrategyFile
from mindspeed_ms.paths import read_regular, write_whole

Rank = Annotated[int, Field(strict=True, ge=0)]
_MOST_BYTES = 64 << 20


class RingGroup(Config):
    """One group: its ranks, the slot of each, and the number of the ring that holds them all (None: several)."""

    ranks: list[Rank]
    slots: list[Rank]
    ring: Rank | None


class RingGroups(Config):
    """The side file: `order[rank]` is a slot, `rings` are slots in the order of their links."""

    version: Literal[1] = 1
    order: list[Rank]
    rings: list[list[Rank]]
    groups: dict[str, list[RingGroup]]


def ring_groups(
    groups: Mapping[str, Sequence[Sequence[int]]], order: Sequence[int], rings: Sequence[Sequence[int]]
) -> RingGroups:
    """Groups of ranks by dimension, the slot of each rank, and the slots of each ring -> the side file."""
    ring_of = {slot: number for number, slots in enumerate(rings) for slot in slots}
    found: dict[str, list[RingGroup]] = {}
    for dimension, members in groups.items():
        found[dimension] = []
        for ranks in members:
            slots = [order[rank] for rank in ranks]
            numbers = {ring_of.get(slot) for slot in slots}
            ring = numbers.pop() if len(numbers) == 1 else None
            found[dimension].append(RingGroup(ranks=list(ranks), slots=slots, ring=ring))
    return RingGroups(order=list(order), rings=[list(slots) for slots in rings], groups=found)


def write_rings(groups: RingGroups, path: str | Path) -> Path:
    """Writes the side file whole or not at all."""
    return write_whole(Path(path), (json.dumps(groups.model_dump(), indent=1) + "\n").encode())


def read_rings(path: str | Path) -> RingGroups:
    """Raises ConfigError that names the file and what is wrong in it."""
    path = Path(path)
    try:
        content = json.loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a file of ring groups") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON: {error}; write it again with `mindspeed-ms plan`") from None
    return RingGroups.parse(content, str(path))


def tensor_groups(files: Sequence[StrategyFile]) -> tuple[tuple[int, ...], ...]:
    """The tensor groups that strategy files alone imply: ranks that hold one copy of a weight between them.

    Files of all stages -> groups of ranks of the whole job, in the order of their first ranks.
    """
    found: dict[tuple[int, ...], None] = {}
    for file in sorted(files, key=lambda file: file.stage):
        groups: tuple[tuple[int, ...], ...] = ()
        for layout in file.layouts.values():
            groups = max(groups, layout.split_groups(), key=lambda g: len(g[0]) if g else 0)
        first = file.stage * next((layout.devices for layout in file.layouts.values()), 1)
        found |= {tuple(first + rank for rank in group): None for group in groups}
    return tuple(found)


def check_rings(groups: RingGroups, files: Sequence[StrategyFile], where: str, inside: bool = True) -> None:
    """Raises ConfigError unless each tensor group of the strategy files is one of the side file and inside one ring.

    Without `inside` it may reach over several rings, as one must that is larger than each.
    """
    said = {tuple(sorted(group.ranks)): group for group in groups.groups.get("tensor", [])}
    for ranks in tensor_groups(files):
        if ranks not in said:
            raise ConfigError(
                f"{where}: the strategy files have a tensor group of the ranks {', '.join(map(str, ranks))}, which is "
                "not among groups.tensor; write both from one plan"
            )
        if inside and said[ranks].ring is None:
            raise ConfigError(
                f"{where}: the tensor group of the ranks {', '.join(map(str, ranks))} is spread over several rings: "
                f"slots {', '.join(map(str, said[ranks].slots))}; take another order of ranks"
            )
