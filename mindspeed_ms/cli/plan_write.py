"""What `mindspeed-ms plan --out` writes: the plan, strategy files, rings, rank table, launch scripts and a page."""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_ms.paths import write_whole

if TYPE_CHECKING:
    from mindspeed_ms.config.decoder import DecoderSpec
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
    """Write everything; returns file and meaning of each, and why something is not among them. Raises ConfigError.

    `plan.json` goes first and comes last: a folder without it is no plan, whatever else an interrupted run has left.
    """
    from mindspeed_ms.cli.plan_launch import launch_files
    from mindspeed_ms.parallel.plan import plan_file

    folder = wanted.folder
    command_of(wanted.run)
    cluster = _named(made.plan.cluster, wanted)
    plan = dataclasses.replace(made.plan, cluster=cluster)
    made = dataclasses.replace(made, plan=plan)
    _clear(folder)
    files: Files = [("plan.json", "the plan, for programs")]
    missing: list[str] = []

    def launch(plan: "Plan", wanted: Wanted) -> Files:
        return launch_files(plan, wanted, any(name == "rank_table.json" for name, _ in files))

    for write in (_rings, _strategies, _rank_table, _mindformers, _picture, _dot, launch):
        try:
            files += write(plan, wanted)
        except Left as left:
            missing.append(str(left))
    files.append(("report.html", "this plan for a person, with pictures"))
    _report(made, files, folder)
    plan_file.write(plan, folder / "plan.json")
    return files, missing


_OURS = ("rings.json", "rank_table.json", "mindformers.yaml", "topology.svg", "topology.dot", "report.html")


def _clear(folder: Path) -> None:
    """Make the folder, and take what an earlier plan wrote out of it: none of it may be taken for this one's."""
    from mindspeed_ms.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = folder / "plan.json"
        names = _OURS if earlier.exists() else ()  # else a file of such a name is somebody's
        earlier.unlink(missing_ok=True)
        for path in (*(folder / name for name in names), *(folder / "strategy").glob("stage_*.*")):
            if re.fullmatch(r"stage_\d+\.(ckpt|json)", path.name) or path.name in _OURS:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written to ({error.strerror}); give another folder") from None


class Left(Exception):
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
    from mindspeed_ms.parallel.plan.strategy.check import check_network
    from mindspeed_ms.parallel.plan.strategy.folder import notes, write_checked
    from mindspeed_ms.parallel.plan.strategy.rings import check_rings, read_rings

    if wanted.graph is None and not wanted.strategy:
        raise Left("strategy files: --strategy exports the network's graph for them, or give it with --graph")
    graph = _graph(plan, wanted)
    check_network(graph, plan.model)
    made, _, splits = write_checked(graph, plan.settings, wanted.folder / "strategy")
    side = read_rings(wanted.folder / "rings.json")
    apart = any(group.ring is None for group in side.groups["tensor"])  # no order of ranks brings them into one ring
    check_rings(side, made, "rings.json", inside=not apart)
    stages = "stage 0" if len(made) == 1 else f"stages 0 to {len(made) - 1}"
    far = ["tensor groups reach over several rings"] if apart else []
    said = "; ".join(["each as .ckpt and .json", *far, *notes(splits)])
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
    from mindspeed_ms.export.network import network_graph

    batch = plan.settings.data * plan.settings.micro_batch
    return read_graph(network_graph(network_of(wanted.model), batch, plan.job.seq), wanted.model)


def network_of(model: str) -> "DecoderSpec":
    """The network that --strategy exports. Raises ConfigError for a name, and for a kind that cannot be built here."""
    import json

    from mindspeed_ms.cli.output import read_text
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.models import spec_from_hf

    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"--strategy: {model} is a name, and a network is made from a config.json; give its folder as MODEL"
        )
    return spec_from_hf(json.loads(read_text(path)), str(path))


def _rank_table(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.rank_table_write import write_rank_table

    if plan.settings.devices != plan.cluster.size:
        raise Left("rank_table.json: the plan leaves devices of the cluster out; name those it has alone")
    if len(plan.cluster.servers) > 1 and not wanted.ips:
        raise Left("rank_table.json: several servers need addresses; give --ips NAME=FILE for each")
    try:
        text = write_rank_table(plan.cluster, plan.order, wanted.ips)
    except ConfigError as error:
        if wanted.ips:
            raise
        raise Left(f"rank_table.json: {error}") from None
    write_whole(wanted.folder / "rank_table.json", text.encode())
    return [("rank_table.json", "HCCL's rank table, in the order of the plan")]


def _mindformers(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan.mindformers import write_parallel

    try:
        text = write_parallel(plan.settings, plan.model.layers)
    except ConfigError as error:
        raise Left(f"mindformers.yaml: {error}") from None
    write_whole(wanted.folder / "mindformers.yaml", text.encode())
    return [("mindformers.yaml", "the parallel sections of a MindFormers configuration")]


def _picture(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.cli.plan_page import pictured
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.groups import Arrangement
    from mindspeed_ms.parallel.topology.plot import render

    dimension = next(iter(pictured(plan)), "tensor")
    try:
        picture = render(plan.cluster, Arrangement(plan.order, plan.groups), dimension)
    except ConfigError as error:  # matplotlib is not there, or a server is too large to draw
        raise Left(f"topology.svg: {error}") from None
    write_whole(wanted.folder / "topology.svg", picture)
    return [("topology.svg", f"links and {dimension} groups")]


def _dot(plan: "Plan", wanted: Wanted) -> Files:
    from mindspeed_ms.parallel.topology.groups import Arrangement
    from mindspeed_ms.parallel.topology.plot import dot

    write_whole(wanted.folder / "topology.dot", dot(plan.cluster, Arrangement(plan.order, plan.groups)).encode())
    return [("topology.dot", "links and tensor groups for Graphviz")]


def command_of(run: str) -> tuple[str, ...]:
    """The words of --run. Raises ConfigError."""
    from mindspeed_ms.errors import ConfigError

    try:
        words = tuple(shlex.split(run))
    except ValueError as error:
        raise ConfigError(f"--run {run!r}: {error}; close what it opens") from None
    if not words or not words[0] or words[0].startswith("-"):
        raise ConfigError(f"--run {run!r}: expected a script, such as 'train.py --epochs 2'")
    return words


def _report(made: "Made", files: Files, folder: Path) -> None:
    from mindspeed_ms.cli.plan_page import page

    write_whole(folder / "report.html", page(made, files[:-1]).encode())
