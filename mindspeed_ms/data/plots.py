"""A set's lengths, padding, sources and cleaning as a picture, and its lengths as lines of text."""

from __future__ import annotations

import math
import os
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed_ms.data.inspect import Inspection
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.paths import partial_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REAL, _PADDING, _INK, _MARK = "#2f6db3", "#d9dee5", "#333333", "#c2410c"
_MOST_SOURCES = 12
_MOST_NAMED = 16  # buckets; of more, the names and shares would cover one another
# matplotlib takes the first of these that is installed for each character.
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "SimHei")


def histogram(lengths: Sequence[tuple[int, int, int]], per_octave: int) -> list[tuple[int, int, int, int]]:
    """The bars of a histogram over a logarithmic axis: first length, last length, documents, tokens.

    lengths: longest length of a bin, documents, tokens; a bin counts where its longest length is. Bars end at powers of
    2 and at `per_octave` even steps from one to the next, of which manifests have 8. From the shortest to the longest
    length there is a bar for each step, also an empty one.
    """
    filled = [entry for entry in lengths if entry[1]]
    if not filled:
        return []
    octaves = range(filled[-1][0].bit_length() + 1)
    ends = sorted({(per_octave + step << octave) // per_octave for octave in octaves for step in range(per_octave)})
    shortest, longest = bisect_left(ends, filled[0][0]), bisect_left(ends, filled[-1][0])
    bars = [[first + 1, last, 0, 0] for first, last in pairwise([0, *ends])][shortest : longest + 1]
    for upto, documents, tokens in filled:
        bar = bars[bisect_left(ends, upto) - shortest]
        bar[2] += documents
        bar[3] += tokens
    return [(first, last, documents, tokens) for first, last, documents, tokens in bars]


def text_histogram(found: Inspection, columns: int = 40, mark: str = "█") -> list[str]:
    """The lengths of the documents, a line for each step, and which steps hold the length of a row."""
    bars = histogram(found.lengths, per_octave=2)
    most = max((bar[2] for bar in bars), default=0)
    lines = []
    for first, last, documents, _ in bars:
        name = f"{first:,}" if first == last else f"{first:,}-{last:,}"
        size = max(1, round(documents * columns / most)) if documents else 0
        ends = [f"{bucket.length:,}" for bucket in found.buckets if first <= bucket.length <= last]
        note = f"  < row of {' and '.join(ends)}" if ends else ""
        lines.append(f"{name:>17}  {mark * size:<{columns}} {documents:>12,}{note}".rstrip())
    return lines


def plot_set(found: Inspection, path: str | Path) -> None:
    """Draw lengths with the buckets' boundaries, padding by bucket, tokens by source and what cleaning did: PNG or SVG.

    Raises ConfigError when matplotlib is not there or the file's name ends otherwise, DataError when it cannot be
    written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"{path}: a plot is written as .png or .svg; give a name that ends so")
    try:
        import matplotlib
        from matplotlib import font_manager
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("matplotlib is not installed; run pip install 'mindspeed-ms[data]'") from None
    with matplotlib.rc_context(_style(set(font_manager.get_font_names()))):
        figure = Figure(figsize=(13, 8), layout="constrained")
        figure.suptitle(_title(found), fontsize=11.5, x=0.01, ha="left")
        grid = figure.add_gridspec(2, 3, height_ratios=[1.15, 1], width_ratios=[1.2, 1, 1])
        _draw_lengths(figure.add_subplot(grid[0, :]), found)
        _draw_padding(figure.add_subplot(grid[1, 0]), found)
        _draw_sources(figure.add_subplot(grid[1, 1]), found)
        _draw_cleaning(figure.add_subplot(grid[1, 2]), found)
        _save(figure, path)


def _settle(figure: Figure) -> None:
    """Lay the picture out and keep it so: the last digits of a layout are not the same every time it is solved."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def _style(installed: set[str]) -> Any:
    return {
        "font.family": [name for name in _FONTS if name in installed] or ["sans-serif"],
        "text.parse_math": False,  # a "$" in a source's name is a "$"
        "svg.fonttype": "none",
        "svg.hashsalt": "mindspeed-ms",  # the same set gives the same file
        "font.size": 9.5,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": "#9aa3ad",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def _title(found: Inspection) -> str:
    return (
        f"{_shorten(Path(found.path).name or found.path)}: {found.documents:,} documents, {found.tokens:,} tokens in "
        f"{found.rows:,} rows; {found.padding_share:.1%} padding, {found.padding_to_longest:.1%} if padded "
        "to the longest"
    )


def _draw_lengths(axes: Axes, found: Inspection) -> None:
    bars = histogram(found.lengths, per_octave=8) or [(1, 1, 0, 0)]
    edges = [bars[0][0] - 0.5, *(bar[1] + 0.5 for bar in bars)]
    # By the doubling, since the axis is logarithmic: areas are then shares, however the edges were rounded.
    doublings = [math.log2(after / first) for first, after in pairwise(edges)]
    styles: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (2, "documents", {"color": _REAL, "fill": True}),
        (3, "tokens", {"color": _INK, "linewidth": 1.4}),
    )
    for column, name, style in styles:
        whole = sum(bar[column] for bar in bars) or 1
        heights = [bar[column] / whole / width for bar, width in zip(bars, doublings, strict=True)]
        axes.stairs(heights, edges, label=f"share of {name}", **style)
    axes.set_xscale("log", base=2)
    axes.set_title("Documents by length; dashed: the lengths of rows", loc="left", fontsize=10.5)
    axes.set_xlabel("tokens of a document")
    axes.set_ylabel("share per doubling of length")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.margins(y=0.12)
    for bucket in found.buckets:
        axes.axvline(bucket.length, color=_MARK, linestyle=(0, (4, 3)), linewidth=1)
        if len(found.buckets) > _MOST_NAMED:
            continue
        axes.annotate(
            f"{bucket.length:,}",
            (bucket.length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            rotation=90,
            va="top",
            color=_MARK,
            fontsize=8.5,
        )


def _draw_padding(axes: Axes, found: Inspection) -> None:
    names = [f"{bucket.length:,}" for bucket in found.buckets]
    tokens = [bucket.tokens for bucket in found.buckets]
    padding = [bucket.rows * bucket.length - bucket.tokens for bucket in found.buckets]
    axes.bar(names, tokens, color=_REAL, label="tokens", width=0.7)
    axes.bar(names, padding, bottom=tokens, color=_PADDING, label="padding", width=0.7)
    for at, bucket in enumerate(found.buckets if len(names) <= _MOST_NAMED else []):
        if not bucket.rows:
            continue
        top = (at, tokens[at] + padding[at])
        share = f"{bucket.padding_share:.1%}"
        axes.annotate(share, top, xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8.5)
    axes.set_xlim(-0.6, max(len(names), 4) - 0.4)  # one bar alone would be as wide as the picture
    axes.set_title("Tokens and padding by row; above: its share", loc="left", fontsize=10.5)
    axes.set_xlabel("tokens of a row")
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8.5)
    if len(names) > _MOST_NAMED // 2:
        axes.tick_params(axis="x", rotation=90, labelsize=9.5 if len(names) <= _MOST_NAMED else 6)


def _draw_sources(axes: Axes, found: Inspection) -> None:
    ordered = sorted(found.sources, key=lambda source: source.tokens, reverse=True)
    bars = [(source.name, source.tokens, source.tokens_share) for source in ordered[:_MOST_SOURCES]]
    rest = ordered[_MOST_SOURCES:]
    if rest:
        name = f"{len(rest)} more"
        bars.append((name, sum(source.tokens for source in rest), sum(source.tokens_share for source in rest)))
    _draw_bars(axes, [(_shorten(name), tokens, f"{share:.1%}") for name, tokens, share in bars])
    axes.set_title("Tokens by source", loc="left", fontsize=10.5)
    axes.set_xlabel("tokens")


def _draw_cleaning(axes: Axes, found: Inspection) -> None:
    """What was kept, the copies, even if there were none, and what else the rules found."""
    counts = dict(found.cleaning)
    counts.pop("documents_read", None)
    copies = {rule: counts.pop(rule, 0) for rule in ("exact_duplicates", "near_duplicates")}
    others = sorted(((rule, count) for rule, count in counts.items() if count), key=lambda rule: rule[1], reverse=True)
    bars = [("kept", found.documents), *copies.items(), *others]
    _draw_bars(axes, [(name.replace("_", " "), count, f"{count:,}") for name, count in bars], [_REAL, _MARK])
    axes.set_title("What cleaning found", loc="left", fontsize=10.5)
    axes.set_xlabel("documents")


def _draw_bars(axes: Axes, bars: list[tuple[str, int, str]], colours: Sequence[str] = (_REAL,)) -> None:
    """Bars across, each with its name and a note at its end; the last colour is that of all further ones."""
    places = range(len(bars))
    shown = [colours[min(at, len(colours) - 1)] for at in places]
    axes.barh(places, [value for _, value, _ in bars], color=shown, height=0.7)
    axes.set_yticks(places, [name for name, _, _ in bars])
    axes.set_ylim(max(len(bars), 4) - 0.4, -0.6)
    for at, (_, value, note) in enumerate(bars):
        axes.annotate(note, (value, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.margins(x=0.2)


def _save(figure: Figure, path: Path) -> None:
    partial = partial_path(path)
    kind = path.suffix.lower().removeprefix(".")
    try:
        with warnings.catch_warnings():
            # A PNG has a box for a character that no font here has; an SVG leaves it to the fonts of its reader.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            _settle(figure)
            figure.savefig(partial, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        os.replace(partial, path)
    except OSError as error:
        raise DataError(f"{path}: the plot cannot be written ({error.strerror}); give another place") from None
    finally:
        partial.unlink(missing_ok=True)


def _shorten(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:10]}…{name[-21:]}"


def _short(value: float) -> str:
    """12k, 3.4M: what fits beside an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"
