"""What `mindspeed-ms plan --out` writes: the plan, strategy files, rings, rank table, launch scripts and a page."""

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindspeed_ms.parallel.plan.plan_data import Plan
    from mindspeed_ms.parallel.plan.planner import Made
    from mindspeed_ms.parallel.plan.strategy.graph import Graph
    from mindspeed_ms.parallel.topology.cluster import Cluster

Files = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What beside the plan itself decides what is written."""

    folder: Path
    model: str  # as the user named it
    graph: Path | None = None  # the network's MINDIR
    strategy: bool = False  # export that graph here, with MindSpore
    ips: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    run: str = "train.py"


def write_all(made: "Made", wanted: Wanted) -> tuple[Files, list[str]]:
    """Write everything; returns file and meaning of each, and why something is not among them. Raises ConfigError."""
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan import plan_file

    folder = wanted.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}); give another folder") from None
    cluster = _named(made.plan.cluster, wanted)
    plan = dataclasses.replace(made.plan, cluster=cluster)
    made = dataclasses.replace(made, plan=plan)
    files: Files = [("plan.json", "the plan, for programs")]
    plan_file.write(plan, folder / "plan.json")
    missing: list[str] = []
    for write in (_rings, _strategies, _rank_table, _mindformers, _picture):
        try:
            files += write(plan, wanted)
        except _Left as left:
            missing.append(str(left))
    files += _launch(plan, wanted, any(name == "rank_table.json" for name, _ in files))
    files.append(("report.html", "this plan for a person, with pictures"))
    _report(made, files, folder)
    return files, missing


class _Left(Exception):
    """Why something is not written."""


def _named(cluster: "Cluster", wanted: Wanted) -> "Cluster":
    """Servers by the names of --nodes, else of --ips; equal names get a number."""
    from mindspeed_ms.errors import ConfigError

    names = list(wanted.nodes or wanted.ips)
    if not names:
        names = [server.name for server in cluster.servers]
        if len(set(names)) < len(names):
            names = [f"node{number}" for number in range(len(names))]
    if len(names) != len(cluster.servers):
        option = "--nodes" if wanted.nodes else "--ips"
        raise ConfigError(f"{option}: {len(names)} servers; {cluster.name} has {len(cluster.servers)}: give one each")
    if wanted.nodes and wanted.ips and set(wanted.nodes) != set(wanted.ips):
        raise ConfigError("--nodes and --ips name different servers; give the same names in both")
    servers = [dataclasses.replace(one, name=name) for one, name in zip(cluster.servers, names, strict=True)]
    return dataclasses.replace(cluster, servers=tuple(servers))


def _rings(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.parallel.plan.strategy.rings import ring_groups, write_rings
    from mindspeed_ms.parallel.topology.rings import find_rings

    rings = [ring.slots for ring in find_rings(plan.cluster)]
    write_rings(ring_groups(plan.groups, plan.order, rings), wanted.folder / "rings.json")
    return [("rings.json", "each group's ranks, slots and ring")]


def _strategies(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.parallel.plan.strategy.check import check
    from mindspeed_ms.parallel.plan.strategy.folder import notes
    from mindspeed_ms.parallel.plan.strategy.make import make_strategies
    from mindspeed_ms.parallel.plan.strategy.read import read_strategy
    from mindspeed_ms.parallel.plan.strategy.rings import check_rings, read_rings
    from mindspeed_ms.parallel.plan.strategy.write import write_strategies

    if wanted.graph is None and not wanted.strategy:
        raise _Left("strategy files: --strategy exports the network's graph for them, or give it with --graph")
    graph = _graph(plan, wanted)
    made, splits = make_strategies(graph, plan.settings)
    paths = write_strategies(made, wanted.folder / "strategy")
    for suffix in (".ckpt", ".json"):
        check([read_strategy(path) for path in paths if path.suffix == suffix], graph, "strategy")
    check_rings(read_rings(wanted.folder / "rings.json"), made, "rings.json")
    stages = "stage 0" if len(made) == 1 else f"stages 0 to {len(made) - 1}"
    said = "; ".join(["each as .ckpt and .json", *notes(splits)])
    return [("strategy/", f"MindSpore's strategy files of {stages}, {said}")]


def _graph(plan: "Plan", wanted: Wanted) -> "Graph":
    from mindspeed_ms.parallel.plan.strategy.graph import read_graph

    if wanted.graph is not None:
        from mindspeed_ms.errors import ConfigError
        from mindspeed_ms.paths import read_regular

        try:
            return read_graph(read_regular(wanted.graph, 2 << 30), str(wanted.graph))
        except OSError as error:
            raise ConfigError(f"{wanted.graph}: cannot be read: {error.strerror}; give an exported MINDIR") from None
    import json

    from mindspeed_ms.cli.output import read_text
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.export.network import network_graph
    from mindspeed_ms.models import spec_from_hf

    path = Path(wanted.model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"--strategy: {wanted.model} is a name, and a network is made from a config.json; give its folder as MODEL"
        )
    batch = plan.settings.data * plan.settings.micro_batch
    spec = spec_from_hf(json.loads(read_text(path)), str(path))
    return read_graph(network_graph(spec, batch, plan.job.seq), str(path))


def _rank_table(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.rank_table_write import write_rank_table

    if plan.settings.devices != plan.cluster.size:
        raise _Left("rank_table.json: the plan leaves devices of the cluster out; name those it has alone")
    if len(plan.cluster.servers) > 1 and not wanted.ips:
        raise _Left("rank_table.json: several servers need addresses; give --ips NAME=FILE for each")
    try:
        text = write_rank_table(plan.cluster, plan.order, wanted.ips)
    except ConfigError as error:
        if wanted.ips:
            raise
        raise _Left(f"rank_table.json: {error}") from None
    _write(wanted.folder / "rank_table.json", text)
    return [("rank_table.json", "HCCL's rank table, in the order of the plan")]


def _mindformers(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan.mindformers import write_parallel

    try:
        text = write_parallel(plan.settings, plan.model.layers)
    except ConfigError as error:
        raise _Left(f"mindformers.yaml: {error}") from None
    _write(wanted.folder / "mindformers.yaml", text)
    return [("mindformers.yaml", "the parallel sections of a MindFormers configuration")]


def _picture(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.parallel.topology.groups import Arrangement
    from mindspeed_ms.parallel.topology.plot import dot, plot

    arrangement = Arrangement(plan.order, plan.groups)
    _write(wanted.folder / "topology.dot", dot(plan.cluster, arrangement))
    plot(plan.cluster, arrangement, wanted.folder / "topology.svg")
    return [("topology.svg", "links and tensor groups"), ("topology.dot", "the same for Graphviz")]


def _launch(plan: "Plan", wanted: Wanted, has_table: bool) -> Files:
    from mindspeed_ms.parallel.plan.launch import Launch, write_launch
    from mindspeed_ms.parallel.topology.hccl_env import advice

    settings = plan.settings
    table = str((wanted.folder / "rank_table.json").resolve()) if has_table else ""
    counts: dict[int, int] = {}
    for slot in plan.order:
        server = plan.cluster.place(slot)[0]
        counts[server] = counts.get(server, 0) + 1
    groups = 1 + sum(getattr(settings, name) > 1 for name in ("tensor", "context", "expert", "data", "pipeline"))
    variables = advice(
        plan.cluster,
        micro_batch=settings.micro_batch,
        seq=plan.job.seq // settings.context,
        hidden=plan.model.hidden,
        activation_bytes=plan.job.activation_bytes,
        groups=groups,
        pipeline=settings.pipeline,
    )
    launch = Launch(
        nodes=tuple(plan.cluster.servers[server].name for server in counts),
        devices=tuple(counts.values()),
        command=tuple(shlex.split(wanted.run)),
        environment={one.name: one.value for one in variables},
        rank_table=table,
        cores=_cores(plan, list(counts)),
    )
    even = len(set(launch.devices)) == 1
    written = write_launch(wanted.folder / "launch", launch, ("msrun", "slurm", "kubernetes") if even else ("msrun",))
    note = (
        "" if has_table or plan.order == tuple(range(len(plan.order))) else "; ranks need the rank table to sit right"
    )
    names = [path.name for path in written if not path.name.startswith("node")]
    files = [("launch/node*.sh", f"msrun on each of {len(launch.nodes)} servers{note}")]
    return files + [(f"launch/{name}", _FORMS[name]) for name in names]


_FORMS = {
    "start_all.sh": "starts all of them by ssh",
    "job.sbatch": "the same for Slurm",
    "job.yaml": "the same for Kubernetes",
    "volcano.yaml": "the same for Volcano on Kubernetes",
}


def _cores(plan: "Plan", servers: list[int]) -> tuple[dict[int, str], ...]:
    """The cores of each device, where every server's are known."""
    from mindspeed_ms.parallel.topology.pinning import pin

    if not all(any(plan.cluster.servers[server].affinity) for server in servers):
        return ()
    return tuple({one.device: one.ranges for one in pin(plan.cluster.servers[server])} for server in servers)


def _report(made: "Made", files: Files, folder: Path) -> None:
    from mindspeed_ms.cli.plan_page import page

    _write(folder / "report.html", page(made, files[:-1]))


def _write(path: Path, text: str) -> None:
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.paths import partial_path

    partial = partial_path(path)
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); give another folder") from None
