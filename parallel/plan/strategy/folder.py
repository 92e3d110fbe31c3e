"""Strategy files of every stage in a folder, checked, and what someone should know of the splits in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.check import check
from mindspeed_ms.parallel.plan.strategy.graph import Graph
from mindspeed_ms.parallel.plan.strategy.make import StrategyFile, make_strategies
from mindspeed_ms.parallel.plan.strategy.propagate import Splits, spread_text
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.write import write_strategies


def write_checked(
    graph: Graph, settings: Settings, folder: str | Path, states: Sequence[str] = ()
) -> tuple[tuple[StrategyFile, ...], list[Path], Splits]:
    """Makes and writes the files of every stage, then reads them back and compares them with the graph.

    states: as make_strategies has. Raises ConfigError when the graph cannot be split so.
    """
    files, splits = make_strategies(graph, settings, states)
    paths = write_strategies(files, folder)
    for suffix in (".ckpt", ".json"):
        check([read_strategy(path) for path in paths if path.suffix == suffix], graph, str(folder))
    return files, paths, splits


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
