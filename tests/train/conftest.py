"""Shared by the training tests: their helper modules, and a step that is compiled once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def shared():
    """A step with one layer, untied, that tests begin anew with `fresh`."""
    from train_steps import SharedStep

    return SharedStep()


@pytest.fixture(scope="session")
def plain(shared):
    """(result, tensors) of each of STEPS, without any choice."""
    from train_steps import STEPS, run

    return run(shared.fresh(max_grad_norm=1.0), STEPS)
