"""Draw the losses of a run as an SVG file that a page can show: `python scripts/loss_curve.py RUN OUT.svg`."""

import re
import sys
from pathlib import Path

from mindspeed_ms.report.chart import HEIGHT, WIDTH, Curve, line_chart
from mindspeed_ms.report.read import read_run
from mindspeed_ms.report.series import moving_mean, window

# Readable on a light and on a dark page: it brings its own ground.
STYLE = """
svg { background: #ffffff; font-family: system-ui, sans-serif; }
text { fill: #62615d; font-size: 12px; } .left { text-anchor: end; } .below { text-anchor: middle; }
.grid { stroke: #e2e1dc; } .axis { stroke: #b9b8b2; }
path { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { stroke-width: 1; opacity: 0.35; }
path.run0 { stroke: #2a78d6; } path.run1 { stroke: #d9622b; } circle.run1 { fill: #d9622b; }
text.run0 { fill: #2a78d6; } text.run1 { fill: #d9622b; }
"""


def main(folder: str, out: str) -> None:
    run = read_run(folder)
    steps, loss = run.steps["step"], run.steps["loss"]
    width = window(len(steps))
    held_out_steps, held_out = run.of("eval", "loss")
    curves = [
        Curve("each step", steps, loss, 0, "faint"),
        Curve("mean", steps, moving_mean(loss, run.steps["tokens"], width), 0),
        Curve("held out", held_out_steps, held_out, 1, "points"),
    ]
    chart = line_chart("Loss", curves)
    drawn = re.search(r"<svg [^>]*>(.*)</svg>", chart, re.DOTALL).group(1)
    names = [("run0", f"training, each step and mean of {width}"), ("run1", "held out")]
    legend = "".join(
        f'<text class="left {kind}" x="{WIDTH - 30}" y="{26 + 17 * line}">{name}</text>'
        for line, (kind, name) in enumerate(names)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Loss by step">'
    )
    Path(out).write_text(f"{head}<style>{STYLE}</style>{drawn}{legend}</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
