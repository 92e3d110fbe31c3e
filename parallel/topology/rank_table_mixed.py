"""The rules of rank table 1.1 (node_list: hosts and devices in one group), as in topoinfo_ranktableHeterog.cc."""

from __future__ import annotations

from typing import Any

from mindspeed_ms.parallel.topology.rank_table_fields import (
    NAME_MAX,
    Asked,
    Fields,
    Rank,
    check_asked,
    check_families,
    check_ranks,
    family,
    s32,
)
from mindspeed_ms.parallel.topology.rank_table_json import Path

_HOST = -1  # device_id of a rank that is a CPU


def check_mixed(fields: Fields, root: dict[str, Any], asked: Asked) -> None:
    """Check a table of version 1.1."""
    pods = "heterog_sub_version" in root
    if pods and fields.text((), root, "heterog_sub_version") not in ("1.2", None):
        fields.refuse(("heterog_sub_version",), root["heterog_sub_version"], "must be 1.2")
    name = fields.text((), root, "collective_id")
    if name is not None:
        fields.short(("collective_id",), name, NAME_MAX)
    if "mode" in root and fields.text((), root, "mode") not in ("tcp", "rdma", None):
        fields.refuse(("mode",), root["mode"], "must be tcp or rdma")
    nodes = fields.items((), root, "node_list")
    ranks = [rank for path, node in nodes for rank in _node(fields, path, node, pods)]
    if ranks and fields.sound:
        check_ranks(fields, ranks)
        check_families(fields, ranks, len(nodes))
        check_asked(fields, ranks, Asked(rank=asked.rank))


def _node(fields: Fields, path: Path, node: dict[str, Any], pods: bool) -> list[Rank]:
    address = fields.text(path, node, "node_addr")
    host = 0
    if address is not None:
        fields.short((*path, "node_addr"), address, NAME_MAX)
        fields.unique("node_addr", address, (*path, "node_addr"))
        found = family(address)
        if found is None:
            fields.refuse((*path, "node_addr"), address, "must be an IP address")
        host = found or 0
    return [
        _rank(fields, place, entry, address or "", host, pods) for place, entry in fields.items(path, node, "ranks")
    ]


def _rank(fields: Fields, path: Path, entry: dict[str, Any], server: str, host: int, pods: bool) -> Rank:
    number = fields.number(path, entry, "rank_id")
    device = _signed(fields, path, entry, "device_id", pods)
    rank = Rank(path, server, _HOST if device is None else device, -1 if number is None else number, [host], host)
    _signed(fields, path, entry, "port", pods)
    address = fields.text(path, entry, "rank_ip", required=pods)
    if address:
        found = family(address)
        if found is None:
            fields.refuse((*path, "rank_ip"), address, "must be an IP address, or be empty")
        rank.ips = [found or 0]
    if pods:
        _signed(fields, path, entry, "sdid", True)
        if device == _HOST:
            _signed(fields, path, entry, "bind_device_id", True)
    return rank


def _signed(fields: Fields, path: Path, entry: dict[str, Any], name: str, required: bool) -> int | None:
    text = fields.text(path, entry, name, required)
    if text is None:
        return None
    value = s32(text)
    if value is None:
        fields.refuse((*path, name), text, "must be a whole number of 32 bits")
    return value
