"""Tiny trained runs and the checkpoint commands, for tests of them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "train")]

from train_runs import command as train  # noqa: E402
from train_runs import make_data, settings, write_model, write_yaml  # noqa: E402


def command(*arguments, **options):
    """A checkpoint command as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "mindspeed_ms.cli.main", "checkpoint", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


def succeed(*arguments):
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments):
    """The one line of a refusal."""
    done = command(*arguments)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def make_runs(folder):
    """A run of all weights and one of adapters, 12 steps each, of the same data."""
    make_data(folder)
    write_model(folder / "base", folder)
    full = settings(folder, folder / "run", run__keep=3)
    lora = settings(
        folder, folder / "lora", model={"from": str(folder / "base")}, lora={"rank": 4, "targets": "all-linear"}
    )
    for name, values in (("run", full), ("lora", lora)):
        done = train(write_yaml(folder / f"{name}.yaml", values))
        assert done.returncode == 0, done.stderr
    return folder
