"""Rank tables as data: which rank is which device of which server, read from every version of the format.

Reading is lenient (what a person pasted from a log can be shown); `rank_table_rules.validate` is as strict as HCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.rank_table_json import Document, JsonError, extract, parse, show
from mindspeed_ms.parallel.topology.rank_table_json import Path as Field
from mindspeed_ms.paths import read_regular

_MOST_BYTES = 64 << 20  # 65,536 ranks, the most that a table may have, take 10 MB


@dataclass(frozen=True)
class TableDevice:
    """One device of a table: its rank, its physical id in the server, and what else the table says of it."""

    rank: int
    device_id: int
    ip: str = ""  # several addresses of one device stand behind commas, as in the file
    super_device_id: int | None = None
    port: int | None = None


@dataclass(frozen=True)
class TableServer:
    """One server of a table, its devices in the order of the file."""

    server_id: str
    devices: tuple[TableDevice, ...]
    host_ip: str = ""
    pod: str = ""  # the super pod that the server is in; empty: none


@dataclass(frozen=True)
class RankTable:
    """A rank table; `version` is "" for the old group_list form, which has none."""

    version: str
    status: str
    servers: tuple[TableServer, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(len(server.devices) for server in self.servers)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """order[rank] = slot, where slots count the devices server by server in the order of the table."""
        ranks = [device.rank for server in self.servers for device in server.devices]
        return tuple(sorted(range(len(ranks)), key=ranks.__getitem__))

    @property
    def pods(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the servers in each super pod, in the order in which the pods occur."""
        names = dict.fromkeys(server.pod for server in self.servers if server.pod)
        return tuple(tuple(n for n, server in enumerate(self.servers) if server.pod == name) for name in names)


def read_rank_table(text_or_path: str | Path, where: str = "") -> RankTable:
    """The table in a file (a Path, or a string of one line without a brace) or in a text.

    A table inside a log or with comments is read too. Raises ConfigError that names the file, the field and the line.
    """
    text, where = load_text(text_or_path, where)
    try:
        found: list[Document] = []
        try:
            document = parse(text)
        except JsonError:
            found = extract(text)
            document = found[0]
    except JsonError as error:
        raise ConfigError(f"{where}:{error.line}: no rank table: {error.message}; give a complete JSON file") from None
    other = next((one for one in found if one.value != document.value), None)
    if other is not None:
        raise ConfigError(
            f"{where}:{other.line(())}: another rank table than that of line {document.line(())}; "
            "cut out the one that is meant"
        )
    return build(document, where)


def load_text(text_or_path: str | Path, where: str) -> tuple[str, str]:
    """The text and how to call it in an error. Raises ConfigError for a file that cannot be read."""
    if isinstance(text_or_path, str) and ("{" in text_or_path or "\n" in text_or_path):
        return text_or_path, where or "rank table"
    path = Path(text_or_path)
    try:
        return read_regular(path, _MOST_BYTES).decode(), where or str(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give the path of a rank table") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; a rank table is JSON in UTF-8") from None


def build(document: Document, where: str) -> RankTable:
    """The table in parsed JSON. Raises ConfigError for a field that is missing or of another kind."""
    reader = _Reader(document, where)
    root = document.value
    if not isinstance(root, dict):
        raise reader.error((), root, "a JSON object")
    version = root.get("version", "")
    version = version if isinstance(version, str) else str(version)
    if "rank_list" in root:
        servers = tuple(reader.rank_list())
    elif "group_list" in root:
        servers = tuple(reader.group_list("deploy_mode" not in root))
    elif "node_list" in root:
        servers = tuple(reader.servers("node_list", "node_addr", "ranks", "rank_ip"))
    else:
        servers = tuple(reader.servers("server_list", "server_id", "device", "device_ip"))
    if not any(server.devices for server in servers):
        raise reader.error((), "no device", "at least one server with a device")
    return RankTable(version, str(root.get("status", "")), servers)


class _Reader:
    def __init__(self, document: Document, where: str):
        self._document, self._where = document, where

    def error(self, field: Field, value: Any, expected: str) -> ConfigError:
        line, text = self._document.line(field), repr(value)
        text = text if len(text) <= 60 else text[:57] + "..."
        return ConfigError(f"{self._where}:{line}: {show(field)}: {text}; expected {expected}")

    def servers(self, listed: str, name: str, devices: str, ip: str) -> Iterator[TableServer]:
        pods = self._pods()
        for field, server in self._objects((listed,), self._document.value.get(listed)):
            server_id = self._text(field, server, name)
            found = tuple(self._device(*item, ip) for item in self._objects((*field, devices), server.get(devices)))
            yield TableServer(server_id, found, str(server.get("host_ip", "")), pods.get(server_id, ""))

    def group_list(self, cloud: bool) -> Iterator[TableServer]:
        found: dict[str, list[TableDevice]] = {}
        for field, group in self._objects(("group_list",), self._document.value.get("group_list")):
            for place, instance in self._objects((*field, "instance_list"), group.get("instance_list")):
                rank = 0 if cloud else self._number(place, instance, "rank_id")
                devices = found.setdefault(self._text(place, instance, "server_id"), [])
                for at, device in self._objects((*place, "devices"), instance.get("devices")):
                    ip = str(device.get("device_ip", ""))
                    devices.append(TableDevice(rank, self._number(at, device, "device_id"), ip))
        if not cloud:
            return (TableServer(name, tuple(devices)) for name, devices in found.items())
        return _numbered(found)

    def rank_list(self) -> Iterator[TableServer]:
        found: dict[str, list[TableDevice]] = {}
        for field, rank in self._objects(("rank_list",), self._document.value.get("rank_list")):
            levels = self._objects((*field, "level_list"), rank.get("level_list", []))
            first = next(iter(levels), ((), {}))[1]
            held = first.get("rank_addr_list")
            addresses = [one for one in held if isinstance(one, dict)] if isinstance(held, list) else []
            ip = addresses[0].get("addr", "") if addresses else ""
            number, device_id = self._number(field, rank, "rank_id"), self._number(field, rank, "device_id")
            device = TableDevice(number, device_id, str(ip))
            found.setdefault(str(first.get("net_instance_id", "")), []).append(device)
        return (TableServer(name, tuple(devices)) for name, devices in found.items())

    def _pods(self) -> dict[str, str]:
        pods = {}
        for field, pod in self._objects(("super_pod_list",), self._document.value.get("super_pod_list", [])):
            for _, server in self._objects((*field, "server_list"), pod.get("server_list", [])):
                pods[str(server.get("server_id", ""))] = str(pod.get("super_pod_id", ""))
        return pods

    def _device(self, field: Field, device: dict[str, Any], ip: str) -> TableDevice:
        number = {name: self._number(field, device, name) for name in ("rank_id", "device_id")}
        rest = {key: self._number(field, device, key) for key in ("super_device_id", "device_port") if key in device}
        address = str(device.get(ip, ""))
        port = rest.get("device_port")
        return TableDevice(number["rank_id"], number["device_id"], address, rest.get("super_device_id"), port)

    def _objects(self, field: Field, value: Any) -> list[tuple[Field, dict[str, Any]]]:
        if not isinstance(value, list):
            raise self.error(field, value, "a list")
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.error((*field, index), item, "an object")
        return [((*field, index), item) for index, item in enumerate(value)]

    def _text(self, field: Field, item: dict[str, Any], name: str) -> str:
        value = item.get(name)
        if not isinstance(value, str) or not value:
            raise self.error((*field, name), value, "a text that is not empty")
        return value

    def _number(self, field: Field, item: dict[str, Any], name: str) -> int:
        value = item.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.error((*field, name), value, "a whole number")
        try:
            return int(value)
        except ValueError:
            raise self.error((*field, name), value, "a whole number") from None


def _numbered(found: dict[str, list[TableDevice]]) -> Iterator[TableServer]:
    # A table of the cloud gives no ranks: HCCL sorts the servers by their id as text, and devices by their number.
    rank = 0
    for name in sorted(found):
        devices = []
        for device in sorted(found[name], key=lambda device: device.device_id):
            devices.append(TableDevice(rank, device.device_id, device.ip))
            rank += 1
        yield TableServer(name, tuple(devices))
