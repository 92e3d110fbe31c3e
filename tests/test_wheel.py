"""The wheel holds what the tree holds: the symlinked rooms, kernels, protocol, page and type marker."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = {".py", ".cc", ".h", ".inl", ".proto", ".yaml", ".html", ".css", ".js", ".typed"}


def package_files(root: Path) -> set[str]:
    found = set()
    for folder, folders, files in os.walk(root / "mindspeed_ms", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found |= {str((Path(folder) / name).relative_to(root)) for name in files}
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, since building leaves folders behind."""
    copy = tmp_path_factory.mktemp("checkout")
    left = shutil.ignore_patterns("__pycache__", "*.so", "*.mindir", ".*", "*.egg-info")
    for name in ("mindspeed_ms", "ops", "parallel", "serving", "configs"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=left)
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    # The build back end itself, without an isolated environment: no network.
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_package_and_no_other(checkout, wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == package_files(checkout)


def test_the_package_holds_only_kinds_of_files_that_are_packaged(checkout):
    strays = {name for name in package_files(checkout) if Path(name).suffix not in PACKAGED and "py.typed" not in name}
    assert not strays, "add their suffix to package_data in setup.cfg, or keep them elsewhere"


def test_the_wheel_holds_the_rooms_that_are_symlinks_in_the_tree(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("ops/__init__.py", "ops/native/__init__.py", "parallel/__init__.py", "serving/engine/__init__.py"):
        assert f"mindspeed_ms/{name}" in names
    assert any(name.startswith("mindspeed_ms/ops/native/src/") and name.endswith(".cc") for name in names)
    assert "mindspeed_ms/py.typed" in names
    assert not {name.partition("/")[0] for name in names} & {"ops", "parallel", "serving", "tests", "benchmarks"}


def test_the_wheel_works_away_from_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "mindspeed_ms.cli.main", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "quantize" in run("--help")
    # Presets lie in configs/ of the tree, outside of the package.
    assert "HCCS" in run("topo", "rings", "910b")


def test_metadata_pins_what_is_known_to_work(wheel):
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
    for line in (
        "Requires-Dist: mindspore==2.10.*",
        "Requires-Dist: numpy<2,>=1.26",
        "Requires-Python: <3.13,>=3.10",
        "License: Apache-2.0",
        "Provides-Extra: serve",
        "Provides-Extra: test",
        "Provides-Extra: peers",
    ):
        assert line in metadata
