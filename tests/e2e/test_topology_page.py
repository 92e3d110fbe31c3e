"""The commands of docs/topology.md, in their order, and what the page says that they print."""

import re
import sys
from pathlib import Path

import pytest

from mindspeed_ms.parallel.topology.links import link_table
from mindspeed_ms.parallel.topology.presets import TopologyConfig

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from page_runs import blocks, not_printed, run_page  # noqa: E402

PAGE = ROOT / "docs" / "topology.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which everything on the page was run, and what that printed."""
    folder = tmp_path_factory.mktemp("topology")
    return folder, run_page(PAGE, folder)


def test_the_page_runs_and_prints_what_it_shows(place):
    folder, out = place
    assert not_printed(PAGE, out) == []
    assert (folder / "910a.png").read_bytes().startswith(b"\x89PNG")


def test_its_pictures_are_small():
    for name in re.findall(r"\]\((images/[\w.-]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / name).stat().st_size < 150_000, name


def test_its_yaml_has_every_key_there_is():
    (example,) = [content for _, content in blocks(PAGE, "bash") if "box.yaml <<" in content]
    wanted, todo = set(), [TopologyConfig.model_json_schema()]
    while todo:
        one = todo.pop()
        wanted |= set(one.get("properties", {}))
        todo += one.get("$defs", {}).values()
    assert wanted - set(re.findall(r"(\w+):", example)) == {"matrix"}


def test_its_table_has_the_figures_of_every_link():
    rows = re.findall(r"^\| ([\w, ]+) \| ([\d.]+) \| (\d+) \| (yes|no) \| ", PAGE.read_text("utf-8"), re.MULTILINE)
    said = {name: rest for names, *rest in rows for name in names.split(", ")}
    for accelerator, ending in (("910B3", ""), ("910A", " of a 910A")):
        for kind, link in link_table(accelerator).items():
            found = said.get(kind + ending) or said[kind]
            shared = "yes" if link.shared else "no"
            assert found == [f"{link.bandwidth / 1e9:g}", f"{link.latency * 1e6:g}", shared], kind
