"""What `mindspeed-ms plan --out` leaves in its folder, on whatever was there."""

import json
import os
import re
import sys

import pytest
import typer
from typer.testing import CliRunner

from mindspeed_ms.cli.plan import plan
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.rank_table import read_rank_table

app = typer.Typer()
app.command()(plan)
# HCCS joins the even devices, and the odd ones: ranks in the order of a plan are not in that of msrun.
INTERLEAVED = """
name: interleaved
accelerator: 910B2
server:
  devices: 8
  joined:
    - kind: HCCS
      groups: [[0, 2, 4, 6], [1, 3, 5, 7]]
  otherwise: SYS
"""


def _run(cluster, out, *more):
    fixed = (
        "--tensor",
        4,
        "--data",
        2,
        "--pipeline",
        1,
        "--context",
        1,
        "--global-batch",
        8,
        "--seq",
        512,
        "--zero",
        1,
    )
    few = ("--no-sensitivity", "--top", 1, "--json")
    arguments = ["llama2-7b", "--cluster", cluster, "-o", out, *fixed, *few, *more]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.stdout, result.exception


@pytest.fixture
def interleaved(tmp_path):
    path = tmp_path / "interleaved.yaml"
    path.write_text(INTERLEAVED)
    return path


def test_every_file_gives_a_rank_the_same_device(interleaved, tmp_path):
    out = tmp_path / "job"
    assert _run(interleaved, out)[1] is None
    order = json.loads((out / "plan.json").read_text())["order"]
    assert sorted(order[:4]) == [0, 2, 4, 6]  # a tensor group inside one ring
    assert json.loads((out / "rings.json").read_text())["order"] == order
    assert list(read_rank_table(out / "rank_table.json").order) == order
    script = (out / "launch" / "node0.sh").read_text()
    assert f"ranks=(0 1 2 3 4 5 6 7)\ndevices=({' '.join(map(str, order))})\n" in script
    assert "msrun" not in (out / "launch" / "start_all.sh").read_text()
    assert not (out / "launch" / "job.sbatch").exists()


def test_a_plan_leaves_nothing_of_the_one_before(interleaved, tmp_path):
    out = tmp_path / "job"
    assert _run("910b", out)[1] is None
    assert (out / "launch" / "job.sbatch").exists()
    (out / "strategy").mkdir()
    for name in ("stage_3.ckpt", "stage_3.json", "mine.json"):
        (out / "strategy" / name).touch()
    (out / "notes.txt").touch()
    assert _run("910b", out, "--servers", 2, "--devices", 8)[1] is None
    assert not (out / "rank_table.json").exists()  # that of another cluster
    assert [path.name for path in (out / "strategy").iterdir()] == ["mine.json"]
    assert (out / "notes.txt").exists()


def test_a_folder_without_a_whole_plan_has_no_plan_json(interleaved, tmp_path):
    out = tmp_path / "job"
    assert _run("910b", out)[1] is None
    (tmp_path / "no.mindir").write_bytes(b"\x00" * 64)
    assert isinstance(_run("910b", out, "--graph", tmp_path / "no.mindir")[1], ConfigError)
    assert not (out / "plan.json").exists()


def test_without_matplotlib_all_but_the_pictures_is_written(tmp_path, monkeypatch):
    out = tmp_path / "job"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said, error = _run("910b", out)
    assert error is None
    (line,) = [line for line in json.loads(said)["not_written"] if "matplotlib" in line]
    assert line.startswith("topology.svg: ") and "pip install" in line
    assert not (out / "topology.svg").exists()
    for name in ("plan.json", "topology.dot", "rank_table.json", "launch/node0.sh"):
        assert (out / name).exists(), name
    page = (out / "report.html").read_text()
    assert "matplotlib is not installed" in page and "<svg" in page and "<img" not in page


def test_pictures_show_the_chattiest_groups_that_there_are(tmp_path):
    options = ("--tensor", 1, "--data", 2, "--context", 4, "--memory", "999GB")
    assert _run("910b", tmp_path, *options)[1] is None
    page = (tmp_path / "report.html").read_text()
    assert re.findall(r"<figcaption>(\w+) groups", page) == ["context", "data"]
    assert "Colour: context group" in (tmp_path / "topology.svg").read_text()


def test_a_server_too_large_to_draw_has_a_plan_all_the_same(tmp_path):
    large = tmp_path / "large.yaml"
    large.write_text("accelerator: 910B2\nserver:\n  devices: 80\n  otherwise: HCCS\n")
    said, error = _run(large, tmp_path / "job", "--devices", 8)
    assert error is None
    assert any("cannot be drawn" in line for line in json.loads(said)["not_written"])


@pytest.mark.parametrize(
    ("config", "message"),
    [(None, "llama2-7b is a name"), ({"model_type": "qwen3_moe"}, "'qwen3_moe' is not supported")],
)
def test_a_network_that_cannot_be_exported_is_told_before_the_search(tmp_path, monkeypatch, config, message):
    from mindspeed_ms.parallel.plan import planner

    monkeypatch.setattr(planner, "make_plan", lambda *_, **__: pytest.fail("searched"))
    model = "llama2-7b"
    if config:
        sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=128, num_experts=4)
        sizes |= dict(moe_intermediate_size=64, num_experts_per_tok=2, intermediate_size=128)
        model = tmp_path / "config.json"
        model.write_text(json.dumps(sizes | config))
    arguments = [str(model), "--cluster", "910b", "-o", str(tmp_path / "job"), "--strategy"]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, ConfigError) and message in str(error)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("run", ["'", "", "--sim_level=0 train.py"])
def test_a_command_that_is_none_is_refused_before_anything_is_written(tmp_path, run):
    error = _run("910b", tmp_path / "job", "--run", run)[1]
    assert isinstance(error, ConfigError)
    assert "--run" in str(error)
    assert not (tmp_path / "job").exists()


def test_a_place_that_cannot_hold_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    error = _run("910b", tmp_path / "file" / "job")[1]
    assert isinstance(error, ConfigError)
    assert str(tmp_path / "file") in str(error)
    assert os.listdir(tmp_path) == ["file"]


def test_the_mindformers_file_of_a_plan_fixes_that_plan_again_and_options_win_over_it(interleaved, tmp_path):
    first, problem = _run(interleaved, tmp_path / "first")
    assert problem is None
    file = tmp_path / "first" / "mindformers.yaml"
    base = ["llama2-7b", "--cluster", interleaved, "--seq", 512, "--no-sensitivity", "--top", 1, "--json"]

    def again(*more):
        return CliRunner().invoke(app, [str(one) for one in (*base, "--mindformers", file, *more)])

    settings = json.loads(first)["settings"]
    assert json.loads(again().stdout)["settings"] == settings
    other = json.loads(again("--recompute", "full").stdout)["settings"]
    assert other["recompute"] == "full" and other["tensor"] == settings["tensor"] == 4
    assert "devices" in str(again("--tensor", 2).exception)
    file.write_text("parallel_config: {model_parallel: 0}")
    assert "parallel_config.model_parallel: 0" in str(again().exception)
