"""The short forms of the real runs of docs/real-runs.md, each by its one command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script, out, **more):
    """Its output; the environment of the tests is used and none is made."""
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / script), "--short", str(out)],
        env={**os.environ, "MINDSPEED_MS_ENVIRONMENT": sys.executable, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poems", "english"])
def test_a_model_from_nothing(name, tmp_path):
    # Without npm on the way: the short form fetches nothing.
    said = run(f"train_{name}.sh", tmp_path / "out", npm_config_registry="http://127.0.0.1:9")
    metrics = lines(tmp_path / "out" / "run" / "metrics.jsonl")
    losses = [line["loss"] for line in metrics if line["kind"] == "eval"]
    assert len(losses) == 2 and losses[1] < losses[0]
    assert {line["step"] for line in metrics if line["kind"] == "sample"} == {3, 6}
    assert (tmp_path / "out" / "run" / "report.html").stat().st_size > 10_000
    assert said.partition("== Let it write\n")[2].strip()
    drawn = tmp_path / "loss.svg"
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "loss_curve.py"), str(tmp_path / "out" / "run"), str(drawn)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert drawn.read_text(encoding="utf-8").count("<circle") == 2, "a dot for each held-out loss"


def model():
    from mindspeed_ms.paths import cache_dir
    from mindspeed_ms.weights.pull import MODELS

    return Path(os.environ.get("MINDSPEED_MS_SMOLLM2") or cache_dir() / "models" / MODELS["smollm2"].filename)


@pytest.mark.slow
@pytest.mark.skipif(not model().is_file(), reason="no SmolLM2 here: mindspeed-ms pull smollm2")
def test_a_chat_model_learns_another_manner(tmp_path):
    run("tune_smollm2.sh", tmp_path / "out", MINDSPEED_MS_SMOLLM2=str(model()))
    answers = lines(tmp_path / "out" / "answers.jsonl")
    before, after = ([line["answer"] for line in answers if line["model"] == name] for name in ("before", "after"))
    assert len(before) == len(after) == 2
    assert all(before) and all(after) and before != after
