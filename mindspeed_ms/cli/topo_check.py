"""mindspeed-ms topo check and plot."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mindspeed_ms.cli import topo_options as o
from mindspeed_ms.paths import write_whole

Order = Annotated[
    Path | None,
    typer.Option(
        help="Where each rank sits: a rank table, or a JSON list of slots; default: as TOPOLOGY says, if it is a "
        "rank table; else rank and slot are one."
    ),
]


def check(
    spec: o.Spec,
    tensor: o.Tensor = 1,
    data: o.Data = None,
    pipeline: o.Pipeline = 1,
    context: o.Context = 1,
    expert: o.Expert = 1,
    order: Order = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the order that mends it, a JSON list of slots.")
    ] = None,
    servers: o.Servers = None,
    link: o.Links = None,
    measured: o.Measured = None,
    accelerator: o.Accelerator = None,
    like: o.Like = None,
    as_json: o.AsJson = False,
) -> None:
    """Find the groups of a job that cross slow links, by how much, and the order of ranks that mends it.

    Ends with an error if another order of ranks would be faster.
    """
    import json

    from mindspeed_ms.cli.output import table
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.check import check as find
    from mindspeed_ms.parallel.topology.groups import size_of
    from mindspeed_ms.parallel.topology.load import order_of

    cluster = o.load(spec, servers, link, measured, accelerator, like)
    job = o.degrees(cluster, tensor, data, pipeline, context, expert)
    size = size_of(job)
    found = find(cluster, o.read_order(order) if order else order_of(spec) or range(size), job)
    mend = next((item.mend for item in found if item.mend is not None), None)
    rows: list[dict[str, Any]] = [
        {
            "dimension": item.dimension,
            "group": item.group,
            "ranks": list(item.ranks),
            "slowest_pair": list(item.pair),
            "link": item.kind,
            "ms": round(item.seconds * 1e3, 3),
            "best_ms": round(item.best_seconds * 1e3, 3),
            "mended": item.mend is not None,
        }
        for item in found
    ]
    if as_json:
        print(json.dumps({"ranks": size, "findings": rows, "order": None if mend is None else list(mend)}))
    elif rows:
        table([{**row, "ranks": _short(row["ranks"])} for row in rows[:_MOST_ROWS]], False)
        if len(rows) > _MOST_ROWS:
            print(f"and {len(rows) - _MOST_ROWS} more")
    else:
        print(f"{size} ranks: no group crosses a slow link that it need not")
    if out is not None and mend is not None:
        write_whole(out, f"{json.dumps(list(mend))}\n".encode())
    if mend is not None:
        mended = [item for item in found if item.mend is not None]
        where = f"is in {out}" if out else "--out writes"
        text = f"{len(mended)} groups cross slow links; first, {mended[0].sentence()}"
        raise ConfigError(f"{text}; the order {where}" if out else f"{text}; {where} it")
    if found and not as_json:
        print(f"\n{found[0].sentence()}")


_MOST_ROWS = 20


def _short(ranks: list[int]) -> str:
    from mindspeed_ms.parallel.topology.pinning import ranges

    if len(ranks) <= 8:
        return ", ".join(map(str, ranks))
    steps = {second - first for first, second in zip(ranks, ranks[1:], strict=False)}
    if len(steps) == 1 and steps != {1}:
        return f"{ranks[0]}-{ranks[-1]} by {steps.pop()}"
    return ranges(ranks)


def plot(
    spec: o.Spec,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the picture: .png or .svg, or .dot for Graphviz.")],
    tensor: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks; default: no job, rings.")] = None,
    data: o.Data = None,
    pipeline: o.Pipeline = 1,
    context: o.Context = 1,
    expert: o.Expert = 1,
    order: Order = None,
    colour: Annotated[str, typer.Option(help="The dimension whose groups have a colour each.")] = "tensor",
    servers: o.Servers = None,
    link: o.Links = None,
    accelerator: o.Accelerator = None,
    like: o.Like = None,
) -> None:
    """Draw a cluster: fast and slow links, rings, and where the groups of a job sit."""
    from mindspeed_ms.cli.output import busy
    from mindspeed_ms.errors import ConfigError
    from mindspeed_ms.parallel.topology.groups import Arrangement, arrange, rank_groups, size_of
    from mindspeed_ms.parallel.topology.plot import dot
    from mindspeed_ms.parallel.topology.plot import plot as draw

    cluster = o.load(spec, servers, link, None, accelerator, like)
    arrangement = None
    if tensor is not None or data is not None or order is not None or (pipeline, context, expert) != (1, 1, 1):
        job = o.degrees(cluster, tensor or 1, data, pipeline, context, expert)
        arrangement = arrange(cluster, job)
        if order is not None:
            given = o.read_order(order)
            if len(given) != size_of(job) or len(set(given)) < len(given):
                raise ConfigError(f"{order}: expected {size_of(job)} different slots, one a rank; it has {len(given)}")
            for slot in given:
                cluster.place(slot)
            arrangement = Arrangement(given, rank_groups(job))
    with busy("Drawing"):
        if out.suffix.lower() in (".dot", ".gv"):
            write_whole(out, dot(cluster, arrangement, colour).encode())
        else:
            draw(cluster, arrangement, out, colour)
    print(f"plot  {out}")
