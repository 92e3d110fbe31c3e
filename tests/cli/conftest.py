"""One folder of trained runs for all tests of the checkpoint commands; who changes a run copies it."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    from checkpoint_runs import make_runs

    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the run of all weights."""
    shutil.copytree(runs / "run", tmp_path / "run")
    return tmp_path / "run"
