"""Any model as a bundle: bundles are opened where they lie, everything else is exported into the user's cache once."""

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from mindspeed_ms.errors import BundleError, WeightsError
from mindspeed_ms.export.reader import Bundle, is_bundle, open_bundle
from mindspeed_ms.export.schema import FORMAT_VERSION
from mindspeed_ms.ops.native.build import ABI
from mindspeed_ms.paths import cache_dir


def bundle_for(path: str | Path) -> Bundle:
    """Opens a bundle, or exports a Hugging Face directory, a GGUF file or a quantized directory and opens that.

    A model whose files changed is exported again. Raises BundleError, WeightsError, TokenizerError or BuildError.
    """
    path = Path(path)
    if is_bundle(path):
        return open_bundle(path)
    if not path.exists():
        raise WeightsError(f"{path}: no such file or directory, expected a model directory, a GGUF file or a bundle")
    folder = cache_dir() / "bundles"
    name = f"{path.resolve().stem[:40]}-{_key(path)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f".{name}.lock"):
            return _open_or_export(path, folder / name)
    except OSError as error:
        warnings.warn(
            f"{folder}: cannot keep the exported model here ({error.strerror}); it is exported again at every start. "
            "Set MINDSPEED_MS_CACHE to a folder you can write to",
            stacklevel=2,
        )
    temporary = tempfile.mkdtemp(prefix="mindspeed-ms-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return _open_or_export(path, Path(temporary) / name)


def _open_or_export(path: Path, target: Path) -> Bundle:
    if target.is_dir():
        with contextlib.suppress(BundleError):  # damaged in the cache: the model itself is still there
            return open_bundle(target)
        shutil.rmtree(target)
    from mindspeed_ms.export.bundle import export_bundle

    return export_bundle(path, target)


def _key(path: Path) -> str:
    """Changes with the model's files and with whatever a bundle depends on."""
    path = path.resolve()  # a link to a model is that model
    files = [path] if path.is_file() else sorted(item for item in path.iterdir() if item.is_file())
    facts = [str(path), FORMAT_VERSION, ABI, metadata.version("mindspore")]
    for file in files:
        status = file.stat()
        facts += [file.name, status.st_size, status.st_mtime_ns]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One export at a time; the others wait and find it done."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
