"""Shared by the bundle tests: tiny models on disk, one bundle to copy and damage, a cache of the tests' own."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "weights")]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A function that writes a tiny Hugging Face directory once a set of settings and returns its path."""
    from weights_files import write_hf

    folder, known = tmp_path_factory.mktemp("models"), {}

    def write(**settings):
        key = repr(sorted(settings.items()))
        if key not in known:
            known[key] = write_hf(folder / str(len(known)), **settings)
        return known[key]

    return write


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Arenas and bundles go to a folder of this test; the kernel library stays where it is built."""
    from mindspeed_ms.ops.native import build

    library = build.library_path()
    monkeypatch.setattr(build, "library_path", lambda: library)
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def exported(models, tmp_path_factory):
    """A tiny bundle of float weights; do not change it."""
    from mindspeed_ms.export.bundle import export_bundle

    path = tmp_path_factory.mktemp("exported") / "bundle"
    export_bundle(models(), path)
    return path


@pytest.fixture
def bundle(exported, tmp_path):
    """A copy of the tiny bundle, to be damaged."""
    return Path(shutil.copytree(exported, tmp_path / "bundle"))
