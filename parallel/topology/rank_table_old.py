"""The rules of the old rank table (group_list, no version), from hcomm's topoinfo_ranktableStandard.cc.

With `deploy_mode` it is a table of the laboratory, one instance for each rank; without, one of the cloud, where an
instance is a pod, and HCCL numbers the ranks itself.
"""

from __future__ import annotations

from typing import Any

from mindspeed_ms.parallel.topology.rank_table_fields import (
    NAME_MAX,
    SERVER_ID_MAX,
    Asked,
    Device,
    Fields,
    Rank,
    check_asked,
    check_families,
    check_ranks,
    check_servers,
)
from mindspeed_ms.parallel.topology.rank_table_json import Path


def check_old(fields: Fields, root: dict[str, Any], asked: Asked, device: Device) -> None:
    """Check a table without a version."""
    cloud = "deploy_mode" not in root
    if not cloud:
        place = fields.text((), root, "para_plane_nic_location")
        if place is not None and place != "device":
            fields.refuse(("para_plane_nic_location",), place, "must be device: cards of the host are not supported")
    count = fields.number((), root, "group_count")
    groups = fields.items((), root, "group_list")
    if count is not None and count != len(groups) and groups:
        fields.refuse(("group_count",), root["group_count"], f"group_list has {len(groups)} groups")
    ranks: list[Rank] = []
    totals = [0, 0]
    for path, group in groups:
        ranks += _group(fields, path, group, cloud, device, totals)
    if not ranks or not fields.sound:
        return
    devices, servers = totals
    if cloud:
        _number(ranks)
        devices, servers = len(ranks), len({rank.server for rank in ranks})
    else:
        check_ranks(fields, ranks)
    check_families(fields, ranks, servers)
    check_servers(fields, ranks, devices, servers, device, asked)
    (_check_pod if cloud else check_asked)(fields, ranks, asked)


def _group(
    fields: Fields, path: Path, group: dict[str, Any], cloud: bool, device: Device, totals: list[int]
) -> list[Rank]:
    name = fields.text(path, group, "group_name")
    if name is not None:
        fields.short((*path, "group_name"), name, NAME_MAX)
        fields.unique("group_name", name, (*path, "group_name"))
    instances = _positive(fields, path, group, "instance_count")
    counted = "device_count" if cloud else "device_num"
    devices = _positive(fields, path, group, counted)
    totals[0] += devices or 0
    if not cloud:
        totals[1] += _laboratory(fields, path, group, devices, instances)
    listed = fields.items(path, group, "instance_list")
    ranks = [rank for place, entry in listed for rank in _instance(fields, place, entry, cloud, device, len(listed))]
    if listed and instances is not None and instances != len(listed):
        fields.refuse((*path, "instance_count"), group["instance_count"], f"instance_list has {len(listed)}")
    if listed and cloud and devices is not None and devices != len(ranks):
        fields.refuse((*path, counted), group[counted], f"the instances have {len(ranks)} devices")
    return ranks


def _laboratory(fields: Fields, path: Path, group: dict[str, Any], devices: int | None, instances: int | None) -> int:
    servers = _positive(fields, path, group, "server_num")
    if devices and servers and (devices % servers or devices // servers not in (1, 2, 4, 8, 16)):
        rule = f"{devices} devices on {servers} servers: each server must have 1, 2, 4, 8 or 16"
        fields.refuse((*path, "device_num"), group["device_num"], rule)
    if devices and instances and devices != instances:
        fields.refuse((*path, "instance_count"), group["instance_count"], f"must be device_num, which is {devices}")
    return servers or 0


def _positive(fields: Fields, path: Path, item: dict[str, Any], name: str) -> int | None:
    value = fields.number(path, item, name)
    if value == 0:
        fields.refuse((*path, name), item[name], "must not be 0")
    return value


def _instance(
    fields: Fields, path: Path, entry: dict[str, Any], cloud: bool, device: Device, instances: int
) -> list[Rank]:
    server = fields.text(path, entry, "server_id")
    if server is not None:
        if not server:
            fields.refuse((*path, "server_id"), server, "must not be empty")
        fields.short((*path, "server_id"), server, SERVER_ID_MAX)
    found = [Rank(place, server or "", -1) for place, _ in fields.items(path, entry, "devices")]
    pod = _pod(fields, path, entry) if cloud else ""
    number = None if cloud else fields.number(path, entry, "rank_id")
    if not cloud and len(found) > 1:
        fields.refuse((*path, "devices"), f"{len(found)} devices", "a rank has one device")
    for rank in found:
        rank.pod, rank.rank = pod, -1 if number is None else number
        value = entry["devices"][rank.path[-1]]
        _device(fields, rank, value if isinstance(value, dict) else {}, cloud, device, instances)
        if not cloud:
            rank.path = path if len(found) == 1 else rank.path
    return found


def _pod(fields: Fields, path: Path, entry: dict[str, Any]) -> str:
    name = fields.text(path, entry, "pod_name")
    if name is None:
        return ""
    if not name:
        fields.refuse((*path, "pod_name"), name, "must not be empty: its process could not ask for it")
    fields.short((*path, "pod_name"), name, NAME_MAX)
    fields.unique("pod_name", name, (*path, "pod_name"))
    return name


def _device(fields: Fields, rank: Rank, value: dict[str, Any], cloud: bool, device: Device, instances: int) -> None:
    number = fields.number(rank.path, value, "device_id")
    if number is not None:
        rank.device = number
        if number > 7 and (cloud or device == "910A"):
            fields.refuse((*rank.path, "device_id"), value["device_id"], "devices are numbered 0 to 7")
    if cloud and instances == 1:
        return  # one pod needs no network: HCCL does not look at its addresses
    text = fields.text(rank.path, value, "device_ip")
    rank.ips = [fields.address((*rank.path, "device_ip"), text, "device_ip") if text else 0]


def _number(ranks: list[Rank]) -> None:
    for number, rank in enumerate(sorted(ranks, key=lambda rank: (rank.server.encode(), rank.device))):
        rank.rank = number


def _check_pod(fields: Fields, ranks: list[Rank], asked: Asked) -> None:
    if asked.rank is None:
        return
    held = [rank for rank in ranks if rank.pod == asked.rank]
    if not held or (asked.local_device is not None and asked.local_device not in [rank.device for rank in held]):
        fields.refuse((), asked.rank, "the process's pod, with its device, is not in the table")
