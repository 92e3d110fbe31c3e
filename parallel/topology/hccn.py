"""Read the network ports of devices: /etc/hccn.conf, and what `hccn_tool -i N …` prints.

hccn.conf has lines such as `address_0=192.168.1.8`. hccn_tool prints no device in most answers, so it is taken from
what stands before them: a prompt with the command, a line such as `==== NPU 0 ====` or `[device 0]`, or, if there is
none, the order of the answers.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.npu_smi_text import plain

_CONF = re.compile(r"\s*(IPv6)?address_(\d{1,6})\s*=\s*(.*?)\s*", re.IGNORECASE)
_COMMAND = re.compile(r"hccn_tool\s.*?-i\s*(\d{1,6})\b")
_MARK = re.compile(r"(?:\[\s*)?(?:npu|device|dev_id|dev|card)[\s_:#-]*(\d{1,6})\b", re.IGNORECASE)
_FIELD = {
    "ip": re.compile(r"ipaddr\s*[:=]\s*(\S+)", re.IGNORECASE),
    "netmask": re.compile(r"netmask\s*[:=]\s*(\S+)", re.IGNORECASE),
    "speed": re.compile(r"speed\s*[:=]\s*(\d{1,9})\s*Mb/s", re.IGNORECASE),
    "link": re.compile(r"link\s+status\s*[:=]\s*(\w+)", re.IGNORECASE),
    "health": re.compile(r"net\s+health\s+status\s*[:=]\s*(.+)", re.IGNORECASE),
    "neighbour_port": re.compile(r"ifname\s*[:=]\s*(\S+)", re.IGNORECASE),
}


@dataclass
class Port:
    """One device's network port; what was not asked for is empty."""

    ip: str = ""
    netmask: str = ""
    speed: float = 0.0  # bytes a second
    link: str = ""  # UP or DOWN
    health: str = ""  # Success, or what is wrong
    neighbour_port: str = ""  # of the switch, by LLDP
    neighbour: str = ""  # name of the switch, by LLDP


def read_hccn_conf(text: str, where: str) -> dict[int, str]:
    """Device id → IP of an hccn.conf; an IPv6 address counts where there is no IPv4. Raises ConfigError."""
    found: dict[int, str] = {}
    sixes: dict[int, str] = {}
    for number, line in enumerate(plain(text).splitlines(), 1):
        parts = _CONF.fullmatch(line.partition("#")[0])
        if not parts or not parts[3]:
            continue
        device, into = int(parts[2]), sixes if parts[1] else found
        if device in into:
            raise ConfigError(f"{where}:{number}: address_{device} is given twice; leave one")
        into[device] = _ip(parts[3], f"{where}:{number}: address_{device}")
    found = {**sixes, **found}
    if not found:
        raise ConfigError(f"{where}: expected lines such as address_0=192.168.1.8, found none")
    _unique(found, where)
    return dict(sorted(found.items()))


def read_hccn_tool(text: str, where: str) -> dict[int, str]:
    """Device id → IP of one or more answers of `hccn_tool -i N -ip -g`. Raises ConfigError."""
    ports = read_hccn_ports(text, where)
    found = {device: port.ip for device, port in ports.items() if port.ip}
    if missing := [device for device in ports if device not in found]:
        raise ConfigError(
            f"{where}: device {missing[0]} has no IP ({len(missing)} in all); set one with hccn_tool -ip -s"
        )
    _unique(found, where)
    return found


def read_hccn_ports(text: str, where: str) -> dict[int, Port]:
    """Device id → port, of answers to -ip, -speed, -link, -net_health and -lldp in any order. Raises ConfigError."""
    ports: dict[int, Port] = {}
    device: int | None = None
    last = 0  # the highest number
    name_follows = False
    for number, line in enumerate(plain(text).splitlines(), 1):
        line = line.strip()
        place = f"{where}:{number}"
        if name_follows and line:
            ports[last if device is None else device].neighbour, name_follows = line[:200], False
            continue
        if marked := _marked(line):
            device = marked[0]
            ports.setdefault(device, Port())
            last = max(last, device)
            line = marked[1]
        name_follows = line.lower() == "system name tlv" and bool(ports)
        for field, pattern in _FIELD.items():
            if found := pattern.search(line):
                if device is None and (not ports or _has(ports[last], field)):
                    last = len(ports)
                    ports[last] = Port()
                _put(ports[last if device is None else device], field, found[1].strip(), place)
    if not any(port != Port() for port in ports.values()):
        raise ConfigError(f"{where}: expected what hccn_tool prints, such as ipaddr:192.168.1.8, found none of it")
    return dict(sorted(ports.items()))


def _marked(line: str) -> tuple[int, str] | None:
    """The device that a line names, and what follows on it."""
    found = _COMMAND.search(line) or _MARK.search(line)
    if not found or any(pattern.search(line[: found.start()]) for pattern in _FIELD.values()):
        return None
    return int(found[1]), line[found.end() :]


def _has(port: Port, field: str) -> bool:
    return bool(getattr(port, field))


def _put(port: Port, field: str, value: str, place: str) -> None:
    now: str | float = value
    if field == "ip":
        now = _ip(value, place)
    elif field == "speed":
        now = int(value) * 1e6 / 8
    elif field == "link":
        now = value.upper()
    if _has(port, field) and getattr(port, field) != now:
        raise ConfigError(f"{place}: a second {field}, {value[:60]!r}, for one device; mark whose it is, as NPU 0:")
    setattr(port, field, now)


def _ip(text: str, place: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ConfigError(f"{place} is {text[:60]!r}; expected an IP such as 192.168.1.8") from None


def _unique(found: dict[int, str], where: str) -> None:
    seen: dict[str, int] = {}
    for device, ip in found.items():
        if ip in seen:
            raise ConfigError(f"{where}: devices {seen[ip]} and {device} have the same IP {ip}; expected one each")
        seen[ip] = device
