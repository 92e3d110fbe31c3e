"""Write a rank table for HCCL from a cluster, an order of its slots, and the addresses of its devices."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster, Server
from mindspeed_ms.parallel.topology.rank_table_fields import Asked, Device
from mindspeed_ms.parallel.topology.rank_table_rules import validate

Addresses = Mapping[str, Mapping[int, str]]  # server → physical device id → address
Version = Literal["1.0", "1.2"]


def write_rank_table(
    cluster: Cluster,
    order: Sequence[int],
    ips: Addresses,
    version: Version = "1.0",
    super_device_ids: Mapping[str, Mapping[int, int]] | None = None,
    host_ips: Mapping[str, str] | None = None,
) -> str:
    """The table as JSON text, ranks by `order` (order[rank] = slot), devices in the order of the cluster.

    `ips` comes from `hccn.read_hccn_conf` or `read_hccn_tool` of each server; one server without addresses is allowed.
    Version 1.2 is for super pods: it also needs each device's number in its pod (`npu-smi info -t spod-info`). Raises
    ConfigError that names the server and device for what is missing, doubled or no address.
    """
    ranks = _ranks(cluster, order)
    _check_addresses(cluster, ips)
    root: dict[str, Any] = {"status": "completed", "version": version, "server_count": str(len(cluster.servers))}
    root["server_list"] = []
    slot = 0
    for server in cluster.servers:
        entry: dict[str, Any] = {"server_id": server.name}
        if host_ips:
            entry["host_ip"] = _of(host_ips, server.name, "host address")
        entry["device"] = [
            _device(server, device, ips, ranks[slot + n], super_device_ids if version == "1.2" else None)
            for n, device in enumerate(server.devices)
        ]
        slot += len(server.devices)
        root["server_list"].append(entry)
    if version == "1.2":
        root["super_pod_list"] = _pods(cluster, super_device_ids)
    text = _layout(root)
    _check(text, version)
    return text


def _ranks(cluster: Cluster, order: Sequence[int]) -> list[int]:
    if sorted(order) != list(range(cluster.size)):
        raise ConfigError(
            f"order: {len(order)} slots; expected each of the {cluster.size} slots of {cluster.name} once, from 0"
        )
    ranks = [0] * cluster.size
    for rank, slot in enumerate(order):
        ranks[slot] = rank
    return ranks


def _check_addresses(cluster: Cluster, ips: Addresses) -> None:
    names = [server.name for server in cluster.servers]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"{cluster.name}: its {len(names)} servers have no names of their own, which HCCL needs as server_id; "
            "give --ips NAME=FILE for each"
        )
    if unknown := [name for name in ips if name not in names]:
        raise ConfigError(f"addresses: no server {unknown[0]!r} in {cluster.name}; it has {', '.join(names[:8])}")
    held: dict[str, str] = {}
    for name, devices in ips.items():
        for device, address in devices.items():
            place = f"device {device} of {name}"
            try:
                plain = str(ipaddress.ip_address(address))
            except ValueError:
                raise ConfigError(f"addresses: {place}: {address!r} is no IP address") from None
            if plain in held:
                raise ConfigError(f"addresses: {place}: {address} is also that of {held[plain]}; each needs its own")
            held[plain] = place


def _device(
    server: Server,
    device: int,
    ips: Addresses,
    rank: int,
    super_device_ids: Mapping[str, Mapping[int, int]] | None,
) -> dict[str, str]:
    entry = {"device_id": str(device)}
    if ips:
        address = _of(ips, server.name, "addresses").get(device)
        if address is None:
            raise ConfigError(f"addresses: device {device} of {server.name} has none; look with hccn_tool -i N -ip -g")
        entry["device_ip"] = address
    if super_device_ids is not None:
        number = _of(super_device_ids, server.name, "super device ids").get(device)
        if number is None:
            raise ConfigError(f"super device ids: device {device} of {server.name} has none; see npu-smi -t spod-info")
        entry["super_device_id"] = str(number)
    return {**entry, "rank_id": str(rank)}


def _of(values: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in values:
        raise ConfigError(f"{what}: none for server {name}; give them for every server")
    return values[name]


def _pods(cluster: Cluster, super_device_ids: Any) -> list[dict[str, Any]]:
    if super_device_ids is None:
        raise ConfigError("version 1.2: super device ids are missing; look with npu-smi info -t spod-info, or take 1.0")
    if not cluster.pods:
        raise ConfigError(f"version 1.2: {cluster.name} has no super pods; take 1.0")
    names = [server.name for server in cluster.servers]
    return [
        {"super_pod_id": str(number), "server_list": [{"server_id": names[server]} for server in pod]}
        for number, pod in enumerate(cluster.pods)
    ]


def _layout(root: dict[str, Any]) -> str:
    # A device a line: a person finds a rank by eye, and HCCL reads any layout.
    marks: dict[str, str] = {}
    for server in root["server_list"]:
        for number, device in enumerate(server["device"]):
            mark = f"device {len(marks)} here"
            marks[json.dumps(mark)] = json.dumps(device)
            server["device"][number] = mark
    lines = []
    for line in json.dumps(root, indent=1, ensure_ascii=False).split("\n"):
        bare = line.strip().rstrip(",")
        lines.append(line.replace(bare, marks[bare]) if bare in marks else line)
    return "\n".join(lines) + "\n"


def _check(text: str, version: Version) -> None:
    # Written for whatever processor accepts it: an uneven cluster is right on a 910B and wrong on a 910A.
    devices: tuple[Device, ...] = ("910_93",) if version == "1.2" else ("910B", "910A")
    found = [validate(text, Asked(device=device)) for device in devices]
    refused = [[problem for problem in problems if problem.refused] for problems in found]
    if all(refused):
        raise ConfigError(f"rank table: HCCL would refuse it: {refused[0][0]}")
