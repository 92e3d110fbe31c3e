"""The page: whole, self-contained, and deaf to what a model says."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_runs import CONFIG, start, step, whole_run, write_lines

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.report.page import page, write_report
from mindspeed_ms.report.read import read_run

VOID = {"meta", "line", "rect", "circle", "path"}


class Reader(HTMLParser):
    """Elements with their attributes, the text of each kind of element, and whether all are closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def find(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]


def read(runs):
    return Reader(page(runs))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first = read_run(write_lines(folder / "first", whole_run(200, 1)))
    return first, read_run(write_lines(folder / "second", whole_run(150, 2, speed=2.0)))


def test_a_page_has_a_section_for_everything_that_was_written(two):
    found = read(two[:1])
    assert [text for text in found.texts["h2"]] == [
        "Curves",
        "Where the time went",
        "Rows",
        "Samples",
        "Held-out data",
        "Skipped steps",
        "Compilations",
        "Checkpoints",
        "Circumstances",
    ]
    titles = ["Loss", "Gradient norm, before clipping", "Learning rate", "Tokens a second, without padding"]
    titles += ["Seconds a step", "Resident memory, GiB", "Places by length of row"]
    assert found.texts["figcaption"] == titles
    cells = found.texts["td"]
    for text in (
        "first batch of [8, 64]",
        "[8, 64]",
        "at model.layers.1.mlp",
        "length 64, rows 17, 4; length 128, rows 9",
        "LinearCrossEntropy",
    ):
        assert text in cells
    assert {"processor", "a processor", "optimizer.name", "adamw", "architecture", "llama"} <= set(cells)


def test_a_page_needs_nothing_from_anywhere(two):
    found = read(two)
    policy = found.find("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; ") and "script-src 'sha256-" in policy
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & {tag for tag, _ in found.elements}
    for _, attributes in found.elements:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes)
    assert "url(" not in "".join(found.texts["style"]) and "@import" not in "".join(found.texts["style"])


def test_curves_are_drawn_where_their_values_are(tmp_path):
    lines = [step(number, loss) for number, loss in ((1, 4.0), (2, 2.0), (5, 3.0))]
    found = read([read_run(write_lines(tmp_path / "run", lines))])
    plot = json.loads(next(svg["data-plot"] for svg in found.find("svg") if svg["aria-label"] == "Loss"))
    assert plot["x"] == [1, 5]
    (curve,) = plot["curves"]
    assert (curve["x"], curve["y"]) == ([1, 2, 5], [4, 2, 3])
    paths = [path["d"] for path in found.find("path") if path["class"] == "curve line run0"]
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", paths[0])[1:]]
    across = [(x - plot["left"]) / (plot["right"] - plot["left"]) for x, _ in points]
    assert across == pytest.approx([0, 0.25, 1], abs=1e-3)
    (_, four), (_, low), (_, three) = points
    assert plot["top"] <= four < three < low <= plot["bottom"]
    assert three == pytest.approx((four + low) / 2, abs=0.11)


def test_clipped_and_skipped_steps_are_marked(tmp_path):
    lines = [step(number, clipped=number in (3, 4), skipped=number == 6) for number in range(1, 11)]
    found = read([read_run(write_lines(tmp_path / "run", lines))])
    marks = {kind: [path["d"] for path in found.find("path") if path["class"] == kind] for kind in ("clip", "skip")}
    assert [path.count("M") for path in marks["clip"]] == [2]
    assert [path.count("M") for path in marks["skip"]] == [1, 1]  # in the loss, and in the gradient's norm


def test_two_runs_are_told_apart_and_their_difference_is_said(two):
    found = read(two)
    text = page(two)
    assert {"first", "second"} <= set(found.texts["th"])
    assert "run1" in "".join(str(attributes.get("class")) for attributes in found.find("path"))
    assert "Side by side" in found.texts["h2"]
    table = text[text.index("Side by side") :]
    row = re.search(r"tokens a second, median</td>(.*?)</tr>", table)[1]
    first, second, change = re.findall(r">([\d.,]+)[<×]", row)
    assert float(change) == pytest.approx(float(second.replace(",", "")) / float(first.replace(",", "")), abs=2e-3)
    assert float(change) == pytest.approx(2, abs=0.2) and 'class="good"' in row


def test_what_two_runs_were_asked_differently_is_shown_first(tmp_path):
    first = write_lines(tmp_path / "a", [start(run={"seed": 1, "steps": 9}, optimizer={"name": "adamw"}), step(1)])
    second = write_lines(tmp_path / "b", [start(run={"seed": 2, "steps": 9}, optimizer={"name": "lion"}), step(1)])
    text = page([read_run(first), read_run(second)])
    part = text[text.index("Configuration: what differs") : text.index("Configuration: all")]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", part) == ["run.seed", "1", "2", "optimizer.name", "adamw", "lion"]


HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "]]><!-- </style></title></pre>",
    "&lt;b&gt; &#60;",
    "\x00\x08\x1b[31m\x7f\u202eevil\u2066",
    "\ud800 lone",
    "${alert(1)} {{7*7}}",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_run_says_stays_text(tmp_path, text):
    name = re.sub(r"[/\x00\ud800]", "", text)[:100]
    plain = set()
    for folder, said in (("plain", "word"), (name, text)):
        lines = [
            start(**CONFIG, extra={said: said}),
            {"kind": "compile", "step": 1, "graph": said, "shapes": said, "reason": said, "seconds": said},
            step(1, epoch=said),
            step(2, 3.0),
            {"kind": "skip", "step": 2, "reason": said, "samples": [said]},
            {"kind": "sample", "step": 2, "prompt": said, "text": said},
            {"kind": "operators", "step": 2, "operators": {said: [1.0, 2]}},
            {"kind": "resume", "step": 2, "changes": [said]},
            {"kind": "eval", "step": 2, "loss": 1.0, "perplexity": said},
            {"kind": "end", "step": 2, "reason": said},
        ]
        run = read_run(write_lines(tmp_path / folder, lines))
        found = read([run, run])
        shape = [(tag, tuple(attributes)) for tag, attributes in found.elements]
        if not plain:
            plain = shape
    assert shape == plain, "no element and no attribute more than of a harmless run"
    encoded = page([run]).encode()  # which lone surrogates would make an error of
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", encoded)
    assert "\u202e" not in encoded.decode()
    assert len(encoded) < 2_000_000


def test_a_run_without_a_step_has_a_page(tmp_path):
    found = read([read_run(write_lines(tmp_path / "run", [start(**CONFIG)]))])
    assert "nothing to show yet" in found.texts["p"]
    assert " running, or killed: before its first step" in found.texts["p"]


def test_a_hundred_thousand_steps_are_few_points_and_seconds(tmp_path):
    rng = np.random.default_rng(0)
    losses, lengths = rng.normal(3, 0.2, 100_000).round(4).tolist(), rng.choice([64, 128, 256], 100_000).tolist()
    lines = [step(number + 1, losses[number], length=lengths[number]) for number in range(100_000)]
    folder = write_lines(tmp_path / "run", lines)
    begin = time.process_time()
    write_report([folder], tmp_path / "page.html")
    assert time.process_time() - begin < 30  # 2 to 3 where nothing else runs
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    plot = json.loads(next(svg["data-plot"] for svg in Reader(text).find("svg") if svg["aria-label"] == "Loss"))
    shown = plot["curves"][0]["y"]
    assert len(shown) < 1000
    assert min(shown) == pytest.approx(min(losses), rel=1e-4) and max(shown) == pytest.approx(max(losses), rel=1e-4)


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    folders = [write_lines(tmp_path / parent / "run", [start(), step(1)]) for parent in ("a", "b")]
    text = page([read_run(folder) for folder in folders])
    assert '<th class="number">a/run</th>' in text and '<th class="number">b/run</th>' in text


def test_a_page_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    folder = write_lines(tmp_path / "run", [start(), step(1)])
    with pytest.raises(ConfigError, match=r"none/page\.html: the page cannot be written \(No such file or directory\)"):
        write_report([folder], tmp_path / "none" / "page.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="the page cannot be written"):
        write_report([folder], tmp_path / "folder")
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["folder", "run"]
