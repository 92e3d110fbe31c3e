"""The page: one file of HTML that needs nothing else, with its styles and its script inside."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.paths import partial_path
from mindspeed_ms.report import tables
from mindspeed_ms.report.curves import curves
from mindspeed_ms.report.figures import state
from mindspeed_ms.report.html import Markup, escape, join, section, tag
from mindspeed_ms.report.read import Run, read_run
from mindspeed_ms.report.series import window


def write_report(folders: Sequence[str | Path], out: str | Path) -> list[Run]:
    """Write the page about one run, or about two beside each other; returns what was read of them.

    Raises ConfigError when a folder is no run, and when the page cannot be written.
    """
    runs = [read_run(folder) for folder in folders]
    content = page(runs).encode()
    out = Path(out)
    partial = partial_path(out)
    try:
        partial.write_bytes(content)
        os.replace(partial, out)
    except OSError as error:
        raise ConfigError(f"{out}: the page cannot be written ({error.strerror}); give another place") from None
    finally:
        if partial.exists():
            partial.unlink()
    return runs


def page(runs: Sequence[Run]) -> str:
    """The page about one or two runs."""
    names = run_names(runs)
    smooth = window(max(len(run.steps["step"]) for run in runs))
    prefixes = [f"{name}: " for name in names] if len(runs) > 1 else [""]
    body = [
        _header(runs, names),
        tables.summary(runs, names, smooth),
        section("Curves", curves(runs, prefixes, smooth)),
        tables.time_spent(runs, names),
        tables.lengths(runs, names),
        tables.samples(runs, names),
        tables.evaluations(runs, names),
        tables.skips(runs, names),
        tables.compilations(runs, names),
        tables.checkpoints(runs, names),
        tables.circumstances(runs, names),
    ]
    style, script = _asset("page.css"), _asset("page.js")
    # Whatever a sample says, a browser runs this script and no other, and fetches nothing.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", " and ".join(names)),
        f"<style>\n{style}</style>",
    ]
    content = [*head, tag("main", join(body)), f"<script>{script}</script>"]
    return '<!doctype html>\n<html lang="en">\n' + "\n".join(content) + "\n</html>\n"


def _header(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    lines = []
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        marks = f"; {run.damaged:,} damaged lines were left out" if run.damaged else ""
        lines.append(tag("p", join([tag("b", name, class_=f"run{at}"), escape(f" {state(run)}{marks}")])))
    return tag("header", join([tag("h1", " and ".join(names)), *lines]))


def run_names(runs: Sequence[Run]) -> list[str]:
    """What runs are called: by their folders; those of equal name get the folder above as well, and else a number."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(Path(run.folder.resolve().parent.name) / run.name) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({at})" for at, name in enumerate(names, 1)]
    return [name if len(name) <= 40 else f"{name[:18]}…{name[-20:]}" for name in names]


def _asset(name: str) -> str:
    return resources.files("mindspeed_ms.report").joinpath(name).read_text(encoding="utf-8")
