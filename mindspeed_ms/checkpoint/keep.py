"""Which commits stay, and which files nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mindspeed_ms.checkpoint.manifest import BIN, NAME


def kept(
    metrics: Mapping[int, float | None], keep: int, keep_every: int | None = None, keep_best: int = 0
) -> dict[int, str]:
    """The steps that stay of those given with their metrics, and why: newest, every N, best."""
    steps = sorted(metrics)
    why: dict[int, list[str]] = {step: [] for step in steps}
    for step in steps[-keep:] if keep else steps:
        why[step].append("newest" if keep else "all")
    for step in steps:
        if keep_every and step % keep_every == 0:
            why[step].append(f"every {keep_every}")
    measured = sorted((value, -step) for step, value in metrics.items() if value is not None)
    for _, negative in measured[:keep_best]:
        why[-negative].append("best")
    return {step: ", ".join(reasons) for step, reasons in why.items() if reasons}


def dead(names: Iterable[str], needed: set[str], unreadable: Iterable[int], rank: int, world: int) -> list[str]:
    """The files of a folder that no commit needs: of this rank, and for rank 0 of ranks that there are not.

    An unreadable manifest may need any file of its step and of those before.
    """
    limit = max(unreadable, default=-1)
    found = []
    for name in names:
        parts = name.split(".")
        if name.startswith(".step-") and name.endswith(".partial"):
            owner = parts[2] if len(parts) > 2 and parts[2].isdecimal() else "0"
        elif name.startswith("step-") and name.endswith(".part") and len(parts) == 4 and name not in needed:
            owner = parts[1]
        elif (match := BIN.fullmatch(name)) and name not in needed and int(match[1]) > limit:
            owner = match[2]
        else:
            continue
        mine = owner.isdecimal() and (int(owner) == rank or (rank == 0 and int(owner) >= world))
        if mine:
            found.append(name)
    return found


def step_of_bin(name: str) -> int:
    """The step of the save that wrote a file."""
    match = BIN.fullmatch(name)
    return int(match[1]) if match else -1


def steps_of(names: Iterable[str]) -> list[int]:
    """The steps of the manifests among a folder's names, ascending."""
    found = []
    for name in names:
        match = NAME.fullmatch(name)
        if match and name == f"step-{int(match[1]):08d}.json":
            found.append(int(match[1]))
    return sorted(found)
