"""A cluster from whatever a user has: the name of a preset, a YAML, an `npu-smi` output or a rank table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology import links as table
from mindspeed_ms.parallel.topology.cluster import Cluster, Server
from mindspeed_ms.parallel.topology.npu_smi import read_topology
from mindspeed_ms.parallel.topology.npu_smi_mapping import read_mapping
from mindspeed_ms.parallel.topology.presets import preset_names, preset_path, read_yaml
from mindspeed_ms.paths import read_regular

_MAX_BYTES = 64 << 20
_MOST_DEVICES = 1 << 20


def load_cluster(
    spec: str | Path,
    servers: int | None = None,
    links: Iterable[table.Change] = (),
    accelerator: str | None = None,
    like: str | None = None,
) -> Cluster:
    """The cluster that `spec` names, of `servers` machines of its kind.

    `spec` is the name of a preset (910a, 910b, a3-pod, …), or the path of a YAML, of what `npu-smi info -t topo`
    printed, or of a rank table; or several paths of npu-smi's output with commas between, one a server. `links` puts
    other speeds in the place of the table's: kind, bytes/s and seconds, of `links.parse_link`. `accelerator` names the
    devices where the file does not, and `like` a preset or file whose servers those of a rank table are like: it says
    nothing of links. Raises ConfigError.
    """
    if servers is not None and not 1 <= servers <= 1 << 16:
        raise ConfigError(f"servers is {servers}; expected a number from 1 to {1 << 16}")
    if accelerator is not None:
        table.accelerator(accelerator)
    cluster = _read(str(spec), servers, accelerator, like)
    given = list(links)
    return replace(cluster, links=table.override(cluster.links, given, "given by the user")) if given else cluster


def _read(spec: str, servers: int | None, accelerator: str | None, like: str | None) -> Cluster:
    path = Path(spec)
    is_preset = spec in preset_names()
    if like is not None and (is_preset or not path.is_file() or not _is_rank_table(read_file(spec))):
        raise ConfigError(
            f"--like {like}: it says what servers of a rank table are like, and {spec} is none; leave it out"
        )
    if "," in spec and not path.exists():
        return _several(spec.split(","), servers, accelerator)
    if is_preset or path.suffix.lower() in (".yaml", ".yml"):
        cluster = read_yaml(preset_path(spec) if is_preset else path, servers)
        return _of(cluster, accelerator) if accelerator else cluster
    text = read_file(spec)
    if _is_rank_table(text):
        cluster = _from_rank_table(text, spec, servers, like)
        return _of(cluster, accelerator) if accelerator else cluster
    server = read_topology(text, spec, path.stem[:64] or "server")
    if known := accelerator or _named(text):
        return _equal(server, servers or 1, known, spec)
    guessed = _equal(server, servers or 1, guess_accelerator(server), spec)
    device = guessed.accelerator
    source = f"assumed from the links, npu-smi's matrix does not name it; {device.source}"
    return replace(guessed, accelerator=replace(device, source=source))


def _several(specs: list[str], servers: int | None, accelerator: str | None) -> Cluster:
    """Machines of which each has a file of its own; the links and devices are those of the first."""
    if servers is not None:
        raise ConfigError(f"servers is {servers}, but {len(specs)} files are given, one a server; leave it out")
    parts = [_read(spec.strip(), None, accelerator, None) for spec in specs]
    names = {part.accelerator.name for part in parts}
    if len(names) > 1:
        raise ConfigError(f"{','.join(specs)}: the devices differ, {' and '.join(sorted(names))}; name them all alike")
    machines = tuple(server for part in parts for server in part.servers)
    shapes: dict[Server, Server] = {}
    shared = tuple(shapes.setdefault(replace(server, name=""), server) for server in machines)
    return replace(parts[0], servers=shared)


def order_of(spec: str | Path) -> tuple[int, ...] | None:
    """order[rank] = slot of a rank table; None for what is no rank table and so says nothing of ranks."""
    from mindspeed_ms.parallel.topology.rank_table import read_rank_table

    if str(spec) in preset_names() or not Path(spec).is_file() or Path(spec).suffix.lower() in (".yaml", ".yml"):
        return None
    text = read_file(str(spec))
    return read_rank_table(text, str(spec)).order if _is_rank_table(text) else None


def read_file(spec: str) -> str:
    """The text of a file that a user names, as far as it is UTF-8 or UTF-16. Raises ConfigError."""
    try:
        content = read_regular(spec, _MAX_BYTES)
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))  # what PowerShell's > writes
        return content.decode("utf-16" if wide else "utf-8-sig", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{spec}: neither a file nor a preset; the presets are {', '.join(preset_names())}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{spec[:200]!r}: cannot be read: {problem}") from None


def _is_rank_table(text: str) -> bool:
    return '"server_list"' in text or '"group_list"' in text or text.lstrip().startswith("{")


def _equal(server: Server, count: int, accelerator: str, where: str) -> Cluster:
    """`count` machines like one that was read."""
    if count * len(server.devices) > _MOST_DEVICES:
        raise ConfigError(
            f"{where}: {count} servers of {len(server.devices)} devices; expected at most {_MOST_DEVICES}"
        )
    device = table.accelerator(accelerator)
    return Cluster(server.name, (server,) * count, table.link_table(device.name), device)


def _of(cluster: Cluster, accelerator: str) -> Cluster:
    """The cluster with other devices in it; speeds that the YAML gave stay."""
    device, was = table.accelerator(accelerator), table.link_table(cluster.accelerator.name)
    now = table.link_table(device.name)
    kept = {kind: link for kind, link in cluster.links.items() if was.get(kind) != link}
    return replace(cluster, accelerator=device, links={**now, **kept})


def _named(text: str) -> str | None:
    """The name of the devices where somebody has put the output of `npu-smi info -m` into the same file."""
    try:
        return table.accelerator(read_mapping(text, "")[0].name).name
    except ConfigError:
        return None


def guess_accelerator(server: Server) -> str:
    """The kind of device that a server most likely holds, from its links alone: npu-smi's matrix does not name it.

    UB is a 950; SIO, HCCS_SW or XLink_SW an A3; three HCCS links of every device, all the ports it has, a 910A; all
    else a 910B.
    """
    words = {word for row in server.kinds for word in row}
    if "UB" in words:
        return "950PR"
    if words & {"SIO", "HCCS_SW", "XLink_SW"}:
        return "910C"
    if len(server.devices) > 4 and all(row.count("HCCS") == 3 for row in server.kinds):
        return "910A"
    return "910B3"


def _from_rank_table(text: str, spec: str, servers: int | None, like: str | None) -> Cluster:
    """The devices of a rank table, joined as those of the same physical ids are in a server of `like`."""
    from mindspeed_ms.parallel.topology.rank_table import read_rank_table

    found = read_rank_table(text, spec)
    if servers is not None and servers != len(found.servers):
        raise ConfigError(
            f"{spec}: the rank table has {len(found.servers)} servers, {servers} were asked for; leave it out"
        )
    highest = max((device.device_id for server in found.servers for device in server.devices), default=0)
    model = like or ("a3-pod" if found.pods else "910b" if highest < 8 else "910b-box16")
    if Path(model).suffix.lower() == ".json":
        raise ConfigError(
            f"{model}: a rank table does not say what joins the devices of another; give a preset or matrix"
        )
    kind = load_cluster(model)
    machine = kind.servers[0]
    index = {device: at for at, device in enumerate(machine.devices)}
    shapes: dict[tuple[int, ...], Server] = {}  # equal machines share one shape, so that what is known of it is shared
    machines = []
    for server in found.servers:
        devices = tuple(device.device_id for device in server.devices)
        if unknown := [device for device in devices if device not in index]:
            raise ConfigError(
                f"{spec}: server {server.server_id} has a device {unknown[0]}, which servers of {model} do not have; "
                "name a preset or a matrix that fits with --like"
            )
        if len(set(devices)) < len(devices):
            raise ConfigError(f"{spec}: server {server.server_id} has a device twice; expected each device_id once")
        shape = shapes.setdefault(devices, _part(machine, [index[device] for device in devices]))
        machines.append(shape)
    pods, device = found.pods, kind.accelerator
    if like is None:
        source = (
            f"assumed, a rank table does not say what its devices are and what joins them (--like); {device.source}"
        )
        device = replace(device, source=source)
    return replace(
        kind,
        name=Path(spec).stem[:64],
        servers=tuple(machines),
        accelerator=device,
        pods=pods,
        within_pod=kind.within_pod if pods else "",
    )


def _part(server: Server, members: list[int]) -> Server:
    """Some devices of a server, by index."""
    kinds = tuple(tuple(server.kinds[first][second] for second in members) for first in members)
    affinity = tuple(server.affinity[at] for at in members) if server.affinity else ()
    return Server(server.name, tuple(server.devices[at] for at in members), kinds, affinity)
