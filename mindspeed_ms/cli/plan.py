"""mindspeed-ms plan: the parallel settings a training job should run with on a cluster, and the files to launch it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mindspeed_ms.cli import plan_options as o
from mindspeed_ms.cli import topo_options as t

if TYPE_CHECKING:
    from mindspeed_ms.parallel.plan.planner import Made

app = typer.Typer(add_completion=False)
Files = list[tuple[str, str]]


@app.command()
def plan(
    model: o.Model,
    cluster: Annotated[
        str,
        typer.Option(
            help="A preset (910a, 910b, 910b-box16, a3-pod, ...), a topology's YAML, an `npu-smi info -t topo` output, "
            "or a rank table."
        ),
    ],
    global_batch: o.GlobalBatch = None,
    seq: o.Seq = 4096,
    servers: t.Servers = None,
    devices: o.Devices = None,
    memory: o.Memory = None,
    link: t.Links = None,
    measured: t.Measured = None,
    accelerator: t.Accelerator = None,
    like: t.Like = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for plan.json, the report and all a launch needs.", show_default=False
        ),
    ] = None,
    strategy: o.Strategy = False,
    graph: o.GraphFile = None,
    ips: o.Ips = None,
    nodes: o.Nodes = None,
    run: o.Run = "train.py",
    mindformers: o.MindFormers = None,
    data: o.Data = None,
    tensor: o.Tensor = None,
    pipeline: o.Pipeline = None,
    context: o.Context = None,
    expert: o.Expert = None,
    micro_batch: o.MicroBatch = None,
    zero: o.Zero = None,
    recompute: o.Recomputation = None,
    sequence_parallel: o.Sequence = None,
    virtual: o.Virtual = None,
    layers: o.Layers = None,
    schedule: o.Schedules = None,
    top: o.Top = 10,
    vary: o.Vary = True,
    as_json: t.AsJson = False,
) -> None:
    """Choose how to spread a training job over a cluster, by models of time and memory, and write its launch.

    Data, tensor, pipeline, context and expert parallel, ZeRO, micro-batch, recomputation and layers of each stage are
    searched; no device is needed.
    """
    from mindspeed_ms.cli.output import busy
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.plan.model import read_model
    from mindspeed_ms.parallel.plan.planner import make_plan
    from mindspeed_ms.parallel.plan.settings import Job

    given: dict[str, Any] = dict(data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert)
    given |= dict(micro_batch=micro_batch, zero=zero, recompute=recompute, virtual=virtual, devices=devices)
    given["sequence_parallel"] = sequence_parallel
    limits = o.limits(given, memory, layers, schedule, top)
    if mindformers is not None:
        limits, batch = o.with_mindformers(limits, mindformers, schedule is not None)
        global_batch = global_batch or batch
    global_batch = global_batch or 64
    if out is None and (strategy or graph or ips or nodes):
        raise ConfigError("--strategy, --graph, --ips and --nodes are about files; give --out FOLDER for them")
    shape = read_model(model)
    if strategy and graph is None:
        from mindspeed_ms.cli.plan_write import network_of

        network_of(model)  # what cannot be exported is told before the search
    where = t.load(cluster, servers, link, measured, accelerator, like)
    with busy("Searching"):
        made = make_plan(shape, where, Job(seq, global_batch), limits, vary=vary)
    written: Files = []
    missing: list[str] = []
    if out is not None:
        from mindspeed_ms.cli.plan_write import Wanted, write_all
        from mindspeed_ms.cli.topo_rank_table import read_addresses

        names = tuple(name.strip() for name in nodes.split(",")) if nodes else ()
        with busy("Writing"):
            written, missing = write_all(
                made, Wanted(out, model, graph, strategy, read_addresses(ips or []), names, run)
            )
    if as_json:
        _print_json(made, written, missing)
    else:
        _print(made, written, missing)


def _print_json(made: "Made", written: Files, missing: list[str]) -> None:
    import dataclasses
    import json

    plan = made.plan
    content = {
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "devices": plan.settings.devices,
        "settings": dataclasses.asdict(plan.settings),
        "predicted": dataclasses.asdict(plan.predicted),
        "binds": dict(plan.binds),
        "reasons": plan.reasons,
        "alternatives": [dataclasses.asdict(one) for one in plan.alternatives],
        "sensitivity": [dataclasses.asdict(one) for one in plan.sensitivity],
        "files": [name for name, _ in written],
        "not_written": missing,
    }
    print(json.dumps(content, ensure_ascii=False))


def _print(made: "Made", written: Files, missing: list[str]) -> None:
    from mindspeed_ms.cli.output import report, table
    from mindspeed_ms.parallel.plan.describe import describe, gib

    plan = made.plan
    said, devices = plan.predicted, plan.settings.devices
    peak = max(stage["total"] for stage in plan.predicted.memory)
    report(
        {
            "plan": describe(plan.settings),
            "on": f"{devices} of {plan.cluster.size} devices of {plan.cluster.name} ({plan.cluster.accelerator.name})",
            "step": f"{said.step_seconds:.4g} s, {said.tokens_per_second / devices:,.0f} tokens/s a device, "
            f"{said.flops_utilization:.1%} of the peak",
            "memory": f"{gib(peak)} of {gib(plan.predicted.memory_limit)} on the fullest device",
            "binds": ", ".join(f"{what} {share:.1%}" for what, share in plan.binds),
        },
        False,
    )
    print("\nwhy")
    for line in plan.reasons:
        print(f"  {line}")
    print()
    table(
        [_row(at, one.seconds, one.peak, describe(one.settings)) for at, one in enumerate(made.ranking.candidates, 1)],
        False,
    )
    if plan.sensitivity:
        print()
        table([_variation(one) for one in plan.sensitivity], False)
    if written:
        print()
        table([{"file": name, "what": what} for name, what in written], False)
    for line in missing:
        print(f"not written: {line}")


def _row(rank: int, seconds: float, peak: int, text: str) -> dict[str, Any]:
    from mindspeed_ms.parallel.plan.describe import gib

    return {"rank": rank, "step_s": seconds, "memory": gib(peak), "settings": text}


def _variation(one: Any) -> dict[str, Any]:
    from mindspeed_ms.parallel.plan.describe import describe

    best = "nothing fits" if one.settings is None else "the same" if one.same else describe(one.settings)
    seconds = "-" if one.step_seconds is None else f"{one.step_seconds:.4g}"
    return {"if": f"{one.what} x {one.factor:g}", "step s": seconds, "best plan then": best}
