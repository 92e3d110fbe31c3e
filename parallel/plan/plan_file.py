"""plan.json: one plan with what it was made for, read and written whole; docs/plan.md describes it to the byte."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from mindspeed_ms.config.base import Config
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.plan_data import Alternative, Plan, Prediction, Variation
from mindspeed_ms.parallel.plan.settings import DIMENSIONS, Job, Settings
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.groups import rank_groups
from mindspeed_ms.paths import read_regular, write_whole

FORMAT = "mindspeed-ms plan"
VERSION = 1
_MAX_BYTES = 64 << 20

Data = TypeVar("Data")


def _keys_of(data: type) -> type[Config]:
    """The keys of a dataclass as a configuration in which every one has to be given and no other is known."""
    hints = typing.get_type_hints(data)
    fields: dict[str, Any] = {one.name: (_type(hints[one.name]), ...) for one in dataclasses.fields(data)}
    return pydantic.create_model(data.__name__, __base__=Config, **fields)


def _type(hint: Any) -> Any:
    return _keys_of(hint) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else hint


_Model, _Job, _Settings = _keys_of(ModelShape), _keys_of(Job), _keys_of(Settings)
_Link, _Accelerator, _Prediction = _keys_of(Link), _keys_of(Accelerator), _keys_of(Prediction)
_Groups = dict[str, tuple[tuple[int, ...], ...]]


class _Shape(Config):
    kinds: tuple[tuple[str, ...], ...]
    affinity: tuple[tuple[int, ...], ...]


class _Server(Config):
    name: str
    devices: tuple[int, ...]
    shape: int


class _Cluster(Config):
    name: str
    between: str
    within_pod: str
    pods: tuple[tuple[int, ...], ...]
    accelerator: _Accelerator  # type: ignore[valid-type]
    links: dict[str, _Link]  # type: ignore[valid-type]
    shapes: tuple[_Shape, ...]
    servers: tuple[_Server, ...]


class _Alternative(Config):
    settings: _Settings  # type: ignore[valid-type]
    step_seconds: float
    peak_bytes: int


class _Variation(Config):
    what: str
    factor: float
    step_seconds: float | None
    settings: _Settings | None  # type: ignore[valid-type]
    same: bool


class _Bind(Config):
    what: str
    share: float


class _File(Config):
    format: str
    version: int
    model: _Model  # type: ignore[valid-type]
    job: _Job  # type: ignore[valid-type]
    settings: _Settings  # type: ignore[valid-type]
    predicted: _Prediction  # type: ignore[valid-type]
    binds: tuple[_Bind, ...]
    reasons: tuple[str, ...]
    alternatives: tuple[_Alternative, ...]
    sensitivity: tuple[_Variation, ...]
    cluster: _Cluster
    order: tuple[int, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]


def to_text(plan: Plan) -> str:
    """The file's text: one key of the top level a line, the same bytes for the same plan."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": dataclasses.asdict(plan.model),
        "job": dataclasses.asdict(plan.job),
        "settings": dataclasses.asdict(plan.settings),
        "predicted": dataclasses.asdict(plan.predicted),
        "binds": [{"what": what, "share": share} for what, share in plan.binds],
        "reasons": plan.reasons,
        "alternatives": [dataclasses.asdict(other) for other in plan.alternatives],
        "sensitivity": [dataclasses.asdict(other) for other in plan.sensitivity],
        "cluster": _cluster_content(plan.cluster),
        "order": plan.order,
        "groups": dict(plan.groups),
    }
    lines = [f"{json.dumps(key)}: {_compact(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _cluster_content(cluster: Cluster) -> dict[str, Any]:
    """Servers of one shape refer to it by number: 128 equal servers are one matrix and 128 names."""
    shapes = list(dict.fromkeys((server.kinds, server.affinity) for server in cluster.servers))
    number = {shape: at for at, shape in enumerate(shapes)}
    return {
        "name": cluster.name,
        "between": cluster.between,
        "within_pod": cluster.within_pod,
        "pods": cluster.pods,
        "accelerator": dataclasses.asdict(cluster.accelerator),
        "links": {kind: dataclasses.asdict(link) for kind, link in cluster.links.items()},
        "shapes": [{"kinds": kinds, "affinity": affinity} for kinds, affinity in shapes],
        "servers": [
            {"name": one.name, "devices": one.devices, "shape": number[one.kinds, one.affinity]}
            for one in cluster.servers
        ],
    }


def write(plan: Plan, path: str | Path) -> None:
    """Write the file; it appears under its name when it is whole. Raises ConfigError when it cannot be written."""
    write_whole(path, to_text(plan).encode())


def read(path: str | Path) -> Plan:
    """Read a file that `write` wrote. Raises ConfigError naming file and key: unknown, missing, or contradicting."""
    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `mindspeed-ms plan` writes plan.json") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read as a text file: {problem}") from None
    return from_text(text, str(path))


def from_text(text: str, where: str = "plan.json") -> Plan:
    """Parse the text of a plan; `where` is named in errors."""
    try:
        content = json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {error}; write it anew with `mindspeed-ms plan`") from None
    _check_version(content, where)
    file = _File.parse(content, where)
    cluster = _cluster(file.cluster, where)
    settings = _made(Settings, file.settings)
    plan = Plan(
        model=_made(ModelShape, file.model),
        job=_made(Job, file.job),
        cluster=cluster,
        settings=settings,
        order=file.order,
        groups=file.groups,
        predicted=_made(Prediction, file.predicted),
        binds=tuple((bind.what, bind.share) for bind in file.binds),
        reasons=file.reasons,
        alternatives=tuple(
            Alternative(_made(Settings, one.settings), one.step_seconds, one.peak_bytes) for one in file.alternatives
        ),
        sensitivity=tuple(_variation(one) for one in file.sensitivity),
    )
    _check(plan, where)
    return plan


def _variation(one: _Variation) -> Variation:
    settings = None if one.settings is None else _made(Settings, one.settings)
    return Variation(one.what, one.factor, one.step_seconds, settings, one.same)


def _made(data: type[Data], config: Any) -> Data:
    return data(**{name: getattr(config, name) for name in type(config).model_fields})


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise ValueError(f"the key {twice!r} is given twice")
    return found


def _check_version(content: Any, where: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{where}: no plan: expected a JSON object with format {FORMAT!r}")
    if content.get("version") != VERSION:
        raise ConfigError(
            f"{where}: version is {content.get('version')!r}, this program reads {VERSION}; "
            "write it anew with `mindspeed-ms plan`"
        )


def _cluster(content: _Cluster, where: str) -> Cluster:
    servers = []
    for at, one in enumerate(content.servers):
        if not 0 <= one.shape < len(content.shapes):
            raise ConfigError(f"{where}: cluster.servers.{at}.shape is {one.shape}; of {len(content.shapes)} shapes")
        shape = content.shapes[one.shape]
        sizes = {len(shape.kinds), *map(len, shape.kinds)}
        if sizes != {len(one.devices)} or len(shape.affinity) not in (0, len(one.devices)):
            raise ConfigError(
                f"{where}: cluster.servers.{at} has {len(one.devices)} devices; shape {one.shape} is of another size"
            )
        servers.append(Server(one.name, one.devices, shape.kinds, shape.affinity))
    links = {kind: _made(Link, link) for kind, link in content.links.items()}
    accelerator = _made(Accelerator, content.accelerator)
    return Cluster(content.name, tuple(servers), links, accelerator, content.between, content.pods, content.within_pod)


def _check(plan: Plan, where: str) -> None:
    """What belongs together agrees: order names slots of the cluster once, groups are those of the degrees."""
    devices = plan.settings.devices
    if len(plan.order) != devices or len(set(plan.order)) != devices:
        raise ConfigError(f"{where}: order has to name {devices} different slots, one of each rank of the settings")
    wrong = next((slot for slot in plan.order if not 0 <= slot < plan.cluster.size), None)
    if wrong is not None:
        raise ConfigError(f"{where}: order names slot {wrong}; the cluster has {plan.cluster.size} devices")
    if set(plan.groups) != set(DIMENSIONS):
        raise ConfigError(f"{where}: groups has {sorted(plan.groups)}; expected {', '.join(DIMENSIONS)}")
    for name, groups in rank_groups(plan.settings).items():
        if tuple(plan.groups[name]) != tuple(groups):
            raise ConfigError(
                f"{where}: groups.{name} is not what the settings' degrees give; change settings and groups together"
            )
