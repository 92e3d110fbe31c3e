"""What `data prepare` reads: files, folders, saved Hugging Face datasets, Megatron pairs and URLs, in a fixed order."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.paths import read_regular

Kind = Literal["txt", "jsonl", "json", "parquet", "arrow", "megatron"]

_MAX_STATE = 64 << 20  # bytes of what a saved dataset says of itself
MAX_NAMES = 256  # of sources in a manifest
_KINDS: dict[str, Kind] = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_COMPRESSIONS = (".gz", ".zst")
_KNOWN = ".txt, .jsonl, .ndjson or .json (also .gz or .zst of these), .parquet, .arrow, .bin with .idx"


class Damaged(DataError):
    """A file can be read up to some place only; `skip_damaged` goes on with the next file."""


@dataclass(frozen=True)
class SourceFile:
    """One file of documents, on a local disk."""

    path: Path  # of a Megatron pair the .bin
    name: str  # under which the manifest accounts for it; files may share one
    kind: Kind  # a further suffix .gz or .zst of the path says that it is compressed
    size: int  # bytes
    mtime_ns: int
    original: str  # as the user knows it: a path or a URL


class Sources(list[SourceFile]):
    """The files in the order they are read, and what was found beside them."""

    def __init__(self, files: Sequence[SourceFile], ignored: Sequence[str]) -> None:
        super().__init__(files)
        self.ignored = list(ignored)  # files in folders that hold no documents by their suffix


@dataclass(frozen=True)
class _Found:
    path: Path
    kind: Kind
    argument: int  # which input it belongs to
    relative: str  # to the input, if that is a folder; else empty
    original: str


def find_sources(inputs: Sequence[str], read: ReadConfig, cache: Path | None = None) -> Sources:
    """The files behind `inputs`: of folders all below them, sorted, but for names that begin with `.` or `_`.

    URLs are copied to `cache` first (None: `sources` in the user's cache folder). Raises DataError when an input does
    not exist, is of no known kind or holds no usable file, ConfigError when `read` does not fit a file given by name.
    """
    from mindspeed_ms.data.remote import fetch, is_url, shown

    if not inputs:
        raise ConfigError("no input; give files, folders or URLs of documents")
    texts = [printable(shown(text) if is_url(text) else text) for text in inputs]
    found: list[_Found] = []
    ignored: list[str] = []
    for index, text in enumerate(inputs):
        if is_url(text):
            path, unusable = fetch(text, cache)
            ignored += unusable
        else:
            path = Path(text)
        name = texts[index]
        before = len(ignored)
        files = list(_find(path, name, index, read, ignored))
        if not files:
            hint = f" ({len(ignored) - before} ignored, such as {ignored[before]})" if ignored[before:] else ""
            raise DataError(f"{name}: no file to read in it{hint}; expected {_KNOWN}")
        found += files
    names = _names(found, texts)
    return Sources([_source(item, name) for item, name in zip(found, names, strict=True)], ignored)


def kind_of(name: str) -> Kind | None:
    """The kind of a file by its suffix alone, which does not tell of Megatron pairs."""
    path = PurePath(name.lower())
    packed = path.suffix in _COMPRESSIONS
    kind = _KINDS.get(PurePath(path.stem).suffix if packed else path.suffix)
    return None if packed and kind in ("parquet", "arrow") else kind


def printable(name: str) -> str:
    r"""A file's name as UTF-8 can hold it: of a name in other bytes, these become \xff."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_unchanged(source: SourceFile) -> None:
    """Raises DataError when a file is no longer the one that was found."""
    try:
        found = _state(source.path, source.kind)
    except OSError:
        return  # who reads it says so
    if found != (source.size, source.mtime_ns):
        raise DataError(f"{source.original}: changed while it was read; run the same command again")


def is_hidden(name: str) -> bool:
    """Whether a name in a folder is passed over."""
    return name.startswith((".", "_"))


def _find(path: Path, text: str, argument: int, read: ReadConfig, ignored: list[str]) -> Iterator[_Found]:
    if path.is_dir():
        for file in _walk(path):
            relative = printable(file.relative_to(path).as_posix())
            kind = _kind(file)
            if kind is not None and not _misfit(kind, read):
                yield _Found(file, kind, argument, relative, f"{text.rstrip('/')}/{relative}")
            elif file.suffix != ".idx" or not file.with_suffix(".bin").is_file():
                ignored.append(f"{text.rstrip('/')}/{relative}")
        return
    if path.suffix == ".idx":
        path = path.with_suffix(".bin")
    if not path.exists() and path.with_name(path.name + ".bin").exists():
        path = path.with_name(path.name + ".bin")
    if not path.is_file():
        state = "neither a file nor a folder" if path.exists() else "no such file or folder"
        raise DataError(f"{text}: {state}; give the path of documents: {_KNOWN}")
    kind = _kind(path)
    if kind is None:
        raise DataError(f"{text}: the suffix says no kind that can be read; expected {_KNOWN}")
    if problem := _misfit(kind, read):
        raise ConfigError(f"{text}: {problem}")
    yield _Found(path, kind, argument, "", text)


def _kind(path: Path) -> Kind | None:
    if not path.is_file():  # a pipe would wait for ever, a dangling link has nothing
        return None
    if path.suffix == ".bin":
        return "megatron" if path.with_suffix(".idx").is_file() else None
    return kind_of(path.name)


def _misfit(kind: Kind, read: ReadConfig) -> str | None:
    if kind == "txt" and (key := read.messages_key or read.ids_key):
        return f"plain text has no field {key!r}; expected JSON lines, parquet or arrow"
    if kind == "megatron" and read.messages_key:
        return f"token ids have no field {read.messages_key!r}; prepare them apart from conversations"
    return None


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder, in order; a folder that links lead to again is not entered again."""
    seen: set[tuple[int, int]] = set()
    stack = [root]
    while stack:
        path = stack.pop()
        if not path.is_dir():
            yield path
            continue
        if (path / "manifest.json").is_file() and (path / "tokenizer.json").is_file():
            raise DataError(f"{path}: is a prepared set; give the corpus, or write it out by mindspeed-ms data convert")
        try:
            state = path.stat()
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                stack += reversed(_children(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be listed ({error.strerror}); make it readable") from None


def _children(folder: Path) -> list[Path]:
    """What to read of a folder. Datasets keep other tables beside their shards, so their own list counts."""
    if (state := folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        content = _json(state)
        if content.get("_indices_data_files"):
            raise DataError(
                f"{folder}: keeps its rows by indices, in a format of old; save it with datasets 2 or later"
            )
        return [_inside(state, _get(state, item, "filename")) for item in _get(state, content, "_data_files")]
    if (state := folder / "dataset_dict.json").is_file():
        return [_inside(state, name) for name in _get(state, _json(state), "splits")]
    return [folder / name for name in sorted(os.listdir(folder)) if not is_hidden(name)]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, _MAX_STATE))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); save the dataset again") from None
    return content if isinstance(content, dict) else {}


def _get(path: Path, content: Any, key: str) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(key), list | str):
        raise DataError(f"{path}: lacks {key!r}; expected what save_to_disk of datasets writes")
    return content[key]


def _inside(state: Path, name: Any) -> Path:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or not (state.parent / name).exists():
        raise DataError(f"{state}: names {name!r}, which is not in its folder; copy the dataset again")
    return state.parent / name


def _names(found: list[_Found], texts: list[str]) -> list[str]:
    """One name a file while these are few, else one a folder, else one an input, else one for all."""
    labels = [PurePath(text).name or text for text in texts]
    if len(set(labels)) < len(labels):
        labels = _numbered(texts)
    by_file = ["/".join(filter(None, (labels[item.argument], item.relative))) for item in found]
    whole = [name if item.relative else item.original for name, item in zip(by_file, found, strict=True)]
    by_folder = [name.rpartition("/")[0] or "." for name in whole]
    by_input = [labels[item.argument] for item in found]
    for names in (_numbered(by_file), by_folder, by_input):
        if len(set(names)) <= MAX_NAMES:
            return names
    return ["all inputs"] * len(found)


def _numbered(names: list[str]) -> list[str]:
    """Unique names: a second `a` becomes `a (2)`."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _source(item: _Found, name: str) -> SourceFile:
    return SourceFile(item.path, name, item.kind, *_state(item.path, item.kind), item.original)


def _state(path: Path, kind: Kind) -> tuple[int, int]:
    """Size and time of the last change; of a Megatron pair the size of its ids, and the later time."""
    state = path.stat()
    changed = state.st_mtime_ns
    if kind == "megatron":
        changed = max(changed, path.with_suffix(".idx").stat().st_mtime_ns)
    return state.st_size, changed
