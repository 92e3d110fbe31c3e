"""The rules of rank tables 1.0 and 1.2 (server_list), from hcomm's topoinfo_ranktableConcise.cc."""

from __future__ import annotations

from typing import Any

from mindspeed_ms.parallel.topology.rank_table_fields import (
    SERVER_ID_MAX,
    Asked,
    Device,
    Fields,
    Rank,
    check_asked,
    check_families,
    check_ranks,
    check_servers,
    family,
)
from mindspeed_ms.parallel.topology.rank_table_json import Path

_MOST = {"910A": 8, "910B": 16, "910_93": 16, "950": 65}  # HCCL_AISERVER_DEVICE_NUM, GetMaxDevNum


def check_concise(fields: Fields, root: dict[str, Any], asked: Asked, device: Device) -> None:
    """Check a table of version 1.0 or 1.2."""
    servers = fields.items((), root, "server_list")
    count = fields.number((), root, "server_count", required=False)
    if count is not None and servers and count != len(servers):
        fields.refuse(("server_count",), root["server_count"], f"server_list has {len(servers)} servers")
    ranks = [rank for path, server in servers for rank in _server(fields, path, server, asked, device, len(servers))]
    if root.get("version") == "1.2":
        for rank in ranks:
            rank.super_device = fields.number(rank.path, _entry(root, rank.path), "super_device_id", required=False)
    if root.get("version") == "1.2" and device == "910_93" and asked.super_pod:
        _super_pods(fields, root, ranks)
    check_ranks(fields, ranks)
    if not ranks or not fields.sound:
        return
    _as_many_addresses(fields, ranks)
    _network_side(fields, ranks)
    check_families(fields, ranks, len(servers))
    check_servers(fields, ranks, len(ranks), len(servers), device, asked)
    check_asked(fields, ranks, asked)
    _advise(fields, ranks, device)


def _server(
    fields: Fields, path: Path, server: dict[str, Any], asked: Asked, device: Device, servers: int
) -> list[Rank]:
    server_id = fields.text(path, server, "server_id")
    if server_id is not None:
        if not server_id:
            fields.refuse((*path, "server_id"), server_id, "must not be empty")
        fields.short((*path, "server_id"), server_id, SERVER_ID_MAX)
        fields.unique("server_id", server_id, (*path, "server_id"))
    host_text = fields.text(path, server, "host_ip", required=False)
    host = family(host_text) if host_text is not None else 0
    if host is None:
        fields.refuse((*path, "host_ip"), host_text, "must be an IP address, or be left out")
    ranks = []
    for place, entry in fields.items(path, server, "device"):
        rank = Rank(place, server_id or "", -1, host=host or 0)
        _device(fields, place, entry, rank, device)
        _addresses(fields, place, entry, rank, asked, device, servers)
        ranks.append(rank)
    return ranks


def _device(fields: Fields, path: Path, entry: dict[str, Any], rank: Rank, device: Device) -> None:
    number = fields.number(path, entry, "device_id")
    if number is not None:
        rank.device = number
        most = _MOST[device]
        if number >= most:
            rule = f"a server with {device} numbers its devices 0 to {most - 1}"
            hint = "; pass device 910B if this server has 16" if device == "910A" and number < 16 else ""
            fields.refuse((*path, "device_id"), entry["device_id"], rule + hint)
    fields.port(path, entry, "host_port")
    if fields.port(path, entry, "device_port") is not None:
        fields.port(path, entry, "device_vnic_port")
    rank.on_host = fields.text(path, entry, "net_position", required=False) == "host"
    fields.text(path, entry, "net_protocol", required=False)
    number = fields.number(path, entry, "rank_id")
    rank.rank = -1 if number is None else number


def _addresses(
    fields: Fields, path: Path, entry: dict[str, Any], rank: Rank, asked: Asked, device: Device, servers: int
) -> None:
    place = (*path, "device_ip")
    value = entry.get("device_ip")
    known = isinstance(value, str)
    text = value if isinstance(value, str) else ""
    if servers > 1 or asked.intra_roce:
        missing = (not known and not rank.host) or (device == "910B" and not text)
        # Inside a super pod devices meet without their network cards.
        if missing and not (device == "910_93" and not asked.intra_roce):
            fields.refuse(place, value if "device_ip" in entry else "no such field", "required with several servers")
    elif "device_ip" in entry and not known and not rank.host:
        fields.refuse(place, value, "must be a string")
    parts = text.split(",")
    parts = parts[:-1] if not parts[-1] else parts
    rank.ips = [fields.address(place, part, "device_ip") for part in parts] or [0]


def _as_many_addresses(fields: Fields, ranks: list[Rank]) -> None:
    for rank in ranks:
        if len(rank.ips) != len(ranks[0].ips):
            rule = f"has {len(rank.ips)} addresses, the first device {len(ranks[0].ips)}: all must have equally many"
            fields.refuse((*rank.path, "device_ip"), f"device {rank.device}", rule)
            return


def _network_side(fields: Fields, ranks: list[Rank]) -> None:
    # DetectNicDepoly, CheckNicDeployConsistence: when the host's cards are used, every server has to name its host.
    first = min(ranks, key=lambda rank: rank.rank)
    if not (any(rank.on_host for rank in ranks) or (first.host and not any(first.ips))):
        return
    for rank in ranks:
        if not rank.host:
            rule = "required in every server, since ranks communicate by the cards of the host"
            fields.refuse((*rank.path[:-2], "host_ip"), "no such field", rule)
            return


def _super_pods(fields: Fields, root: dict[str, Any], ranks: list[Rank]) -> None:
    if "super_pod_list" not in root:
        return
    for path, pod in fields.items((), root, "super_pod_list"):
        name = fields.text(path, pod, "super_pod_id")
        if name is None or not name:
            if name is not None:
                fields.refuse((*path, "super_pod_id"), name, "must not be empty")
            continue
        fields.short((*path, "super_pod_id"), name, 127)
        fields.unique("super_pod_id", name, (*path, "super_pod_id"))
        for place, server in fields.items(path, pod, "server_list"):
            _pod_server(fields, place, server, name, ranks)
    if fields.sound:
        _pod_members(fields, ranks)


def _pod_server(fields: Fields, path: Path, server: dict[str, Any], pod: str, ranks: list[Rank]) -> None:
    server_id = fields.text(path, server, "server_id")
    if server_id is None:
        return
    held = [rank for rank in ranks if rank.server == server_id]
    if not held:
        fields.refuse((*path, "server_id"), server_id, "is not in server_list", "HCCL_E_NOT_FOUND")
    for rank in held:
        rank.pod = pod


def _pod_members(fields: Fields, ranks: list[Rank]) -> None:
    seen: dict[tuple[str, int], Rank] = {}
    for rank in ranks:
        if not rank.pod:
            fields.refuse(rank.path[:-2], rank.server, "is in no pod of super_pod_list")
        elif rank.super_device is None or rank.super_device == 0xFFFFFFFF:
            fields.refuse((*rank.path, "super_device_id"), rank.super_device, "required in a super pod")
        elif (rank.pod, rank.super_device) in seen:
            fields.refuse((*rank.path, "super_device_id"), rank.super_device, "occurs before in this super pod")
        else:
            seen[rank.pod, rank.super_device] = rank


def _entry(root: dict[str, Any], path: Path) -> dict[str, Any]:
    value: Any = root
    for part in path:
        value = value[part]
    return value if isinstance(value, dict) else {}


def _advise(fields: Fields, ranks: list[Rank], device: Device) -> None:
    done: set[str] = set()
    previous = ""
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        if rank.server != previous and rank.server in done:
            rule = "ranks of a server should follow each other; groups of neighbours now cross servers"
            fields.advise((*rank.path, "rank_id"), rank.rank, rule)
            break
        previous = rank.server
        done.add(rank.server)
    if device != "910_93":
        return
    for rank in ranks:
        # The driver's number holds the device's id in its lower 16 bits, as in every table written on real machines.
        if rank.super_device is not None and rank.super_device & 0xFFFF != rank.device:
            rule = f"can hardly be that of device {rank.device}; compare npu-smi info -t spod-info, HCCL does so too"
            fields.advise((*rank.path, "super_device_id"), rank.super_device, rule)
            break
