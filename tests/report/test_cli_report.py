"""mindspeed-ms report, as a shell runs it."""

import json

import pytest
from report_runs import whole_run, write_lines
from typer.testing import CliRunner

from mindspeed_ms.cli.report import app
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.train.metrics import MetricsWriter


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folders(tmp_path):
    return [write_lines(tmp_path / name, whole_run(60, seed)) for seed, name in enumerate(["first", "second"])]


def test_the_page_of_a_run_is_in_its_folder(folders):
    printed = run(folders[0])
    assert f"page  {folders[0] / 'report.html'}" in printed
    assert "complete: 60 of 200 steps" in printed and "held-out perplexity, last" in printed
    assert (folders[0] / "report.html").read_text().startswith("<!doctype html>")


def test_two_runs_make_one_page_about_both(folders, tmp_path):
    printed = run(*folders)
    assert f"page  {folders[0] / 'compare-second.html'}" in printed
    assert "first" in printed and "second" in printed
    run(*folders, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


def test_programs_get_a_line_of_json_for_each_run(folders, tmp_path):
    printed = run(*folders, "--json", "--out", tmp_path / "page.html")
    found = [json.loads(line) for line in printed.splitlines()]
    assert [entry["run"] for entry in found] == [str(folder) for folder in folders]
    assert found[0]["steps"] == 60 and found[0]["highest_grad_norm"] > 1
    assert {"train_loss", "perplexity", "tokens_per_second", "peak_rss_bytes", "state", "page"} <= set(found[1])


def test_no_page_is_made_of_a_folder_that_is_no_run(folders, tmp_path):
    with pytest.raises(ConfigError, match="so it is no run"):
        run(folders[0], tmp_path, "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_what_a_run_writes_is_what_the_report_reads(tmp_path):
    with MetricsWriter(tmp_path, op_times=iter([{}, {"Dense": (1.0, 4)}]).__next__) as writer:
        writer.write("start", 0, environment={}, model={}, data={}, config={"run": {"steps": 3}})
        writer.write("eval", 0, loss=2.0, perplexity=7.389, tokens=10, seconds=0.1)
        writer.write("skip", 1, reason="the loss is not finite", samples=[])
        writer.write("sample", 1, prompt="a", text="b", tokens=1, seconds=0.1)
        writer.write("checkpoint", 1, path=tmp_path, bytes=9, seconds=0.1)
        writer.write_operators(1)
        writer.write("end", 1, reason="interrupted", seconds=1.0)
    printed = run(tmp_path, "--json")
    assert json.loads(printed)["perplexity"] == 7.389
    page = (tmp_path / "report.html").read_text()
    for part in ("Skipped steps", "Samples", "Checkpoints", "Native operators", "interrupted: before its first step"):
        assert part in page
