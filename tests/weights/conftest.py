"""Shared by the weight tests: their helper module and small models on disk."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def hf_dir(tmp_path):
    """A function that writes a tiny Hugging Face directory and returns its path."""
    from weights_files import write_hf

    return lambda name="model", **options: write_hf(tmp_path / name, **options)


@pytest.fixture
def gguf_file(tmp_path):
    """A function that writes a tiny GGUF file and returns its path."""
    from weights_files import write_gguf

    return lambda name="model.gguf", **options: write_gguf(tmp_path / name, **options)
