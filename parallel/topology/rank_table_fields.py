"""Reading the fields of a rank table as HCCL's parsers do, collecting every problem instead of stopping at the first.

Source: hcomm, src/legacy/ascend910/framework/common/src/topo/topoinfo_ranktableParser.cc, platform/common/{sal,
hccl_ip_address}.cc, and config.cc, read on 2026-11-30.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from mindspeed_ms.parallel.topology.rank_table_json import Document, Path, show

Device = Literal["910A", "910B", "910_93", "950"]
U32 = 0xFFFFFFFF
PORT_MAX = 65535
NAME_MAX = 127  # GROUP_NAME_MAX_LEN
SERVER_ID_MAX = 64  # SERVERID_MAX_LENGTH

# std::stoull: spaces, a sign and digits count; what follows them is ignored.
_LEADING_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*(\d+)", re.ASCII)


@dataclass(frozen=True)
class Problem:
    """One finding: where, what stands there, the rule it breaks, and HCCL's answer ("": it accepts, this is advice)."""

    field: str
    line: int
    value: str
    rule: str
    code: str = ""

    @property
    def refused(self) -> bool:
        """Whether HCCL refuses the table for this."""
        return bool(self.code)

    def __str__(self) -> str:
        return f"line {self.line}: {self.field}: {self.value}: {self.rule}"


@dataclass(frozen=True)
class Asked:
    """What HCCL knows besides the table: the processor, and the process that opens the table.

    Without `device` it is inferred (`rank_table_rules.guess_device`); without `rank` and `local_device`, each rank is
    taken to be opened on the device that the table gives it. `rank` is the pod's name for a table of the cloud.
    """

    device: Device | None = None
    rank: str | None = None
    local_device: int | None = None
    intra_roce: bool = False  # HCCL_INTRA_ROCE_ENABLE=1
    super_pod: bool = True  # an A3 server that is part of a super pod


@dataclass
class Rank:
    """One rank as HCCL keeps it."""

    path: Path
    server: str
    device: int
    rank: int = -1
    ips: list[int] = field(default_factory=list)  # family of each address; 0: none
    host: int = 0  # family of the host's address; 0: none
    super_device: int | None = None
    pod: str = ""  # of a super pod, or the pod's name in a table of the cloud
    on_host: bool = False


def _leading(text: str) -> int | None:
    """The number a text begins with; None where there is none, or one of more digits than 64 bits hold."""
    match = _LEADING_NUMBER.match(text)
    return int(match[1] + match[2]) if match and len(match[2]) <= 20 else None


def u32(text: str) -> int | None:
    """The number HCCL reads from a text (std::stoull, then at most 0xffffffff); None where it refuses."""
    value = _leading(text)
    if value is None or abs(value) >= 1 << 64:
        return None
    value %= 1 << 64
    return value if value <= U32 else None


def s32(text: str) -> int | None:
    """The number HCCL reads from a text by std::stoi; None where it refuses."""
    value = _leading(text)
    return value if value is not None and -(1 << 31) <= value < 1 << 31 else None


def family(address: str) -> int | None:
    """4 or 6 for an address (an interface may follow behind %), 0 for 0.0.0.0, None for what HCCL cannot read."""
    ip, percent, interface = address.partition("%")
    if not ip or (percent and not interface):
        return None
    version = 6 if ip.count(":") >= 2 else 4
    try:
        packed = socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, ip)
    except (OSError, ValueError):
        return None
    return version if version == 6 or any(packed) else 0


class Fields:
    """The fields of one document, and the problems met so far."""

    def __init__(self, document: Document):
        self.document = document
        self.problems: list[Problem] = []
        self._pools: dict[str, set[str]] = {}

    def refuse(self, path: Path, value: Any, rule: str, code: str = "HCCL_E_PARA") -> None:
        """HCCL refuses the table for this."""
        text = value if isinstance(value, str) and value.startswith("no ") else repr(value)
        text = text if len(text) <= 60 else text[:57] + "..."
        self.problems.append(Problem(show(path), self.document.line(path), text, rule, code))

    def advise(self, path: Path, value: Any, rule: str) -> None:
        """HCCL accepts this, but it is worth a look."""
        self.refuse(path, value, rule, "")

    @property
    def sound(self) -> bool:
        """Whether HCCL has not refused anything yet: what compares fields is asked only then."""
        return not any(problem.refused for problem in self.problems)

    def text(self, path: Path, item: dict[str, Any], name: str, required: bool = True) -> str | None:
        """A field that has to be a string; None if it is missing or no string."""
        if name not in item:
            if required:
                self.refuse((*path, name), "no such field", "required", "HCCL_E_NOT_FOUND")
            return None
        value = item[name]
        if not isinstance(value, str):
            self.refuse((*path, name), value, "must be a string, numbers too are quoted")
            return None
        return value

    def number(self, path: Path, item: dict[str, Any], name: str, required: bool = True) -> int | None:
        """A field that has to be a number in a string, at most 4294967295."""
        text = self.text(path, item, name, required)
        if text is None:
            return None
        value = u32(text)
        if value is None:
            self.refuse((*path, name), text, f"must be a whole number from 0 to {U32}")
        return value

    def port(self, path: Path, item: dict[str, Any], name: str) -> int | None:
        """An optional port, from 1 to 65535."""
        value = self.number(path, item, name, required=False)
        if value is not None and not 1 <= value <= PORT_MAX:
            self.refuse((*path, name), item[name], f"must be a port from 1 to {PORT_MAX}; 0 is reserved")
        return value

    def items(self, path: Path, item: dict[str, Any], name: str) -> list[tuple[Path, dict[str, Any]]]:
        """The objects of a list that has to be there and not empty; what is no object counts as one without fields."""
        place = (*path, name)
        if name not in item:
            self.refuse(place, "no such field", "required", "HCCL_E_NOT_FOUND")
            return []
        value = item[name]
        if not isinstance(value, list) or not value:
            self.refuse(place, value, "must be a list that is not empty")
            return []
        return [((*place, n), entry if isinstance(entry, dict) else {}) for n, entry in enumerate(value)]

    def unique(self, pool: str, value: str, path: Path) -> None:
        """A value that may occur once in the table."""
        seen = self._pools.setdefault(pool, set())
        if value in seen:
            self.refuse(path, value, f"occurs before; each {pool} may occur once")
        seen.add(value)

    def short(self, path: Path, value: str, limit: int) -> None:
        """A name whose length HCCL limits, in bytes."""
        if len(value.encode()) > limit:
            self.refuse(path, value, f"is longer than {limit} bytes")

    def address(self, path: Path, value: str, pool: str) -> int:
        """The family of an address that has to be valid and unique; 0 if it is not."""
        version = family(value)
        if not version:
            self.refuse(path, value, "must be an IP address; replace masked digits and 0.0.0.0 by the real one")
            return 0
        self.unique(pool, value, path)
        return version


def check_ranks(fields: Fields, ranks: list[Rank]) -> None:
    """Ranks are 0, 1, 2, … without a gap and each once (CheckRankListInfo)."""
    seen: set[int] = set()
    for rank in ranks:
        if rank.rank >= len(ranks):
            rule = f"the {len(ranks)} ranks must be 0 to {len(ranks) - 1}, without a gap"
            fields.refuse((*rank.path, "rank_id"), rank.rank, rule)
        elif rank.rank in seen:
            fields.refuse((*rank.path, "rank_id"), rank.rank, "occurs before; each rank may occur once")
        seen.add(rank.rank)


def check_families(fields: Fields, ranks: list[Rank], servers: int) -> None:
    """With several servers all host addresses, and all device addresses, are of one family (CheckRankIpFamily)."""
    if servers <= 1:
        return
    for name, kinds in (("host_ip", lambda rank: [rank.host]), ("device_ip", lambda rank: rank.ips)):
        _one_family(fields, [(rank.path, kind) for rank in ranks for kind in kinds(rank) if kind], name)


def _one_family(fields: Fields, found: Iterable[tuple[Path, int]], name: str) -> None:
    first = 0
    for path, kind in found:
        first = first or kind
        if kind != first:
            place = path[:-2] if name == "host_ip" else path
            fields.refuse((*place, name), f"IPv{kind}", f"must be IPv{first} like those before")
            return


def check_servers(fields: Fields, ranks: list[Rank], devices: int, servers: int, device: Device, asked: Asked) -> None:
    """Devices of a server are each named once; on a 910A all servers have equally many (CheckDeviceNumValid)."""
    held: dict[str, list[Rank]] = {}
    for rank in ranks:
        held.setdefault(rank.server, []).append(rank)
    for server, found in held.items():
        _once(fields, found)
        if device == "910A" and servers and len(found) != devices // servers:
            rule = f"has {len(found)} devices, expected {devices // servers}: on a 910A all servers have equally many"
            fields.refuse(found[0].path[:-2] or found[0].path, server, f"{rule} (pass the device if it is another)")
        elif device == "910A":
            _whole_rings(fields, server, found)
        elif device == "910B" and len(held) == 1 and not asked.intra_roce:
            _same_plane(fields, found)


def _once(fields: Fields, found: list[Rank]) -> None:
    seen: set[int] = set()
    for rank in found:
        if rank.device in seen:
            fields.refuse((*rank.path, "device_id"), rank.device, "occurs before in this server")
        seen.add(rank.device)


def _same_plane(fields: Fields, found: list[Rank]) -> None:
    # hccl_communicator_host.cc, CheckSingleServerComm: the modules of a Box16 are joined chip by chip over PCIe.
    ids = sorted({rank.device for rank in found})
    low, high = [n for n in ids if n < 8], [n - 8 for n in ids if n >= 8]
    if low and high and low != high:
        rule = "alone, both modules of a Box16 use the same chips, such as 0,1,8,9, unless HCCL_INTRA_ROCE_ENABLE=1"
        fields.refuse((*found[0].path, "device_id"), ids, rule)


def _whole_rings(fields: Fields, server: str, found: list[Rank]) -> None:
    # topoinfo_parse.cc, HCCL_AISERVER_VAILD_4P_RANKS: one HCCS ring, or the same two chips of both rings.
    ids = sorted({rank.device for rank in found})
    if len(found) == 4 and len(ids) == 4:
        low, high = [n for n in ids if n < 4], [n - 4 for n in ids if n >= 4]
        if low and high and low != high:
            rule = "four devices of a 910A are one ring (0-3 or 4-7), or the same two of both rings, such as 0,1,4,5"
            fields.refuse((*found[0].path, "device_id"), ids, f"{rule}, not in server {server}")
    elif len(found) not in (1, 2, 4, 8):
        rule = "a 910A communicates among 1, 2, 4 or 8 devices of a server; HCCL reads the table, then cannot join them"
        fields.advise(found[0].path, f"{len(found)} devices of {server}", rule)


def check_asked(fields: Fields, ranks: list[Rank], asked: Asked) -> None:
    """The rank that a process asks for exists, and is on the device that the process runs on."""
    if asked.rank is None:
        return
    number = u32(asked.rank) if re.fullmatch(r"\d+", asked.rank, re.ASCII) else None
    chosen = next((rank for rank in ranks if rank.rank == number), None) if number is not None else None
    if chosen is None:
        code = "HCCL_E_PARA" if number is None or number >= len(ranks) else "HCCL_E_UNAVAIL"
        fields.refuse((), asked.rank, "the rank that the process asks for is not in the table", code)
    elif asked.local_device is not None and chosen.device != asked.local_device:
        rule = f"rank {number} is asked for by a process on device {asked.local_device}"
        fields.refuse((*chosen.path, "device_id"), chosen.device, rule, "HCCL_E_UNAVAIL")
