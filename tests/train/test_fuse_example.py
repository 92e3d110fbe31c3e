"""The example of docs/fuse.md, in small: the same rows give the same losses before and after the three changes."""

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--steps", "1", "--tokens-per-batch", "64", "--hidden", "32", "--layers", "1", "--heads", "2"]


def run(stage, folder):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/fuse_gpt.py"), str(folder), *SMALL, "--stage", stage],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_example_trains_to_the_same_loss_with_the_three_changes(tmp_path):
    sets = ROOT / "tests/data/data_sets.py"
    spec = importlib.util.spec_from_file_location("data_sets", sets)
    data_sets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data_sets)
    data_sets.make_set(tmp_path / "set", {16: 8, 32: 4})
    with ThreadPoolExecutor() as pool:
        (before, _), (after, report) = pool.map(lambda stage: run(stage, tmp_path / "set"), ("plain", "fuse"))
    # nn.Adam and AdamW without decay differ in where epsilon stands
    assert after["loss"] == pytest.approx(before["loss"], abs=1e-3)
    assert "left alone" not in report and "Attention(2 heads)" in report
