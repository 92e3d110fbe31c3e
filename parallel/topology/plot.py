"""A cluster as a picture (PNG or SVG, by matplotlib), as a networkx graph, and as dot text for Graphviz.

Fast links are solid lines and the order of a ring is thick; slow links are dashed, links between servers dotted. A
device has the colour of its group.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster
from mindspeed_ms.parallel.topology.groups import Arrangement
from mindspeed_ms.parallel.topology.plot_scene import scene_of
from mindspeed_ms.paths import write_whole

if TYPE_CHECKING:
    import networkx

_MOST_DEVICES = 64  # of a picture; more would be dots


def graph(cluster: Cluster) -> networkx.Graph[int]:
    """Every device as a node (server, device), every link within a server as an edge (kind, bandwidth, latency).

    Raises ConfigError when networkx is not there.
    """
    try:
        import networkx
    except ImportError:
        raise ConfigError("networkx is not installed; run pip install 'mindspeed-ms[plan]'") from None
    found: networkx.Graph[int] = networkx.Graph(name=cluster.name)
    start = 0
    for server in cluster.servers:
        for at, device in enumerate(server.devices):
            found.add_node(start + at, server=server.name, device=device)
        for first, row in enumerate(server.kinds):
            for second in range(first + 1, len(row)):
                link = cluster.links[row[second]]
                found.add_edge(
                    start + first, start + second, kind=link.kind, bandwidth=link.bandwidth, latency=link.latency
                )
        start += len(server.devices)
    return found


def dot(cluster: Cluster, arrangement: Arrangement | None = None, dimension: str = "tensor") -> str:
    """The cluster as dot text; a server is a cluster of it, and a colour a ring, or a group of `dimension`."""
    scene = scene_of(cluster, arrangement, dimension, 1 << 20)
    lines = [
        f"graph {_quoted(cluster.name)} {{",
        "  compound=true;",
        '  node [shape=circle, style=filled, fontname="sans-serif"];',
    ]
    for at, server in enumerate(scene.servers):
        lines += [f"  subgraph cluster_{at} {{", f"    label={_quoted(f'{cluster.servers[at].name} {at}')};"]
        for spot in (spot for ring in server for spot in ring):
            name = str(spot.device) if spot.rank is None else f"{spot.device}\\nrank {spot.rank}"
            lines.append(f'    n{spot.slot} [label="{name}", fillcolor="{spot.colour}"];')
        for edge in scene.edges(at):
            style = "bold" if edge.along else "solid" if edge.fast else "dashed"
            weight = "" if edge.fast else ", constraint=false"
            lines.append(f'    n{edge.first} -- n{edge.second} [style={style}, tooltip="{edge.kind}"{weight}];')
        lines.append("  }")
    firsts = [server[0][0].slot for server in scene.servers]
    for at, (first, second) in enumerate(zip(firsts, firsts[1:], strict=False)):
        ends = f"ltail=cluster_{at}, lhead=cluster_{at + 1}"
        lines.append(f'  n{first} -- n{second} [style=dotted, label="{cluster.kind(first, second)}", {ends}];')
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def plot(cluster: Cluster, arrangement: Arrangement | None, path: str | Path, dimension: str = "tensor") -> None:
    """Draw the cluster's first servers, up to 64 devices, into a .png or .svg; without an arrangement, its rings.

    Raises ConfigError when matplotlib is not there, the name ends otherwise or the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise ConfigError(f"{path}: a plot is written as .png or .svg; give a name that ends so")
    write_whole(path, render(cluster, arrangement, dimension, suffix[1:]))


def render(
    cluster: Cluster, arrangement: Arrangement | None = None, dimension: str = "tensor", form: str = "svg"
) -> bytes:
    """The picture of `plot` as bytes, `form` being png or svg."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("matplotlib is not installed; run pip install 'mindspeed-ms[plan]'") from None
    if len(cluster.servers[0].devices) > _MOST_DEVICES:
        raise ConfigError(
            f"{cluster.name}: a server of {len(cluster.servers[0].devices)} devices cannot be drawn, expected at most "
            f"{_MOST_DEVICES}; write a .dot instead"
        )
    scene = scene_of(cluster, arrangement, dimension, _MOST_DEVICES)
    style: Any = {
        "svg.hashsalt": "mindspeed-ms",  # the same cluster gives the same file
        "text.parse_math": False,
        "font.size": 9,
    }
    with matplotlib.rc_context(style):
        from mindspeed_ms.parallel.topology.plot_draw import draw

        figure = Figure()
        draw(figure, scene)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
    return _small(buffer) if form == "png" else buffer.getvalue()


def _small(picture: io.BytesIO) -> bytes:
    """The same picture in 256 colours, which is a third of the bytes: it has no more than a few and their edges."""
    from PIL import Image  # comes with matplotlib

    small = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()
