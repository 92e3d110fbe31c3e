"""Topologies as YAML: what the shipped presets and a user's own file say, and the cluster made of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from mindspeed_ms.config.base import Config, load_yaml
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology import links as table
from mindspeed_ms.parallel.topology.cluster import SELF, Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.npu_smi import read_affinity, read_topology

FOLDER = Path(__file__).parent / "presets"  # configs/topology of the checkout
Id = Annotated[int, Field(ge=0, lt=1 << 16)]
Count = Annotated[int, Field(ge=1, le=1 << 16)]
_MOST_DEVICES = 1 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)


class LinkConfig(Config):
    """Other figures of one kind of link; what is left out stays as in the table."""

    bandwidth: str | None = None  # of one direction: 56GB/s, 200Gbit/s
    latency: str | None = None  # of one message: 5us
    shared: bool | None = None  # all links of this kind of one device share one port of that bandwidth
    source: str = "the topology's YAML"  # where the figures are from


class AcceleratorConfig(Config):
    """A device that the table does not have."""

    name: str
    memory: str  # 64GB, in units of 1024
    peak_flops: Annotated[float, Field(gt=0, lt=1e18)]  # operations a second in float16 or bfloat16
    memory_bandwidth: str  # 1.6TB/s
    source: str = "the topology's YAML"


class JoinedConfig(Config):
    """Groups of devices each two of which one kind of link joins."""

    kind: str  # a word of npu-smi
    groups: Annotated[list[Annotated[list[Id], Field(min_length=2)]], Field(min_length=1)]


class ServerConfig(Config):
    """One machine: the matrix that npu-smi prints, or devices and what joins them."""

    matrix: str | None = None  # an output of `npu-smi info -t topo`, instead of the rest
    devices: Count | Annotated[list[Id], Field(min_length=1)] | None = None  # how many, or their physical ids
    joined: list[JoinedConfig] = []  # a later entry goes before an earlier one
    otherwise: str | None = None  # the kind between all other devices
    affinity: list[str] = []  # cores near each device, such as 0-23

    @model_validator(mode="after")
    def _one_way(self) -> ServerConfig:
        if (self.matrix is None) == (self.devices is None):
            raise ValueError("expected one of matrix and devices")
        if self.matrix is not None and (self.joined or self.otherwise or self.affinity):
            raise ValueError("joined, otherwise and affinity have no effect beside matrix; leave them out")
        return self


class TopologyConfig(Config):
    """A cluster of equal servers."""

    name: str = "cluster"
    accelerator: AcceleratorConfig | str  # a name of the table, or figures
    server: ServerConfig
    servers: Count = 1  # how many of them
    between: str = "ROCE"  # kind of link between servers
    pod_servers: Count | None = None  # so many servers in a row make a super pod
    within_pod: str | None = None  # kind of link between servers of one
    links: dict[str, LinkConfig] = {}  # other speeds: kind → figures

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if not 0 < len(value) <= 64 or not value.isprintable():
            raise ValueError("expected a name of 1 to 64 characters")
        return value

    @model_validator(mode="after")
    def _pods(self) -> TopologyConfig:
        if (self.pod_servers is None) != (self.within_pod is None):
            raise ValueError("expected pod_servers and within_pod together, or neither")
        return self


def preset_names() -> tuple[str, ...]:
    """The presets that are shipped, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def preset_path(name: str) -> Path:
    """The YAML of a preset, to read or to copy. Raises ConfigError with the names there are."""
    if name not in preset_names():
        raise ConfigError(f"{name}: no such preset; there are {', '.join(preset_names())}")
    return FOLDER / f"{name}.yaml"


def read_yaml(path: str | Path, servers: int | None = None) -> Cluster:
    """The cluster of a topology's YAML; `servers` goes before the number in it. Raises ConfigError."""
    where = str(path)
    config = load_yaml(path, TopologyConfig)
    count = config.servers if servers is None else servers
    device = _accelerator(config.accelerator, where)
    server = _server(config.server, config.name, where)
    if count * len(server.devices) > _MOST_DEVICES:
        raise ConfigError(
            f"{where}: {count} servers of {len(server.devices)} devices; expected at most {_MOST_DEVICES}"
        )
    pods: tuple[tuple[int, ...], ...] = ()
    if config.pod_servers is not None:
        size = config.pod_servers
        pods = tuple(tuple(range(start, min(start + size, count))) for start in range(0, count, size))
    return Cluster(
        name=config.name,
        servers=(server,) * count,
        links=_links(config.links, device.name, where),
        accelerator=device,
        between=table.known_kind(config.between, f"{where}: between"),
        pods=pods,
        within_pod=table.known_kind(config.within_pod, f"{where}: within_pod") if config.within_pod else "",
    )


def _accelerator(given: str | AcceleratorConfig, where: str) -> Accelerator:
    if isinstance(given, str):
        try:
            return table.accelerator(given)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    found = _SIZE.fullmatch(given.memory.strip())
    if not found:
        raise ConfigError(f"{where}: accelerator.memory is {given.memory!r}; expected such as 64GB")
    memory = int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) + 1))
    if not 1 << 20 <= memory <= 1 << 50:
        raise ConfigError(f"{where}: accelerator.memory is {given.memory[:80]!r}; expected from 1MB to 1024TB")
    speed = table.parse_speed(given.memory_bandwidth, f"{where}: accelerator.memory_bandwidth")
    return Accelerator(given.name, memory, given.peak_flops, speed, given.source)


def _server(config: ServerConfig, name: str, where: str) -> Server:
    if config.matrix is not None:
        return read_topology(config.matrix, f"{where}: server.matrix", name)
    given = config.devices
    devices = list(range(given)) if isinstance(given, int) else list(given or ())
    if len(devices) > 1 << 10 or len(set(devices)) < len(devices):
        raise ConfigError(f"{where}: server.devices: expected at most 1024 different devices of one server")
    if config.otherwise is None and len(devices) > 1:
        kinds: list[list[str]] = [[""] * len(devices) for _ in devices]
    else:
        other = table.known_kind(config.otherwise or "NA", f"{where}: server.otherwise")
        kinds = [[other] * len(devices) for _ in devices]
    index = {device: at for at, device in enumerate(devices)}
    for number, joined in enumerate(config.joined):
        kind = table.known_kind(joined.kind, f"{where}: server.joined.{number}.kind")
        for group in joined.groups:
            if unknown := [device for device in group if device not in index]:
                raise ConfigError(f"{where}: server.joined.{number}: there is no device {unknown[0]} in server.devices")
            for first in group:
                for second in group:
                    kinds[index[first]][index[second]] = kind
    for at, row in enumerate(kinds):
        row[at] = SELF
        if "" in row:
            pair = f"{devices[at]} and {devices[row.index('')]}"
            raise ConfigError(f"{where}: server: nothing joins the devices {pair}; add them to joined, or otherwise")
    affinity = tuple(read_affinity(text, f"{where}: server.affinity") for text in config.affinity)
    if affinity and len(affinity) != len(devices):
        raise ConfigError(
            f"{where}: server.affinity has {len(affinity)} entries, expected {len(devices)}: one a device"
        )
    return Server(name, tuple(devices), tuple(map(tuple, kinds)), affinity)


def _links(given: dict[str, LinkConfig], accelerator: str, where: str) -> dict[str, Link]:
    found = table.link_table(accelerator)
    for word, config in given.items():
        place = f"{where}: links.{word}"
        kind = table.known_kind(word, place)
        old = found[kind]
        change: dict[str, Any] = {"source": config.source}
        if config.bandwidth is not None:
            change["bandwidth"] = table.parse_speed(config.bandwidth, place)
        if config.latency is not None:
            change["latency"] = table.parse_time(config.latency, place)
        if config.shared is not None:
            change["shared"] = config.shared
        found[kind] = Link(**{**old.__dict__, **change})
    return found
