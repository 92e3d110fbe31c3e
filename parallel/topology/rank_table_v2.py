"""The rules of rank table 2.0 (rank_list, the 950), from hcomm's coll_communicator_mgr/rank_graph/rank_table_info."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from mindspeed_ms.parallel.topology.rank_table_fields import PORT_MAX, U32, Fields
from mindspeed_ms.parallel.topology.rank_table_json import Path

_MOST_RANKS = 65536
_BACKUP = 64  # local_id of a spare device
_NET_TYPES = ("1DMESH", "2DMESH", "A3_SERVER", "A2_AX_SERVER", "TOPO_FILE_DESC", "CLOS")
_INVALID = "HCCL_E_PARA"
_EID = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


def check_v2(fields: Fields, root: dict[str, Any]) -> None:
    """Check a table of version 2.0."""
    version = fields.text((), root, "version")
    if version is not None and version != "2.0":
        fields.refuse(("version",), version, "must be 2.0 on the 950", _INVALID)
    if root.get("detour", "") not in ("true", "false", ""):
        fields.refuse(("detour",), root["detour"], 'must be "true" or "false"', _INVALID)
    if root.get("status", "completed") != "completed":
        fields.advise(("status",), root["status"], "the table may not be complete; the 950 does not look at this")
    count = _number(fields, (), root, "rank_count", 1, _MOST_RANKS)
    listed = _list(fields, (), root, "rank_list")
    ranks = [(path, entry, *_rank(fields, path, entry)) for path, entry in listed]
    if count is not None and "rank_list" in root and count != len(listed):
        fields.refuse(("rank_count",), count, f"rank_list has {len(listed)} ranks", _INVALID)
    _ranks(fields, ranks)
    _spares(fields, ranks)
    _same_addresses(fields, listed)


def _ranks(fields: Fields, ranks: list[tuple[Path, dict[str, Any], int | None, int | None]]) -> None:
    seen: set[int] = set()
    for path, _, number, _ in ranks:
        if number is None:
            continue
        if number >= len(ranks):
            fields.refuse((*path, "rank_id"), number, f"ranks must be 0 to {len(ranks) - 1}", _INVALID)
        if number in seen:
            fields.refuse((*path, "rank_id"), number, "occurs before", _INVALID)
        seen.add(number)


def _spares(fields: Fields, ranks: list[tuple[Path, dict[str, Any], int | None, int | None]]) -> None:
    spares = [(path, entry.get("replaced_local_id")) for path, entry, _, local in ranks if local == _BACKUP]
    used = {local for *_, local in ranks if local != _BACKUP}
    for path, _ in spares[1:]:
        fields.refuse((*path, "local_id"), _BACKUP, "only one rank may be on a spare device", _INVALID)
    for path, replaced in spares[:1]:
        if replaced in used:
            fields.refuse((*path, "replaced_local_id"), replaced, "is in use by another rank", _INVALID)


def _same_addresses(fields: Fields, listed: list[tuple[Path, dict[str, Any]]]) -> None:
    held: dict[tuple[Any, Any], int] = {}
    for path, entry in listed:
        levels = entry.get("level_list")
        for number, level in enumerate(levels if isinstance(levels, list) else []):
            addresses = level.get("rank_addr_list") if isinstance(level, dict) else None
            if not isinstance(addresses, list):
                continue
            key = str(level.get("net_layer")), str(level.get("net_instance_id"))
            if held.setdefault(key, len(addresses)) != len(addresses):
                rule = f"{len(addresses)} addresses, but others of this net_instance_id have {held[key]}"
                fields.refuse((*path, "level_list", number, "rank_addr_list"), key[1], rule, _INVALID)


def _rank(fields: Fields, path: Path, entry: dict[str, Any]) -> tuple[int | None, int | None]:
    number = _number(fields, path, entry, "rank_id", 0, U32)
    local = _number(fields, path, entry, "local_id", 0, _BACKUP)
    if local == _BACKUP:
        _number(fields, path, entry, "replaced_local_id", 0, _BACKUP - 1)
    _number(fields, path, entry, "device_id", 0, 64)
    _number(fields, path, entry, "device_port", 1, PORT_MAX, required=False)
    _number(fields, path, entry, "host_port", 1, PORT_MAX, required=False)
    levels = _list(fields, path, entry, "level_list", most=8)
    layers = [layer for place, level in levels if (layer := _level(fields, place, level)) is not None]
    if any(after <= before for before, after in zip(layers, layers[1:], strict=False)):
        fields.refuse((*path, "level_list"), layers, "net_layer must grow from level to level", _INVALID)
    if "control_plane" in entry:
        plane = entry["control_plane"]
        place = (*path, "control_plane")
        _address(fields, place, plane if isinstance(plane, dict) else {})
        _number(fields, place, plane if isinstance(plane, dict) else {}, "listen_port", 1, 65536)
    return number, local


def _level(fields: Fields, path: Path, level: dict[str, Any]) -> int | None:
    layer = _number(fields, path, level, "net_layer", 0, 7)
    _text(fields, path, level, "net_instance_id", 1, 1024)
    _text(fields, path, level, "net_attr", 0, None, required=False)
    kind = _text(fields, path, level, "net_type", 0, None, required=False)
    if kind is not None and kind not in _NET_TYPES:
        fields.refuse((*path, "net_type"), kind, f"must be one of {', '.join(_NET_TYPES)}", _INVALID)
    for place, address in _list(fields, path, level, "rank_addr_list", most=24):
        kind = _address(fields, place, address)
        _backups(fields, place, address, kind)
        _text(fields, place, address, "plane_id", 0, 1024, required=False)
        _ports(fields, place, address)
    return layer


def _address(fields: Fields, path: Path, entry: dict[str, Any]) -> str | None:
    kind = _text(fields, path, entry, "addr_type", 0, None)
    address = _text(fields, path, entry, "addr", 1, 256)
    if kind is not None and kind not in ("EID", "IPV4", "IPV6"):
        fields.refuse((*path, "addr_type"), kind, "must be EID, IPV4 or IPV6", _INVALID)
    elif kind is not None and address and not _is_address(kind, address):
        fields.refuse((*path, "addr"), address, f"is no {kind} address", _INVALID)
    return kind


def _is_address(kind: str, text: str) -> bool:
    if kind == "EID":
        return bool(_EID.fullmatch(text))
    try:
        (ipaddress.IPv4Address if kind == "IPV4" else ipaddress.IPv6Address)(text)
    except ValueError:
        return False
    return "%" not in text


def _backups(fields: Fields, path: Path, entry: dict[str, Any], kind: str | None) -> None:
    if "backup_addr" not in entry:
        return
    place, value = (*path, "backup_addr"), entry["backup_addr"]
    if not isinstance(value, list) or len(value) > 16:
        fields.refuse(place, value, "must be a list of at most 16 addresses", _INVALID)
        return
    for number, address in enumerate(value):
        if kind not in ("IPV4", "IPV6") or not isinstance(address, str) or not _is_address(kind, address):
            fields.refuse((*place, number), address, "must be an address of addr_type, which is IPV4 or IPV6", _INVALID)


def _ports(fields: Fields, path: Path, entry: dict[str, Any]) -> None:
    if "ports" not in entry or not isinstance(entry["ports"], list):
        fields.refuse((*path, "ports"), entry.get("ports", "no such field"), "must be a list of strings", _INVALID)
        return
    for number, port in enumerate(entry["ports"]):
        if not isinstance(port, str) or not 1 <= len(port) <= 32:
            fields.refuse((*path, "ports", number), port, "must be a string of 1 to 32 characters", _INVALID)
            return
    if not 1 <= len(set(entry["ports"])) <= 16:
        fields.refuse((*path, "ports"), entry["ports"], "must name 1 to 16 ports", _INVALID)


def _list(
    fields: Fields, path: Path, entry: dict[str, Any], name: str, most: int | None = None
) -> list[tuple[Path, dict[str, Any]]]:
    value = entry.get(name)
    if not isinstance(value, list):
        fields.refuse((*path, name), value if name in entry else "no such field", "must be a list", _INVALID)
        return []
    if most is not None and len(value) > most:
        fields.refuse((*path, name), f"{len(value)} entries", f"at most {most}", _INVALID)
    return [((*path, name, n), item if isinstance(item, dict) else {}) for n, item in enumerate(value)]


def _text(
    fields: Fields, path: Path, entry: dict[str, Any], name: str, least: int, most: int | None, required: bool = True
) -> str | None:
    if name not in entry and not required:
        return None
    value = entry.get(name)
    if not isinstance(value, str):
        fields.refuse((*path, name), value if name in entry else "no such field", "must be a string", _INVALID)
        return None
    if len(value.encode()) < least or (most is not None and len(value.encode()) > most):
        fields.refuse((*path, name), value, f"must have {least} to {most} bytes", _INVALID)
    return value


def _number(
    fields: Fields, path: Path, entry: dict[str, Any], name: str, least: int, most: int, required: bool = True
) -> int | None:
    if name not in entry and not required:
        return None
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        shown = value if name in entry else "no such field"
        fields.refuse((*path, name), shown, "must be a number, without quotes", _INVALID)
        return None
    if not least <= int(value) <= most:
        fields.refuse((*path, name), value, f"must be {least} to {most}", _INVALID)
    return int(value)
