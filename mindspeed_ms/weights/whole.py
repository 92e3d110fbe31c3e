"""A new file or folder that is whole or not there: written beside its place, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.paths import partial_path, remove_abandoned


@contextmanager
def new_path(out: Path) -> Iterator[Path]:
    """Yields where to write a file or folder that becomes `out` in the end; an interrupt leaves nothing.

    Raises WeightsError when `out` is there already, has no name, or cannot be written.
    """
    if not out.name:
        raise WeightsError(f"{str(out)!r} is no name for what is to be written; give that of a new file or folder")
    if out.exists() or out.is_symlink():
        raise WeightsError(f"{out}: is there already; give another name, or remove it first")
    temporary = partial_path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out)
        _remove(temporary)
        yield temporary
        for item in sorted(temporary.rglob("*")) if temporary.is_dir() else [temporary]:
            if item.is_file():
                _sync(item)
        if temporary.is_dir():
            _sync(temporary)
        if out.exists():
            raise OSError(errno.EEXIST, "somebody else has made it meanwhile")
        os.rename(temporary, out)
        _sync(out.parent)
    except OSError as error:
        raise WeightsError(
            f"{out}: cannot be written ({error.strerror or error}); make room, or give another place"
        ) from None
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # what cannot be removed could not be made, and that is told
            path.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
