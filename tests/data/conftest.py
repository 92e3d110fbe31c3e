"""Helper modules of these tests (data_*.py) are imported by their bare names."""

import gc
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def no_thread_stays():
    """That no loader of a test leaves its thread behind."""
    from data_batches import producers

    yield
    gc.collect()
    for _ in range(100):
        if not producers():
            return
        time.sleep(0.02)
    raise AssertionError(f"still running: {producers()}")
