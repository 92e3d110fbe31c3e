"""A commit of a run's checkpoints in the formats of others: safetensors, .ckpt, Hugging Face, MindFormers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspeed_ms.checkpoint.manifest import Manifest
from mindspeed_ms.checkpoint.records import Checkpoint
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import CheckpointError, ConfigError
from mindspeed_ms.train.adapter_files import write_adapter
from mindspeed_ms.train.run_model import RunModel, open_run_model
from mindspeed_ms.weights.ckpt_writer import Entry, text_entry, write_ckpt
from mindspeed_ms.weights.hf_writer import write_hf
from mindspeed_ms.weights.mindformers import write_mindformers
from mindspeed_ms.weights.safetensors_writer import Source, write_safetensors
from mindspeed_ms.weights.whole import new_path

FORMATS = ("safetensors", "ckpt", "hf", "mindformers")
MODEL = "model."  # before the Hugging Face name of a parameter, in a commit
COMMIT = "mindspeed_ms.commit"  # the key that the rest of a commit goes by
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_CKPT = {
    "float64": "Float64", "float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "int64": "Int64",
    "int32": "Int32", "int16": "Int16", "int8": "Int8", "uint8": "UInt8", "bool": "Bool",
}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What was written, of which step."""

    path: Path
    format: str
    step: int
    tensors: int
    bytes: int


def export_commit(
    store: CheckpointStore, out: Path, form: str, *, step: int | None = None, weights: bool = False
) -> Exported:
    """Write a commit, the newest whole one by default, as a new file or folder. It is verified before.

    form: one of FORMATS. weights: of safetensors and ckpt only the model's parameters, by Hugging Face's names.
    Raises MindSpeedError; what was begun is then removed.
    """
    if form not in FORMATS:
        raise ConfigError(f"format {form!r} is not known, expected one of {', '.join(FORMATS)}")
    if weights and form in ("hf", "mindformers"):
        raise ConfigError(f"--weights: {form} holds nothing but weights; leave it out")
    model = open_run_model(_run_of(store.folder, form)) if form in ("hf", "mindformers") else None
    found = store.load(step, (lambda name: name.startswith(MODEL)) if weights or model else None)
    if found is None:
        raise CheckpointError(f"{store.folder}: there is no checkpoint in it yet")
    manifest = store.manifest(found.step)
    with new_path(out) as temporary:
        if model is None:
            count = _plain(temporary, found, manifest, form, weights)
        else:
            count = _model(temporary, found, model, form, str(store.folder))
    files = [out] if out.is_file() else [item for item in out.rglob("*") if item.is_file()]
    return Exported(out, form, found.step, count, sum(file.stat().st_size for file in files))


def _run_of(folder: Path, form: str) -> Path:
    if not (folder.parent / "run.json").exists():
        raise CheckpointError(
            f"{folder}: lies in no run, whose configuration and tokenizer {form} needs; export as safetensors or ckpt"
        )
    return folder.parent


def _plain(out: Path, found: Checkpoint, manifest: Manifest, form: str, weights: bool) -> int:
    """All tensors, or the weights, in one file."""
    kinds = {entry.name: entry.dtype for entry in manifest.tensors}
    names = {(name.removeprefix(MODEL) if weights else name): name for name in found.tensors}
    if not names:
        raise CheckpointError(f"step {found.step}: holds no tensor whose name begins with {MODEL!r}; omit --weights")
    rest = None if weights else _rest(found)

    def array(name: str) -> np.ndarray:
        return found.tensors[names[name]]

    if form == "safetensors":
        sources = {
            new: Source(_SAFETENSORS[kinds[old]], array(new).shape, lambda new=new: array(new))  # type: ignore[misc]
            for new, old in names.items()
        }
        write_safetensors(out, sources, {"format": "pt"} if rest is None else {"format": "pt", COMMIT: rest})
        return len(names)
    entries: list[Entry] = [
        (new, _CKPT[kinds[old]], array(new).shape, lambda new=new: array(new))  # type: ignore[misc]
        for new, old in names.items()
    ]
    if rest is not None:
        entries.append(text_entry(COMMIT, rest))
    write_ckpt(out, entries)
    return len(names)


def _rest(found: Checkpoint) -> str:
    """What `import` makes the same commit of, beside the tensors."""
    values = {"step": found.step, "state": found.state, "identity": found.identity, "metric": found.metric}
    return json.dumps(values, separators=(",", ":"))


def _model(out: Path, found: Checkpoint, model: RunModel, form: str, where: str) -> int:
    weights: Mapping[str, str] = {name.removeprefix(MODEL): name for name in found.tensors}
    shapes = model.spec.parameter_shapes()
    if model.config.lora is not None:
        if form != "hf":
            raise CheckpointError(
                f"{where}: is a run of adapters, which have no form in MindFormers; export as hf, or train with "
                "lora.merge and take the run's model folder"
            )
        adapters = {name: found.tensors[full] for name, full in weights.items() if ".lora_" in name}
        write_adapter(out, model.spec, model.config.lora, model.config.model.source, adapters)
        return len(adapters)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise CheckpointError(f"{where}: step {found.step} has no tensor {MODEL}{missing[0]}; it is of another model")
    if form == "hf":
        sources = {
            name: Source("F32", shape, lambda name=name: found.tensors[weights[name]])  # type: ignore[misc]
            for name, shape in shapes.items()
        }
        write_hf(out, _named(model), sources, model.write_tokenizer)
    else:
        out.mkdir(parents=True)
        write_mindformers(out, model.spec, model.hf_config, lambda name: found.tensors[weights[name]], where)
        model.write_tokenizer(out)
    return len(shapes)


def _named(model: RunModel) -> dict[str, object]:
    from mindspeed_ms.models import MODEL_TYPES

    return {"architectures": [MODEL_TYPES[model.spec.model_type] + "ForCausalLM"], **model.hf_config}
