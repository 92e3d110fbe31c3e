"""The launch scripts that `mindspeed-ms plan --out` writes: each rank on the device that the plan gives it."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mindspeed_ms.cli.plan_write import Files, Left, Wanted, command_of

if TYPE_CHECKING:
    from mindspeed_ms.parallel.plan.launch import Launch
    from mindspeed_ms.parallel.plan.plan_data import Plan


def launch_files(plan: "Plan", wanted: Wanted, has_table: bool) -> Files:
    """Write the scripts of each form that the plan can be started by. Raises ConfigError, or Left where none can."""
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan.launch import forms_of, write_launch

    launch = _job(plan, wanted, has_table)
    note = ""
    if not launch.as_msrun and not has_table:
        if len(set(launch.devices)) > 1:
            raise Left("launch/: servers of unlike size are started by a rank table; give --ips NAME=FILE for each")
        note = "; msrun numbers ranks in another order than the plan, which a rank table keeps: give --ips"
        launch = dataclasses.replace(launch, placed=tuple(_ascending(launch.placed)))
    if len(launch.nodes) > 1 and not wanted.nodes and not wanted.ips:
        note += f"; {', '.join(launch.nodes[:2])} stand for real addresses: give --nodes"
    try:
        written = write_launch(wanted.folder / "launch", launch, forms_of(launch))
    except ConfigError as error:
        if wanted.nodes or wanted.ips:
            raise
        raise Left(f"{error}; give --nodes") from None
    names = [path.name for path in written if not path.name.startswith("node")]
    how = "msrun" if launch.as_msrun else "each rank, as the rank table places it,"
    where = f"each of {len(launch.nodes)} servers" if len(launch.nodes) > 1 else "the server"
    files = [("launch/node*.sh", f"{how} on {where}{note}")]
    return files + [(f"launch/{name}", _FORMS[name]) for name in names]


def _ascending(placed: tuple[tuple[tuple[int, int], ...], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    first = 0
    for devices in (sorted(device for _, device in ranks) for ranks in placed):
        yield tuple(enumerate(devices, first))
        first += len(devices)


def _job(plan: "Plan", wanted: Wanted, has_table: bool) -> "Launch":
    from mindspeed_ms.parallel.plan.launch import Launch
    from mindspeed_ms.parallel.topology.hccl_env import advice

    settings = plan.settings
    placed: dict[int, list[tuple[int, int]]] = {}
    for rank, slot in enumerate(plan.order):
        server, place = plan.cluster.place(slot)
        placed.setdefault(server, []).append((rank, plan.cluster.servers[server].devices[place]))
    groups = 1 + sum(getattr(settings, name) > 1 for name in ("tensor", "context", "expert", "data", "pipeline"))
    variables = advice(
        plan.cluster,
        micro_batch=settings.micro_batch,
        seq=plan.job.seq // settings.context,
        hidden=plan.model.hidden,
        activation_bytes=plan.job.activation_bytes,
        groups=groups,
        pipeline=settings.pipeline,
        most_buffer=plan.job.buffer_bytes,
    )
    nodes = tuple(plan.cluster.servers[server].name for server in placed)
    # The name of one server that nobody gave is that of its topology, which no network knows.
    alone = len(nodes) == 1 and not wanted.nodes and not wanted.ips
    return Launch(
        nodes=("127.0.0.1",) if alone else nodes,
        devices=tuple(map(len, placed.values())),
        command=command_of(wanted.run),
        environment={one.name: one.value for one in variables},
        rank_table=str((wanted.folder / "rank_table.json").resolve()) if has_table else "",
        cores=_cores(plan, list(placed)),
        placed=tuple(map(tuple, placed.values())),
    )


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
