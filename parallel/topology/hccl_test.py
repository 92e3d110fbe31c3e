"""Read the tables of hccl_test and fit α and β to them, so that what was measured takes the place of the defaults.

The column alg_bandwidth is not used: some versions print GB/s, some GiB/s, and it says no more than size over time.
`data_size` is the whole buffer of an all_reduce, all that a rank gets by an all_gather and gives to a reduce_scatter
(hccl_test divides by the ranks before it measures), which is what the formulas of `collectives` call n.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster, Link
from mindspeed_ms.parallel.topology.collectives import ALGORITHMS, can, time_of
from mindspeed_ms.parallel.topology.npu_smi_text import plain

_RANK_OF_LINE = re.compile(r"\s*\[\d+(?:,\d+)?\](?:<\w+>)?:?")  # as mpirun --tag-output writes it
_SIZE = re.compile(r"\d{1,15}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,12}(?:\.\d{0,12})?(?:e[+-]?\d{1,2})?|nan|inf)", re.ASCII | re.IGNORECASE)
_HEADER = re.compile(r"data_size.*ave?g_time", re.IGNORECASE)
_TOOL = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast)v?c?_test\b")
_RANKS = re.compile(r"\s-(?:n|np)\s+(\d{1,6})\b")
_NAMES = {"alltoall": "all_to_all"}


@dataclass(frozen=True)
class Results:
    """One table: bytes and seconds of each row that passed its check."""

    operation: str
    ranks: int
    rows: tuple[tuple[int, float], ...]
    failed: int = 0  # rows whose check failed; they are left out


@dataclass(frozen=True)
class Fit:
    """α in seconds and bytes a second of a link, and by how much the rows differ from them at most, as a share."""

    latency: float
    bandwidth: float
    worst: float


def read_results(text: str, where: str, operation: str | None = None, ranks: int | None = None) -> Results:
    """The table in an output of hccl_test; operation and ranks are those of the command if it is in the text.

    Raises ConfigError when there is no table, when no row passed, or when operation or ranks are not known.
    """
    text = plain(text)
    if not any(_HEADER.search(line) for line in text.splitlines()):
        raise ConfigError(f"{where}: expected a table of hccl_test, found no header with data_size and aveg_time")
    rows, failed = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        found = _fields(line)
        if not found:
            continue
        if found[3].lower() not in ("success", "null", "failed"):
            raise ConfigError(f"{where}:{number}: check_result is {found[3]!r}; expected success, failed or NULL")
        nbytes, seconds = int(found[0]), float(found[1]) * 1e-6
        if found[3].lower() == "failed":
            failed += 1
        elif nbytes <= 0 or not 0 < seconds < float("inf"):
            raise ConfigError(f"{where}:{number}: {nbytes} bytes in {found[1]} us; expected numbers above 0")
        else:
            rows.append((nbytes, seconds))
    if not rows:
        raise ConfigError(f"{where}: no row of the table passed its check ({failed} failed); measure again")
    operation = operation or _only([_NAMES.get(name, name) for name in _TOOL.findall(text)], "operations", where)
    ranks = ranks or int(_only(_RANKS.findall(text), "numbers of ranks", where) or 0) or None
    if operation not in ALGORITHMS:
        raise ConfigError(
            f"{where}: which operation was measured? Say so, such as all_reduce; the command is not in it"
        )
    if ranks is None or ranks < 2:
        raise ConfigError(f"{where}: how many ranks took part? Say so, at least 2; the command is not in it")
    return Results(operation, ranks, tuple(rows), failed)


def _fields(line: str) -> list[str] | None:
    """Size, time, bandwidth and result of a row of the table; None for any other line."""
    fields = _RANK_OF_LINE.sub("", line, count=1).replace("|", " ").split()
    if len(fields) != 4 or not _SIZE.fullmatch(fields[0]) or not all(map(_NUMBER.fullmatch, fields[1:3])):
        return None
    return fields


def _only(found: Sequence[str], what: str, where: str) -> str | None:
    """What all commands in a text agree on, None if there are none."""
    different = sorted(set(found))
    if len(different) > 1:
        raise ConfigError(f"{where}: tables of several {what}, {' and '.join(different)}; give one of them")
    return different[0] if different else None


def fit(results: Results, link: Link, where: str, algorithm: str | None = None) -> Fit:
    """α and β of a link, such that the cost model's formula comes nearest to the rows, each by its share.

    `algorithm` is what HCCL did: None takes a mesh where each pair has wires of its own, else a ring. Raises
    ConfigError when the times do not grow with the size: they then say nothing of a bandwidth.
    """
    name = algorithm or ("mesh" if not link.shared and "mesh" in ALGORITHMS[results.operation] else None)
    name = name or ("pairwise" if results.operation == "all_to_all" else "ring")
    if name not in ALGORITHMS[results.operation] or not can(results.operation, name, results.ranks):
        known = ", ".join(ALGORITHMS[results.operation])
        raise ConfigError(
            f"{where}: {name!r} cannot do {results.operation} of {results.ranks}; expected one of {known}"
        )
    sizes = {nbytes for nbytes, _ in results.rows}
    if len(sizes) == 1 and max(sizes) < 1 << 20:
        raise ConfigError(f"{where}: one small size does not tell latency from bandwidth; measure up to 1 GB (-e 1G)")
    start, slope = _line(results.rows)
    if slope <= 0:
        raise ConfigError(f"{where}: the times do not grow with the size; measure messages up to 1 GB (-e 1G)")
    # The formula is steps · α + share · n · β: probing it with α or β of one gives the two factors.
    alone = replace(link, bandwidth=float("inf"), latency=1.0)
    steps = time_of(results.operation, name, results.ranks, 1.0, alone)
    share = time_of(results.operation, name, results.ranks, 1.0, replace(link, bandwidth=1.0, latency=0.0))
    worst = max(abs(start + slope * nbytes - seconds) / seconds for nbytes, seconds in results.rows)
    return Fit(start / steps, share / slope, worst)


def _line(rows: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Least squares of seconds = start + slope · bytes, each row weighted by 1/seconds², start not below 0."""
    weights = [1 / seconds**2 for _, seconds in rows]
    total = sum(weights)
    x = sum(w * n for w, (n, _) in zip(weights, rows, strict=True)) / total
    y = sum(w * s for w, (_, s) in zip(weights, rows, strict=True)) / total
    spread = sum(w * (n - x) ** 2 for w, (n, _) in zip(weights, rows, strict=True))
    if spread > 0:
        slope = sum(w * (n - x) * (s - y) for w, (n, s) in zip(weights, rows, strict=True)) / spread
        if y - slope * x >= 0:
            return y - slope * x, slope
    scale = sum(w * n * n for w, (n, _) in zip(weights, rows, strict=True))
    return 0.0, sum(w * n * s for w, (n, s) in zip(weights, rows, strict=True)) / scale


def with_measured(
    cluster: Cluster, results: Results, kind: str, where: str = "hccl_test", algorithm: str | None = None
) -> Cluster:
    """The cluster with what was measured in the place of the table's figures of one kind of link."""
    if kind not in cluster.links:
        raise ConfigError(
            f"{where}: {kind!r} is no kind of link of {cluster.name}; known are {', '.join(cluster.links)}"
        )
    link = cluster.links[kind]
    found = fit(results, link, where, algorithm)
    source = f"measured: {results.operation} of {results.ranks}, {len(results.rows)} rows of {where}"
    now = replace(link, bandwidth=found.bandwidth, latency=found.latency, source=source)
    return replace(cluster, links={**cluster.links, kind: now})
