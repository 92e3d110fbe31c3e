"""Every byte of the commits of a folder, checked."""

from __future__ import annotations

from mindspeed_ms.checkpoint.catalog import Catalog
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.manifest import Chunk, Manifest
from mindspeed_ms.checkpoint.reader import ChunkReader, check_entries
from mindspeed_ms.checkpoint.records import Problem
from mindspeed_ms.errors import CheckpointError


def verify(catalog: Catalog, files: Files, step: int | None) -> list[Problem]:
    """What is wrong with the commit of a step, or with all: manifests, chain, sizes, checksums, decoding."""
    reader = ChunkReader(catalog.folder, files)
    problems: list[Problem] = []
    done: dict[Chunk, str] = {}
    there = catalog.steps()
    for each in there if step is None else [step]:
        messages = _verify(catalog, reader, each, set(there), done)
        if any("is missing" in message for message in messages):  # a save of the same step may have taken its place
            messages = _verify(catalog, reader, each, set(there), done)
        if messages and step is None and each not in catalog.steps():
            continue  # a writer has removed it meanwhile
        problems += [Problem(each, message) for message in messages]
    return problems


def _verify(catalog: Catalog, reader: ChunkReader, step: int, there: set[int], done: dict[Chunk, str]) -> list[str]:
    try:
        manifest = catalog.read(step)
    except CheckpointError as error:
        return [str(error)]
    messages = _chain(catalog, manifest, there)
    for name, size in manifest.files.items():
        try:
            reader.require_size(name, size)
        except CheckpointError as error:
            messages.append(str(error))
    return messages or check_entries(reader, manifest, manifest.tensors, done)


def _chain(catalog: Catalog, manifest: Manifest, there: set[int]) -> list[str]:
    if manifest.previous is None or manifest.previous[0] not in there:
        return []
    step, digest = manifest.previous
    try:
        found = catalog.read(step).digest
    except CheckpointError:
        return []  # told of that step
    if found == digest:
        return []
    path = catalog.path(manifest.step)
    return [f"{path}: the commit of step {step} is another than the one before it; remove the one that is wrong"]
