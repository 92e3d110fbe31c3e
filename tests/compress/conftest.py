"""Shared by the compression tests: tiny models on disk, and the real one if it was pulled."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "weights"))


@pytest.fixture
def smollm2():
    """The pulled SmolLM2 GGUF: MINDSPEED_MS_SMOLLM2, or where `mindspeed-ms pull smollm2` puts it."""
    from mindspeed_ms.paths import cache_dir
    from mindspeed_ms.weights.pull import MODELS

    path = Path(os.environ.get("MINDSPEED_MS_SMOLLM2") or cache_dir() / "models" / MODELS["smollm2"].filename)
    if not path.is_file():
        pytest.skip("no SmolLM2 here: mindspeed-ms pull smollm2")
    return path
