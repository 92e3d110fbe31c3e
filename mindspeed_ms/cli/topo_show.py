"""mindspeed-ms topo show, rings and pin."""

from typing import TYPE_CHECKING, Any

from mindspeed_ms.cli import topo_options as o

if TYPE_CHECKING:
    from mindspeed_ms.parallel.topology.cluster import Cluster


def show(
    spec: o.Spec,
    servers: o.Servers = None,
    link: o.Links = None,
    measured: o.Measured = None,
    accelerator: o.Accelerator = None,
    like: o.Like = None,
    as_json: o.AsJson = False,
) -> None:
    """What a cluster is made of: devices, links with speeds and sources, rings, and the cores near each device."""
    import json

    from mindspeed_ms.cli.output import next_step, report, table

    cluster = o.load(spec, servers, link, measured, accelerator, like)
    device = cluster.accelerator
    facts: dict[str, Any] = {
        "name": cluster.name,
        "devices": cluster.size,
        "servers": len(cluster.servers),
        "pods": len(cluster.pods),
        "accelerator": device.name,
        "memory_gib": device.memory / (1 << 30),
        "peak_tflops": device.peak_flops / 1e12,
        "source": device.source,
    }
    links, rings, cores = _links(cluster), _rings(cluster), _cores(cluster)
    if as_json:
        print(json.dumps({**facts, "links": links, "rings": rings, "affinity": cores}, ensure_ascii=False))
        return
    report(facts, False)
    for rows in (links, rings, cores):
        if rows:
            print()
            table(rows, False)
    next_step("mindspeed-ms", "topo", "plot", spec, "-o", "topology.png")


def _links(cluster: "Cluster") -> list[dict[str, Any]]:
    """Each kind of link that occurs, the widest first."""
    from collections import Counter
    from itertools import accumulate

    pairs: Counter[str] = Counter()
    for numbers in _shapes(cluster):
        for at, row in enumerate(cluster.servers[numbers[0]].kinds):
            for kind in row[at + 1 :]:
                pairs[kind] += len(numbers)
    firsts = list(accumulate((len(server.devices) for server in cluster.servers[:-1]), initial=0))
    outside = {cluster.kind(firsts[0], other) for other in firsts[1:]}
    outside |= {cluster.within_pod} if any(len(pod) > 1 for pod in cluster.pods) else set()
    kinds = sorted({*pairs, *outside}, key=lambda kind: (-cluster.links[kind].bandwidth, kind))
    return [
        {
            "link": kind,
            "pairs": pairs[kind],
            "between_servers": kind in outside,
            "gb_s": cluster.links[kind].bandwidth / 1e9,
            "us": cluster.links[kind].latency * 1e6,
            "shared": cluster.links[kind].shared,
            "source": cluster.links[kind].source,
        }
        for kind in kinds
    ]


def _shapes(cluster: "Cluster") -> list[list[int]]:
    """Numbers of the servers that have equal devices and links."""
    same: dict[int, list[int]] = {}  # equal servers mostly are one object: to compare them takes long
    for number, server in enumerate(cluster.servers):
        same.setdefault(id(server), []).append(number)
    shapes: dict[Any, list[int]] = {}
    for numbers in same.values():
        server = cluster.servers[numbers[0]]
        shapes.setdefault((server.devices, server.kinds), []).extend(numbers)
    return [sorted(numbers) for numbers in shapes.values()]


def _rings(cluster: "Cluster") -> list[dict[str, Any]]:
    """The rings of each shape of server, with the servers that have it."""
    from mindspeed_ms.parallel.topology.pinning import ranges
    from mindspeed_ms.parallel.topology.rings import find_rings

    rows = []
    for numbers in _shapes(cluster):
        server = cluster.servers[numbers[0]]
        for ring in find_rings(server, cluster.links):
            alone = len(ring.slots) == 1
            rows.append(
                {
                    "servers": ranges(numbers),
                    "ring": [server.devices[slot] for slot in ring.slots],
                    "narrowest": "none" if alone else ring.narrowest.kind,
                    "mesh": ring.mesh,
                    "closed": ring.closed,
                    "certain": ring.exact,
                }
            )
    return rows


def _cores(cluster: "Cluster") -> list[dict[str, Any]]:
    """Devices of the first server that have the same cores near them."""
    from mindspeed_ms.parallel.topology.pinning import ranges

    server = cluster.servers[0]
    near: dict[tuple[int, ...], list[int]] = {}
    for device, cores in zip(server.devices, server.affinity, strict=False):
        near.setdefault(cores, []).append(device)
    return [{"cores": ranges(cores) or "not known", "near_devices": devices} for cores, devices in near.items()]


def rings(
    spec: o.Spec,
    servers: o.Servers = None,
    link: o.Links = None,
    measured: o.Measured = None,
    accelerator: o.Accelerator = None,
    like: o.Like = None,
    as_json: o.AsJson = False,
) -> None:
    """The rings of each server, in the order that keeps their narrowest link wide, and how long a ring should be."""
    import json

    from mindspeed_ms.cli.output import table
    from mindspeed_ms.parallel.topology.ring_size import ring_size, ring_times

    cluster = o.load(spec, servers, link, measured, accelerator, like)
    found, times = _rings(cluster), ring_times(cluster)
    size = ring_size(cluster, times=times)
    if as_json:
        milliseconds = {str(length): seconds * 1e3 for length, seconds in times.items()}
        print(json.dumps({"rings": found, "ring_size": size, "all_reduce_64mb_ms": milliseconds}))
        return
    table(found, False)
    if times:
        print(f"\nrings of {size}: an all_reduce of 64 MB in server 0 takes, in rings of each size, as reckoned:")
        table([{"ring_of": length, "ms": round(seconds * 1e3, 3)} for length, seconds in times.items()], False)


def pin(spec: o.Spec, accelerator: o.Accelerator = None, like: o.Like = None, as_json: o.AsJson = False) -> None:
    """The CPU cores for the process of each device of the first server, and what to put before its command."""
    import json

    from mindspeed_ms.cli.output import table
    from mindspeed_ms.parallel.topology.pinning import pin as pin_server

    cluster = o.load(spec, None, None, None, accelerator, like)
    pins = pin_server(cluster.servers[0])
    rows = [
        {
            "device": found.device,
            "cores": found.ranges,
            "shared": found.shared,
            "taskset": found.taskset,
            "numactl": found.numactl,
        }
        for found in pins
    ]
    if as_json:
        print(json.dumps({"pins": rows}))
    else:
        table(rows, False)
