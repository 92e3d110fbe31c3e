"""The commands of docs/plan.md, in their order, as somebody who reads the page would run them."""

import json
import re
import sys
from pathlib import Path

import pytest

from mindspeed_ms.parallel.plan import plan_file
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.rings import tensor_groups
from mindspeed_ms.parallel.topology.rank_table import read_rank_table
from mindspeed_ms.parallel.topology.rings import find_rings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from page_runs import run_page  # noqa: E402

PAGE = ROOT / "docs" / "plan.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which everything on the page was run, and what that printed."""
    folder = tmp_path_factory.mktemp("plan")
    return folder, run_page(PAGE, folder)


def test_the_page_runs_from_its_first_command_to_its_last(place):
    folder, out = place
    assert "4 2 16\n[0, 1, 2, 3]" in out.replace("(0, 1, 2, 3)", "[0, 1, 2, 3]")
    assert (folder / "server.png").read_bytes().startswith(b"\x89PNG")
    assert "not written" not in out.split("plan.json  ")[1]


def test_every_file_of_its_table_is_there(place):
    folder, _ = place
    names = re.findall(r"`([\w*/.]+\.\w+)`", "\n".join(re.findall(r"^\| `.*", PAGE.read_text(), re.MULTILINE)[:9]))
    assert len(names) >= 9
    for name in names:
        where = [folder / "planned", folder / "planned" / "launch", folder / "planned" / "strategy"]
        assert any(list(one.glob(name.replace("_N", "_*"))) for one in where), name


def test_strategy_files_and_rank_order_alone_give_tensor_groups_that_each_lie_in_one_ring(place):
    folder, _ = place
    plan = plan_file.read(folder / "planned" / "plan.json")
    table = read_rank_table((folder / "planned" / "rank_table.json").read_text(), "rank_table.json")
    assert tuple(table.order) == plan.order
    files = [read_strategy(path) for path in sorted((folder / "planned" / "strategy").glob("*.ckpt"))]
    assert len(files) == plan.settings.pipeline == 2
    rings = [set(ring.slots) for ring in find_rings(plan.cluster)]
    groups = tensor_groups(files)
    assert set(groups) == set(plan.groups["tensor"])
    for group in groups:
        assert any({table.order[rank] for rank in group} <= ring for ring in rings)


def test_the_report_is_one_file_with_its_timeline_and_topology(place):
    folder, _ = place
    text = (folder / "planned" / "report.html").read_text(encoding="utf-8")
    assert "timeline of a step" in text and "data:image/png;base64," in text and "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_plan_json_is_what_the_page_says_to_the_byte(place):
    folder, _ = place
    data = (folder / "planned" / "plan.json").read_bytes()
    lines = data.decode().split("\n")
    keys = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8").split("## plan.json")[1], re.MULTILINE)
    assert lines[0] == "{" and lines[-2:] == ["}", ""]
    assert [re.match(r'"(\w+)": ', line)[1] for line in lines[1:-2]] == keys
    for line in lines[1:-2]:
        value = line.split(": ", 1)[1].removesuffix(",")
        assert json.dumps(json.loads(value), ensure_ascii=False, separators=(",", ":")) == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama2-7b", "--cluster", "910b", "--tensor", "3"], "tensor 3 = 3: the job has 8 devices"),
        (["llama2-70b", "--cluster", "910b"], "does not fit on 8 devices"),
        (["llama2-7b", "--cluster", "910b", "--schedule", "2f2b"], "expected one or more of gpipe"),
        (["llama2-7b", "--cluster", "910b", "--layers", "a,b"], "expected numbers of layers"),
        (["llama2-7b", "--cluster", "910b", "--memory", "much"], "expected a size with its unit, such as 58GB"),
        (["llama2-7b", "--cluster", "910b", "--memory", "58"], "expected a size with its unit, such as 58GB"),
        (["llama2-7b", "--cluster", "910b", "--strategy"], "give --out FOLDER"),
        (["no-such-model", "--cluster", "910b"], "no-such-model"),
        (["llama2-7b", "--cluster", "no-such-cluster"], "neither a file nor a preset"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, monkeypatch, capsys):
    from mindspeed_ms.cli.main import main

    monkeypatch.setattr(sys, "argv", ["mindspeed-ms", "plan", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1 and message in said
