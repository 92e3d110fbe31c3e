"""Checkpoints of others, and our own exported ones, as what one goes on with: a model directory, or a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError, ConfigError, WeightsError
from mindspeed_ms.paths import open_regular
from mindspeed_ms.train.export_commit import COMMIT
from mindspeed_ms.weights.ckpt import CkptFile
from mindspeed_ms.weights.hf_writer import write_hf
from mindspeed_ms.weights.json_file import read_json
from mindspeed_ms.weights.layout import copy_tokenizer
from mindspeed_ms.weights.mindformers import MindFormersModel
from mindspeed_ms.weights.mindformers_names import family_of, is_state
from mindspeed_ms.weights.safetensors_file import SafetensorsFile
from mindspeed_ms.weights.safetensors_writer import Source
from mindspeed_ms.weights.source import check_tensors
from mindspeed_ms.weights.whole import new_path

_FROM_CKPT = {"Float32": "F32", "Float16": "F16", "BFloat16": "BF16"}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Imported:
    """What was made: "model" (a Hugging Face directory) or "checkpoint" (a commit of a store), and of what."""

    path: Path
    made: str
    source: str
    step: int | None
    tensors: int


def import_commit(source: Path, out: Path, *, config: Path | None = None, step: int | None = None) -> Imported:
    """Make a commit of a file that holds a whole one, or a Hugging Face directory of weights alone.

    config: config.json or a Hugging Face directory for weights by Hugging Face's names, the YAML for MindFormers'.
    Raises MindSpeedError; nothing is left of what was begun.
    """
    if source.is_dir():
        source, config = _inside(source, config)
    if not source.exists():
        raise WeightsError(f"{source}: no such file or folder")
    file = _open(source)
    rest = _rest(file, source)
    if rest is not None:
        return _store(file, source, out, rest, step)
    if step is not None:
        raise ConfigError(f"--step: {source} holds weights alone, which are of no step; leave it out")
    tensors = file.tensors
    if isinstance(file, CkptFile) and family_of(tensors) is not None:
        if config is None or config.suffix not in (".yaml", ".yml"):
            raise WeightsError(f"{source}: is of MindFormers; give its model's YAML with --config")
        model = MindFormersModel(source, config)
        found = model.tensors()
        with new_path(out) as temporary:
            write_hf(temporary, model.config, found, lambda folder: copy_tokenizer(source.parent, folder))
        return Imported(out, "model", "mindformers", None, len(found))
    return _weights(file, source, out, config)


def _inside(folder: Path, config: Path | None) -> tuple[Path, Path | None]:
    """The checkpoint of a folder, and the YAML beside it."""
    if (folder / "config.json").exists():
        raise WeightsError(f"{folder}: is a Hugging Face directory, which model.from takes as it is")
    found = sorted(folder.glob("*.ckpt"))
    settings = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(found) != 1:
        raise WeightsError(f"{folder}: holds {len(found)} .ckpt files, expected one; give the file itself")
    if config is None and len(settings) == 1:
        config = settings[0]
    return found[0], config


def _open(source: Path) -> CkptFile | SafetensorsFile:
    """By content: a safetensors file begins with the length of its JSON."""
    try:
        with open_regular(source) as file:
            head = file.read(9)
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read ({error.strerror}); give a file or a folder") from None
    return SafetensorsFile(source) if head[8:9] == b"{" else CkptFile(source)


def _rest(file: CkptFile | SafetensorsFile, source: Path) -> dict[str, Any] | None:
    """What a whole commit has beside its tensors; None for weights alone."""
    text = file.texts.get(COMMIT) if isinstance(file, CkptFile) else file.metadata.get(COMMIT)
    if text is None:
        return None
    try:
        values = json.loads(text)
        metric = values["metric"]
        right = (
            type(values["step"]) is int
            and isinstance(values["state"], dict)
            and isinstance(values["identity"], dict)
            and all(isinstance(value, str) for value in values["identity"].values())
            and (metric is None or isinstance(metric, (int, float)))
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise WeightsError(f"{source}: its {COMMIT} is not what `checkpoint export` writes; export it again")
    return {key: values[key] for key in ("step", "state", "identity", "metric")}


def _store(
    file: CkptFile | SafetensorsFile, source: Path, out: Path, rest: Mapping[str, Any], step: int | None
) -> Imported:
    if step is not None and step != rest["step"]:
        raise ConfigError(f"--step {step}: {source} is of step {rest['step']}, and its state says so; leave it out")
    arrays = _Arrays(file)

    def save(folder: Path) -> None:
        with CheckpointStore(folder, keep=0, identity=rest["identity"]) as store:
            if store.steps():
                raise CheckpointError(f"{folder}: holds checkpoints already (newest: step {store.steps()[-1]})")
            store.save(rest["step"], arrays, rest["state"], metric=rest["metric"], wait=True)

    if (out / "run.json").exists():
        out = out / "checkpoints"
        save(out)
    else:
        with new_path(out) as temporary:
            save(temporary)
    return Imported(out, "checkpoint", "checkpoint", rest["step"], len(arrays))


class _Arrays(Mapping[str, np.ndarray]):
    """A file's tensors in their own types."""

    def __init__(self, file: CkptFile | SafetensorsFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.stored(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def __len__(self) -> int:
        return len(self._file.tensors)


def _weights(file: CkptFile | SafetensorsFile, source: Path, out: Path, config: Path | None) -> Imported:
    """Weights by Hugging Face's names, `model.` of a commit or not before them."""
    from mindspeed_ms.models import spec_from_hf

    if config is None:
        raise WeightsError(f"{source}: holds weights alone; give their config.json or its folder with --config")
    path = config / "config.json" if config.is_dir() else config
    values = read_json(path)
    try:
        spec = spec_from_hf(values, str(path))
    except ConfigError as error:
        raise WeightsError(str(error)) from None
    shapes, types = {}, {}
    for name, tensor in file.tensors.items():
        if is_state(name):
            continue
        kind, shapes[name] = (tensor[0], tensor[1]) if isinstance(tensor, tuple) else (tensor.type, tensor.shape)
        types[name] = _FROM_CKPT.get(kind, kind)
    check_tensors(spec, shapes, str(source), {"lm_head.weight"} if spec.tie_word_embeddings else ())
    wanted = spec.parameter_shapes()
    for name in wanted:
        if types[name] not in _FLOATS:
            raise WeightsError(f"{source}: tensor {name!r} is {types[name]}, expected {', '.join(_FLOATS)}")
    sources = {
        name: Source(types[name], shape, lambda name=name: file.stored(name))  # type: ignore[misc]
        for name, shape in wanted.items()
    }
    with new_path(out) as temporary:
        write_hf(temporary, values, sources, lambda folder: copy_tokenizer(path.parent, folder))
    return Imported(out, "model", "weights", None, len(sources))
