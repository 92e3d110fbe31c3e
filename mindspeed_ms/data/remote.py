"""Copies of files on remote or slow storage, reached by fsspec, in a local folder."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mindspeed_ms.data.files import disk_errors, sync_folder, write_atomic
from mindspeed_ms.data.sources import is_hidden, kind_of, printable
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.log import get_logger
from mindspeed_ms.paths import cache_dir, partial_path, remove_abandoned

_BLOCK = 4 << 20
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")
# What file systems call that which changes with a file's content, the surest first.
_TAGS = ("ETag", "etag", "md5Hash", "md5", "Content-MD5", "mtime", "LastModified", "last_modified", "Last-Modified")
_TIMES = ("updated", "modified", "created")
_log = get_logger(__name__)


def is_url(text: str) -> bool:
    """Whether an input is scheme://..."""
    return _URL.match(text) is not None


def shown(url: str) -> str:
    """A URL as it may be printed and kept: without passwords and signatures."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def fetch(url: str, cache: Path | None = None) -> tuple[Path, list[str]]:
    """Copy the file, Megatron pair or folder behind `url` into `cache`; what is there and unchanged is not read again.

    Returns where it is, and the files of a folder that were left because their suffix holds no documents. A copy is
    complete or not there. Raises DataError, ConfigError when fsspec or the library of a scheme is absent.
    """
    system, root = _connect(url)
    folder = (cache or cache_dir() / "sources") / hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[
        :20
    ]
    name = PurePosixPath(shown(url)).name or "files"
    try:
        if system.isdir(root):
            found = system.find(root, detail=True)
            return _copy_folder(system, root, sorted(p for p in found if not _endless(found[p])), folder / name, url)
        pair = name.endswith((".bin", ".idx"))
        if not pair and not system.exists(root) and system.exists(root + ".idx"):
            pair, root, name = True, root + ".bin", name + ".bin"
    except _errors() as error:
        raise _unreadable(url, error) from None
    if not pair:
        return _copy(system, root, folder / name, url), []
    _copy(system, root[:-4] + ".idx", folder / f"{name[:-4]}.idx", url)
    return _copy(system, root[:-4] + ".bin", folder / f"{name[:-4]}.bin", url), []


def _copy_folder(system: Any, root: str, paths: list[str], folder: Path, url: str) -> tuple[Path, list[str]]:
    copied: set[Path] = set()
    unusable: list[str] = []
    for path in paths:
        relative = posixpath.relpath(path, root)
        parts = relative.split("/")
        if any(map(is_hidden, parts)):
            continue
        if kind_of(relative) is None and not relative.endswith((".bin", ".idx")):
            unusable.append(printable(f"{shown(url).rstrip('/')}/{relative}"))
        else:
            copied.add(_copy(system, path, folder.joinpath(*parts), url))
    if not copied:
        raise DataError(f"{shown(url)}: no file to read in it ({len(unusable)} ignored); give a folder of documents")
    for old in folder.rglob("*"):  # what is no longer there is no longer a source
        if old.is_file() and not is_hidden(old.name) and old not in copied:
            old.unlink(missing_ok=True)
    return folder, unusable


def _connect(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"{shown(url)}: needs fsspec; run pip install 'mindspeed-ms[data]'") from None
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ConfigError(
            f"{shown(url)}: its scheme needs one more library: {error}; install it beside this package"
        ) from None
    except _errors() as error:
        raise _unreadable(url, error) from None


def _copy(system: Any, path: str, local: Path, url: str) -> Path:
    """Have `local` equal the remote file `path`."""
    try:
        info = system.info(path)
    except _errors() as error:
        raise _unreadable(url, error) from None
    note = local.with_name(f".{local.name}.json")
    if _endless(info):
        raise DataError(f"{shown(url)}: neither a file nor a folder; give the URL of documents")
    state = {"size": info.get("size"), "tag": _tag(info)}
    if state["tag"] and _noted(note) == state and local.is_file() and local.stat().st_size == state["size"]:
        return local
    _log.info("copying %s to %s", shown(url), local)
    partial = partial_path(local)
    with disk_errors(local):
        local.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(local)
        try:
            written = _download(system, path, partial, url)
            if state["size"] is not None and written != state["size"]:
                raise DataError(f"{shown(url)}: {path} came with {written} bytes of {state['size']}; try again")
            note.unlink(missing_ok=True)  # it speaks of the copy that is replaced now
            os.replace(partial, local)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(local.parent)
    write_atomic(note, json.dumps(state).encode())
    return local


def _download(system: Any, path: str, partial: Path, url: str) -> int:
    """Bytes written. Errors of the two sides are told apart: reading raises DataError, writing OSError."""
    written = 0
    with open(partial, "wb") as file:
        try:
            remote = system.open(path, "rb", block_size=_BLOCK)
        except _errors() as error:
            raise _unreadable(url, error) from None
        with remote:
            while block := _read(remote, url):
                written += file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return written


def _read(remote: Any, url: str) -> bytes:
    try:
        return remote.read(_BLOCK)
    except _errors() as error:
        raise _unreadable(url, error) from None


def _noted(note: Path) -> Any:
    try:
        return json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None


def _endless(info: dict[str, Any]) -> bool:
    """Whether it is a pipe or a device, as `file://` may find."""
    return info.get("type") == "other"


def _tag(info: dict[str, Any]) -> str | None:
    """What tells one version of a file from the next; None if its file system has nothing of the kind."""
    for key in (*_TAGS, *_TIMES):
        if info.get(key):
            return f"{key}={info[key]}"
    return None


def _errors() -> tuple[type[Exception], ...]:
    """What file systems raise; fsspec's HTTP passes on errors of its own library."""
    http = sys.modules.get("aiohttp")
    return (OSError, ValueError, *([http.ClientError] if http else []))


def _unreadable(url: str, error: Exception) -> DataError:
    text = " ".join(str(error).replace(url, shown(url)).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        text = "no such file or folder"
    return DataError(f"{shown(url)}: cannot be read ({text}); check the URL and the rights to it")
