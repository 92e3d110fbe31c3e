"""Draw a cluster with matplotlib: a panel for each server, a circle for each ring in it, a legend below."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindspeed_ms.parallel.topology.plot_scene import COLOURS, Scene, Spot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _FAST, _SLOW, _BETWEEN, _PANEL = "#1f2933", "#7b8794", "#c2603f", "#6b7280", "#f6f7f9"
_NODE = 0.17  # radius of a device; as all lengths, in units of _INCHES
_INCHES = 1.2
_LINE = 0.24  # from one line of text to the next
_WIDEST = 20.0  # inches of a picture
_NARROWEST = 4.5  # of all panels of a row together
_WHITE_ON = {"#0072b2", "#8c6bb1", "#d55e00", "#009e73", "#7f8c8d", "#a6761d"}
Point = tuple[float, float]


@dataclass(frozen=True)
class _Grid:
    """Where the panels are; y grows upwards, the first row is that from 0 up."""

    columns: int
    wide: float
    high: float

    def corner(self, server: int) -> Point:
        return server % self.columns * self.wide, -(server // self.columns) * self.high


def draw(figure: Figure, scene: Scene) -> None:
    """Fill the figure; it takes the size that the servers need."""
    grid = _grid(scene)
    places: dict[int, Point] = {}
    for at, server in enumerate(scene.servers):
        _place(server, grid.corner(at), grid, places)
    marks = _marks(scene)
    rows = math.ceil(len(scene.servers) / grid.columns)
    width = grid.columns * grid.wide
    title = textwrap.wrap(_title(scene), int(width * _INCHES / 0.083))
    top, bottom = grid.high + _LINE * (len(title) + 0.6), grid.high * (1 - rows) - _LINE * (len(marks) + 1)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(bottom, top), aspect="equal")
    axes.axis("off")
    scale = min(_INCHES, _WIDEST / width)
    figure.set_size_inches(scale * width, scale * (top - bottom))
    for number, line in enumerate(title):
        axes.text(0.15, top - _LINE * (number + 0.8), line, fontsize=10.5, va="center")
    for at in range(len(scene.servers)):
        _panel(axes, scene, at, grid)
        _links(axes, scene, at, places)
        for ring in scene.servers[at]:
            _ring(axes, ring, places)
    _between(axes, len(scene.servers), grid)
    _legend(axes, marks, grid.high * (1 - rows) - _LINE)


def _grid(scene: Scene) -> _Grid:
    wide = max(max(sum(_reach(ring) for ring in server) for server in scene.servers) + 0.3, 2.6)
    high = max(_reach(ring) for server in scene.servers for ring in server) + 0.55
    count = len(scene.servers)
    square = min(count, max(1, round(math.sqrt(count * high * 1.5 / wide))))  # a little wider than high
    near = range(max(1, square - 1), min(count, square + 1) + 1)
    columns = min(near, key=lambda number: (-count % number, abs(number - square)))  # with few empty places
    return _Grid(columns, max(wide, _NARROWEST / columns), high)


def _reach(ring: tuple[Spot, ...]) -> float:
    """The width of a ring's circle with the names around it."""
    return 2 * _radius(len(ring)) + 1.0


def _radius(count: int) -> float:
    return 0.0 if count == 1 else max(0.42, 0.55 * count / (2 * math.pi))


def _place(server: tuple[tuple[Spot, ...], ...], corner: Point, grid: _Grid, places: dict[int, Point]) -> None:
    x = corner[0] + (grid.wide - sum(_reach(ring) for ring in server)) / 2
    for ring in server:
        centre = (x + _reach(ring) / 2, corner[1] + (grid.high - 0.2) / 2)
        turned = math.pi / 4 if len(ring) == 4 else 0.0
        for number, spot in enumerate(ring):
            angle = math.pi / 2 - 2 * math.pi * number / len(ring) + turned
            radius = _radius(len(ring))
            places[spot.slot] = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
        x += _reach(ring)


def _panel(axes: Axes, scene: Scene, at: int, grid: _Grid) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = grid.corner(at)
    style = "round,pad=0,rounding_size=0.12"
    size = (grid.wide - 0.2, grid.high - 0.2)
    axes.add_patch(FancyBboxPatch((x + 0.1, y + 0.1), *size, boxstyle=style, fc=_PANEL, ec="#d5dae0", zorder=1))
    pod = next((number for number, pod in enumerate(scene.cluster.pods) if at in pod), None)
    name = f"{scene.cluster.servers[at].name[:28]}  server {at}" + ("" if pod is None else f"  pod {pod}")
    axes.text(x + 0.22, y + grid.high - 0.27, name, va="center", fontsize=8.5, zorder=6)


def _styles(scene: Scene) -> dict[tuple[str, bool], dict[str, Any]]:
    """How each kind of link is drawn: fast ones solid, slow ones dashed, each the stronger the wider it is."""
    kinds = {(edge.kind, edge.fast) for at in range(len(scene.servers)) for edge in scene.edges(at)}
    ranked = sorted(kinds, key=lambda key: (-scene.cluster.links[key[0]].bandwidth, key[0]))
    styles: dict[tuple[str, bool], dict[str, Any]] = {}
    for number, key in enumerate(key for key in ranked if key[1]):
        styles[key] = {"color": _FAST, "linewidth": 0.7} if number else {"color": _FAST, "linewidth": 1.2}
    for number, key in enumerate(key for key in ranked if not key[1]):
        dashes = ((0, (6, 3)), (0, (3, 3)), (0, (1, 3)))[min(number, 2)]
        styles[key] = {"color": _SLOW, "linewidth": 1.0 if number == 0 else 0.5, "linestyle": dashes}
    return styles


def _links(axes: Axes, scene: Scene, server: int, places: dict[int, Point]) -> None:
    from matplotlib.patches import FancyArrowPatch

    styles = _styles(scene)
    others = [places[spot.slot] for ring in scene.servers[server] for spot in ring]
    for edge in scene.edges(server):
        start, end = places[edge.first], places[edge.second]
        style = styles[edge.kind, edge.fast]
        if edge.along:
            axes.plot(*zip(start, end, strict=True), color=_INK, linewidth=2.4, zorder=4, solid_capstyle="round")
        elif edge.fast:
            axes.plot(*zip(start, end, strict=True), zorder=3, **style)
        else:
            bent = f"arc3,rad={_bend(start, end, others)}"
            axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-", connectionstyle=bent, zorder=2, **style))


_BENDS = (0.12, 0.26, 0.4, 0.55)  # of a slow link: its height as a share of its length, twice over


def _bend(start: Point, end: Point, others: list[Point]) -> float:
    """How to bend a slow link so that it passes no other device, away from the middle; the least bend if none does."""
    middle = sum(y for _, y in others) / len(others)
    high = (start[1] + end[1]) / 2 - middle
    # matplotlib bends to the right of the way from start to end.
    outwards = -1 if (high > 0.01 or (abs(high) <= 0.01 and start[1] < end[1])) == (start[0] < end[0]) else 1
    for bend in _BENDS:
        for side in (outwards, -outwards):
            control = _control(start, end, side * bend)
            if all(_clear(start, control, end, spot) for spot in others if spot not in (start, end)):
                return side * bend
    return outwards * _BENDS[0]


def _control(start: Point, end: Point, bend: float) -> Point:
    across, up = end[0] - start[0], end[1] - start[1]
    return (start[0] + end[0]) / 2 + bend * up, (start[1] + end[1]) / 2 - bend * across


def _clear(start: Point, control: Point, end: Point, spot: Point) -> bool:
    """Whether the curve passes a device at a distance."""
    for step in range(1, 16):
        t = step / 16
        x, y = (a * (1 - t) ** 2 + 2 * b * t * (1 - t) + c * t**2 for a, b, c in zip(start, control, end, strict=True))
        if math.hypot(x - spot[0], y - spot[1]) < 1.4 * _NODE:
            return False
    return True


def _ring(axes: Axes, ring: tuple[Spot, ...], places: dict[int, Point]) -> None:
    from matplotlib.patches import Circle

    centre = [sum(places[spot.slot][side] for spot in ring) / len(ring) for side in (0, 1)]
    for spot in ring:
        x, y = places[spot.slot]
        axes.add_patch(Circle((x, y), _NODE, facecolor=spot.colour, edgecolor=_INK, linewidth=1, zorder=5))
        style: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6}
        ink = "white" if spot.colour in _WHITE_ON else _INK
        axes.text(x, y, str(spot.device), fontsize=9, fontweight="bold", color=ink, **style)
        if spot.rank is not None:
            away = math.atan2(y - centre[1], x - centre[0]) if len(ring) > 1 else -math.pi / 2
            far = _NODE + 0.11 + 0.1 * abs(math.cos(away))
            axes.text(x + far * math.cos(away), y + far * math.sin(away), f"r{spot.rank}", fontsize=7, **style)


def _between(axes: Axes, servers: int, grid: _Grid) -> None:
    """A dotted line along each row and one down the left: every server reaches every other."""
    for at in range(1, servers):
        (x, y), across = grid.corner(at), at % grid.columns > 0
        if across:
            ends = ((x - 0.1, x + 0.1), (y + grid.high / 2,) * 2)
        else:
            ends = ((x + grid.wide / 2,) * 2, (y + grid.high - 0.1, y + grid.high + 0.1))
        axes.plot(*ends, linestyle=":", color=_BETWEEN, linewidth=2.5, zorder=0.5)


def _marks(scene: Scene) -> list[tuple[dict[str, Any], str]]:
    """How each line of the legend is drawn, and its text."""
    cluster = scene.cluster
    marks: list[tuple[dict[str, Any], str]] = []
    if any(len(ring) > 1 for server in scene.servers for ring in server):
        marks.append(({"color": _INK, "linewidth": 2.4}, "order of a ring"))
    for (kind, fast), style in _styles(scene).items():
        marks.append((style, f"{kind}, {'fast' if fast else 'slow'}: {cluster.links[kind].bandwidth / 1e9:g} GB/s"))
    firsts = [server[0][0].slot for server in scene.servers]
    for kind in dict.fromkeys(cluster.kind(firsts[0], other) for other in firsts[1:]):
        text = f"{kind}, between servers: {cluster.links[kind].bandwidth / 1e9:g} GB/s"
        marks.append(({"color": _BETWEEN, "linewidth": 2.5, "linestyle": ":"}, text))
    return marks


def _legend(axes: Axes, marks: list[tuple[dict[str, Any], str]], top: float) -> None:
    for number, (style, text) in enumerate(marks):
        y = top - _LINE * number
        axes.plot((0.2, 0.75), (y, y), **style)
        axes.text(0.9, y, text, va="center", fontsize=8.5)


def _title(scene: Scene) -> str:
    cluster, shown = scene.cluster, len(scene.servers)
    servers = f"{len(cluster.servers)} server" + ("s" if len(cluster.servers) > 1 else "")
    part = f", the first {shown} shown" if shown < len(cluster.servers) else ""
    text = f"{cluster.name}: {cluster.size} devices ({cluster.accelerator.name}) in {servers}{part}. "
    groups = [spot.group for server in scene.servers for ring in server for spot in ring]
    ranked = any(spot.rank is not None for server in scene.servers for ring in server for spot in ring)
    text += f"Numbers: device ids{', and ranks after r' if ranked else ''}. Colour: {scene.what}"
    text += ", again the same after ten" if max((group or 0 for group in groups), default=0) >= len(COLOURS) else ""
    return text + ("; grey: no rank." if None in groups else ".")
