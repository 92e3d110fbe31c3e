"""A cluster as data: servers, the kind of link between any two of their devices, and how fast each kind is.

Devices are numbered by *slot*: servers in the order of the cluster, devices in the order of their server. A rank is
what a job calls a device; `order[rank]` is its slot, and without an order rank and slot are the same number.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_ms.errors import ConfigError

SELF = "X"


@dataclass(frozen=True)
class Link:
    """One kind of link: bytes a second in each direction, and the seconds that any message takes (α of Hockney)."""

    kind: str
    bandwidth: float
    latency: float
    # True: all links of this kind of one device share one port of that bandwidth (a switch, a NIC, a PCIe slot);
    # False: each pair has wires of its own (the HCCS mesh of a 910B).
    shared: bool
    source: str


@dataclass(frozen=True)
class Accelerator:
    """What one device can do: bytes of memory, peak floating-point operations a second in bfloat16 or float16."""

    name: str
    memory: int
    peak_flops: float
    memory_bandwidth: float
    source: str


@dataclass(frozen=True)
class Server:
    """One machine: physical ids of its devices, and the word that `npu-smi` has for the link between each two."""

    name: str
    devices: tuple[int, ...]
    kinds: tuple[tuple[str, ...], ...]  # kinds[i][j] between devices[i] and devices[j]; SELF on the diagonal
    affinity: tuple[tuple[int, ...], ...] = ()  # the CPU cores nearest to each device; empty: not known


@dataclass(frozen=True)
class Cluster:
    """Servers, what joins them, and the speed of every kind of link that occurs."""

    name: str
    servers: tuple[Server, ...]
    links: Mapping[str, Link] = field(hash=False)
    accelerator: Accelerator
    between: str = "ROCE"  # the kind of link between servers
    pods: tuple[tuple[int, ...], ...] = ()  # numbers of the servers in each super pod; empty: none
    within_pod: str = ""  # the kind of link between servers of one pod

    @cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate((len(server.devices) for server in self.servers), initial=0))

    @cached_property
    def _pod_of(self) -> dict[int, int]:
        return {server: pod for pod, servers in enumerate(self.pods) for server in servers}

    @property
    def size(self) -> int:
        """How many devices there are."""
        return self._starts[-1]

    def place(self, slot: int) -> tuple[int, int]:
        """Number of the server and of the device in it. Raises ConfigError for a slot that does not exist."""
        if not 0 <= slot < self.size:
            raise ConfigError(f"slot {slot}: the cluster {self.name} has {self.size} devices, numbered from 0")
        server = bisect.bisect_right(self._starts, slot) - 1
        return server, slot - self._starts[server]

    def kind(self, first: int, second: int) -> str:
        """The word for the link between two slots; `X` of a slot with itself."""
        (server, device), (other_server, other_device) = self.place(first), self.place(second)
        if server == other_server:
            return self.servers[server].kinds[device][other_device]
        pod = self._pod_of.get(server)
        return self.within_pod if pod is not None and pod == self._pod_of.get(other_server) else self.between

    def link(self, first: int, second: int) -> Link:
        """The link between two different slots."""
        return self.links[self.kind(first, second)]
