"""Pieces of a page, in which whatever comes from a run is escaped, and numbers as a person reads them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

_MOST_CHARS = 20_000  # of one text
# Control characters have pictures of their own in Unicode; HTML has no way to write them.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_PICTURES |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)} | {
    # Marks that turn the direction of all that follows, beyond the text they are in
    code: f"\\u{code:04x}"
    for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class Markup(str):
    """Text that is HTML already."""


def escape(value: Any) -> Markup:
    """Text as HTML, also inside quotes; Markup stays what it is."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    if len(text) > _MOST_CHARS:
        text = f"{text[:_MOST_CHARS]} … ({len(text) - _MOST_CHARS:,} more characters)"
    return Markup(html.escape(text.translate(_PICTURES).encode("utf-8", "replace").decode()))


def join(parts: Iterable[str]) -> Markup:
    """Pieces of HTML, one after the other."""
    return Markup("".join(parts))


def tag(name: str, content: Any = "", **attributes: Any) -> Markup:
    """An element; an attribute's name may end in `_` (class_), its `_` are `-`, and None leaves it out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{escape(content)}</{name}>")


def section(title: str, *content: str, note: str = "") -> Markup:
    """A part of the page with its heading and, below it, what one should know to read it."""
    parts = [tag("h2", title), tag("p", note, class_="note") if note else "", *content]
    return tag("section", join(parts))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], text_columns: int = 1) -> Markup:
    """A table whose first columns are text and whose others are numbers, to the right."""
    kinds = ["text" if at < text_columns else "number" for at in range(len(head))]
    top = join(tag("th", name, class_=kind) for name, kind in zip(head, kinds, strict=True))
    body = join(
        tag("tr", join(tag("td", value, class_=kind) for value, kind in zip(row, kinds, strict=True))) for row in rows
    )
    whole = tag("table", join([tag("thead", tag("tr", top)), tag("tbody", body)]))
    return tag("div", whole, class_="wide")


def bar(share: float, run: int) -> Markup:
    """A bar of a share of the space that a table's cell gives it."""
    width = 100 * min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    return tag("div", class_=f"bar run{run}", style=f"width:{width:.2f}%")


def amount(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, with thousands set apart; "-" where there is none."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float) -> str:
    """A share in percent."""
    return "-" if not math.isfinite(value) else f"{value:.1%}"


def size(value: float) -> str:
    """Bytes in a unit that fits."""
    if not math.isfinite(value):
        return "-"
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= limit:
            return f"{amount(value / limit)} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{amount(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
