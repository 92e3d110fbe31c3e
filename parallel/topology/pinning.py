"""Which CPU cores the process of each device should run on, from the affinity column of `npu-smi info -t topo`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Server


@dataclass(frozen=True)
class Pin:
    """The cores of one device's process; `shared` where there are too few for each device to have its own."""

    device: int  # physical id
    cores: tuple[int, ...]
    shared: bool

    @property
    def ranges(self) -> str:
        """The cores as `taskset -c` and `numactl --physcpubind` take them: 0-11,96-107."""
        return ranges(self.cores)

    @property
    def taskset(self) -> str:
        """What to put before the command of this device's process."""
        return f"taskset -c {self.ranges}"

    @property
    def numactl(self) -> str:
        """The same with memory of the node that the cores are on."""
        return f"numactl --physcpubind={self.ranges} --localalloc"


def pin(server: Server) -> tuple[Pin, ...]:
    """The cores of each device, in the server's order: its affinity, divided among the devices that have the same.

    Every run of numbers is divided by itself. In a cell such as 0-63,128-191 the second run are mostly the second
    threads of the cores in the first, and so the two threads of a core go to one device. Raises ConfigError when the
    affinity of a device is not known.
    """
    for at, device in enumerate(server.devices):
        if not server.affinity or not server.affinity[at]:
            raise ConfigError(
                f"{server.name}: the CPU affinity of device {device} is not known; it is in the last column of "
                "`npu-smi info -t topo`, or put server.affinity into the YAML"
            )
    owners: dict[int, list[int]] = {}
    for at, cores in enumerate(server.affinity):
        for core in cores:
            owners.setdefault(core, []).append(at)
    mine: list[list[int]] = [[] for _ in server.devices]
    for run in _runs(sorted(owners), owners):
        sharing = owners[run[0]]
        for number, at in enumerate(sharing):
            start, end = (len(run) * step // len(sharing) for step in (number, number + 1))
            mine[at] += run[start:end]
    return tuple(
        Pin(device, tuple(sorted(mine[at])) or server.affinity[at], shared=not mine[at])
        for at, device in enumerate(server.devices)
    )


def _runs(cores: Iterable[int], owners: dict[int, list[int]]) -> list[list[int]]:
    """Runs of numbers that follow one another and are near the same devices."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1 and owners[core] == owners[runs[-1][-1]]:
            runs[-1].append(core)
        else:
            runs.append([core])
    return runs


def ranges(cores: Iterable[int]) -> str:
    """Ascending numbers as 0-11,96-107."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
