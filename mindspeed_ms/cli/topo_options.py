"""Options that the commands about topologies share, and the cluster and job that they describe."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mindspeed_ms.parallel.topology.cluster import Cluster
    from mindspeed_ms.parallel.topology.groups import Degrees

Spec = Annotated[
    str,
    typer.Argument(
        help="A preset (910a, 910b, 910b-box16, a3, a3-pod, cpu), a topology's YAML, what `npu-smi info -t topo` "
        "printed (of several servers, with commas between), or a rank table.",
        metavar="TOPOLOGY",
    ),
]
Servers = Annotated[int | None, typer.Option(min=1, help="How many such servers; default: 1, or what the file says.")]
Links = Annotated[
    list[str] | None,
    typer.Option("--link", help="Another speed of a kind of link, such as HCCS=56GB/s or ROCE=200Gbit/s,5us."),
]
Measured = Annotated[
    list[str] | None,
    typer.Option(help="Speed of a kind of link from a result of hccl_test, such as HCCS=all_reduce.txt."),
]
Accelerator = Annotated[
    str | None, typer.Option(help="The devices, such as 910B2; npu-smi's matrix does not name them.")
]
Like = Annotated[
    str | None, typer.Option(help="A preset or file whose servers those of a rank table are like; default: 910b.")
]
Tensor = Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")]
Data = Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks; default: all devices that are left.")]
Pipeline = Annotated[int, typer.Option(min=1, help="Pipeline stages.")]
Context = Annotated[int, typer.Option(min=1, help="Context-parallel ranks.")]
Expert = Annotated[int, typer.Option(min=1, help="Expert-parallel ranks, of data times context.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def load(
    spec: str,
    servers: int | None,
    links: Sequence[str] | None,
    measured: Sequence[str] | None,
    accelerator: str | None,
    like: str | None,
) -> "Cluster":
    """The cluster that the options name. Raises ConfigError."""
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.hccl_test import read_results, with_measured
    from mindspeed_ms.parallel.topology.links import known_kind, parse_link
    from mindspeed_ms.parallel.topology.load import load_cluster, read_file

    cluster = load_cluster(spec, servers, [parse_link(text) for text in links or ()], accelerator, like)
    for text in measured or ():
        word, equals, path = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"--measured: {text!r} is not KIND=FILE; expected such as HCCS=all_reduce.txt")
        kind = known_kind(word.strip(), "--measured")
        cluster = with_measured(cluster, read_results(read_file(path), path), kind, path)
    return cluster


def degrees(cluster: "Cluster", tensor: int, data: int | None, pipeline: int, context: int, expert: int) -> "Degrees":
    """The job's degrees; without `data`, as many replicas as there are devices for. Raises ConfigError."""
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.groups import Degrees

    if data is None:
        replica = tensor * pipeline * context
        data, rest = divmod(cluster.size, replica)
        if rest or not data:
            raise ConfigError(
                f"{cluster.size} devices do not divide into replicas of tensor · pipeline · context = {replica}; "
                "say how many with --data, or change a degree"
            )
    return Degrees(data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert)


def read_order(path: Path) -> tuple[int, ...]:
    """order[rank] = slot, of a rank table, or of a JSON list as `topo check --out` writes. Raises ConfigError."""
    import json

    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.load import read_file
    from mindspeed_ms.parallel.topology.rank_table import read_rank_table

    text = read_file(str(path))
    if not text.lstrip().startswith("["):
        return read_rank_table(text, str(path)).order
    try:
        order = json.loads(text)
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, list) or not all(type(slot) is int for slot in order):
        raise ConfigError(f"{path}: expected a rank table, or a JSON list of the slot of each rank")
    return tuple(order)
