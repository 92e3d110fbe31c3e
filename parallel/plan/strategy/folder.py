"""What a plan's folder holds about splits: strategy files of every stage, and the ring groups beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.check import check
from mindspeed_ms.parallel.plan.strategy.graph import Graph
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.propagate import Splits, spread_text
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.rings import RingGroups, ring_groups, write_rings
from mindspeed_ms.parallel.plan.strategy.write import write_strategies

RINGS_FILE = "rings.json"


def write_folder(
    graph: Graph,
    settings: Settings,
    groups: Mapping[str, Sequence[Sequence[int]]],
    order: Sequence[int],
    rings: Sequence[Sequence[int]],
    folder: str | Path,
    states: Sequence[str] = (),
) -> tuple[list[Path], Splits, RingGroups]:
    """Makes and writes the files of a plan, then reads them back and compares them with the graph.

    groups: ranks by dimension. order: the slot of each rank. rings: the slots of each. states: as make_strategies has.
    Raises ConfigError when the graph cannot be split so.
    """
    files, splits = make_strategies(graph, settings, states)
    paths = write_strategies(files, folder)
    for suffix in (".ckpt", ".json"):
        check([read_strategy(path) for path in paths if path.suffix == suffix], graph, str(folder))
    side = ring_groups(groups, order, rings)
    paths.append(write_rings(side, Path(folder) / RINGS_FILE))
    return paths, splits, side


def notes(splits: Splits) -> list[str]:
    """What someone should know of the splits, a line each: weights kept whole, what is moved, kinds without a rule."""
    lines = []
    if splits.kept_whole:
        lines.append(
            f"{len(splits.kept_whole)} weights are kept whole, since their split could not be carried on: first "
            f"{splits.kept_whole[0]}"
        )
    moved = [move for move in splits.redistributions if not move.local]
    kinds = Counter((spread_text(move.have), spread_text(move.want)) for move in moved)
    for (have, want), count in kinds.most_common():
        first = next(move for move in moved if (spread_text(move.have), spread_text(move.want)) == (have, want))
        lines.append(f"{count} inputs are moved from {have} to {want}: first of {first.operator}")
    local = len(splits.redistributions) - len(moved)
    if local:
        lines.append(f"{local} inputs are whole where a part is taken: no communication")
    if splits.unknown:
        lines.append(f"operators without a rule are taken whole: {', '.join(splits.unknown)}")
    return lines
