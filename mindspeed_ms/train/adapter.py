"""Adapters on disk in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from safetensors.numpy import save

from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.paths import partial_path, read_regular
from mindspeed_ms.train.adapter_files import peft_config
from mindspeed_ms.train.lora import LoraConfig, LoraReport, linear_layers, lora_layers, wrap_layers
from mindspeed_ms.weights.safetensors_file import SafetensorsFile

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG = 4 << 20
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# What says nothing about the computation, or, like the choice of modules, nothing that the tensors do not say.
_INFORMATION = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("exclude_modules", "layers_pattern", "layers_to_transform", "megatron_core", "qalora_group_size"),
    *("ensure_weight_tying", "runtime_config", "target_modules"),
}
_READ = {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias", "init_lora_weights"}


def save_adapter(model: nn.Cell, folder: str | Path, base: str | None = None) -> None:
    """Write the LoRA layers of a model as PEFT does; `base` is the path or name of the model they belong to.

    Each file is written under another name and renamed when it is whole. Raises ConfigError for a model without LoRA
    layers, and WeightsError where the folder cannot be written.
    """
    layers = lora_layers(model)
    if not layers:
        raise ConfigError("lora: the model has no LoRA layers to save")
    tensors = {}
    for path, layer in layers.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = layer.lora_A.weight.asnumpy()
        tensors[f"base_model.model.{path}.lora_B.weight"] = layer.lora_B.weight.asnumpy()
    linear = [path for path in (*linear_layers(model), *layers) if "lora_" not in path]
    config = peft_config(linear, list(layers), next(iter(layers.values())).config, base)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / TENSORS, save(tensors, metadata={"format": "pt"}))
        _write(folder / CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise WeightsError(
            f"{folder}: cannot be written ({error.strerror}); free some space or choose another"
        ) from None


def load_adapter(model: nn.Cell, folder: str | Path) -> LoraReport:
    """Wrap the layers that an adapter of PEFT's layout was trained for and give them its values.

    `model` is the network whose layers are named as in Hugging Face, without LoRA layers. Raises WeightsError for
    files that are damaged, belong to another model or ask for what is not supported, and then nothing has changed.
    """
    folder = Path(folder)
    config = _read_config(folder / CONFIG)
    if not (folder / TENSORS).exists() and (folder / "adapter_model.bin").exists():
        raise WeightsError(f"{folder}/adapter_model.bin: pickled files are not read; save it anew as {TENSORS}")
    file = SafetensorsFile(folder / TENSORS)
    pairs = _pairs(file)
    layers = linear_layers(model)
    values = {}
    for path, parts in pairs.items():
        if path not in layers:
            raise WeightsError(f"{file.path}: {path!r} is no linear layer of this model; expected its own adapter")
        outputs, inputs = layers[path].weight.shape
        for part, shape in (("A", (config.rank, inputs)), ("B", (outputs, config.rank))):
            values[path, part] = _tensor(file, parts[part], shape)
    try:
        report = wrap_layers(model, config, [path for path in layers if path in pairs])
    except ConfigError as error:
        raise WeightsError(f"{folder}: {error}") from None
    for path, layer in lora_layers(model).items():
        layer.lora_A.weight.set_data(Tensor(values[path, "A"]))
        layer.lora_B.weight.set_data(Tensor(values[path, "B"]))
    return report


def _read_config(path: Path) -> LoraConfig:
    try:
        content = json.loads(read_regular(path, _MAX_CONFIG).decode("utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; expected a folder that PEFT's save_pretrained made") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise WeightsError(f"{path}: is not valid JSON; expected the file that PEFT wrote") from None
    if not isinstance(content, dict) or content.get("peft_type") != "LORA":
        kind = content.get("peft_type") if isinstance(content, dict) else None
        raise WeightsError(f"{path}: peft_type is {kind!r}, expected 'LORA'")
    _refuse_features(content, path)
    try:
        return LoraConfig(
            rank=content.get("r", 8),
            alpha=content.get("lora_alpha", 8),
            dropout=content.get("lora_dropout", 0.0),
            use_rslora=content.get("use_rslora", False) is True,
        )
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from None


def _refuse_features(content: Mapping[str, Any], path: Path) -> None:
    """What changes the computation is refused unless it is off."""
    for key, value in content.items():
        if key not in _INFORMATION | _READ and value not in (None, False, "", [], {}):
            raise WeightsError(f"{path}: {key} is {str(value)[:80]}, which is not supported; train without it")
    if content.get("bias", "none") != "none":
        raise WeightsError(f"{path}: bias is {content['bias']!r}, expected 'none': trained biases are not supported")
    init = content.get("init_lora_weights", True)
    if init not in (True, False, "gaussian", "orthogonal"):  # the others change the base weights
        raise WeightsError(f"{path}: init_lora_weights is {init!r}, which changes the base model; not supported")


def _pairs(file: SafetensorsFile) -> dict[str, dict[str, str]]:
    """The tensor names of A and B by layer."""
    pairs: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        match = _NAME.fullmatch(name)
        if not match:
            raise WeightsError(
                f"{file.path}: tensor {name[:200]!r} is none of base_model.model.LAYER.lora_A.weight or lora_B.weight"
            )
        pairs.setdefault(match[1], {})[match[2]] = name
    for path, parts in pairs.items():
        if len(parts) < 2:
            raise WeightsError(f"{file.path}: {path!r} has only lora_{next(iter(parts))}; the file is incomplete")
    if not pairs:
        raise WeightsError(f"{file.path}: holds no tensors; expected lora_A and lora_B of some layers")
    return pairs


def _tensor(file: SafetensorsFile, name: str, shape: tuple[int, int]) -> np.ndarray:
    array = file.get(name)
    if file.dtype(name) not in ("F32", "F16", "BF16", "F64"):
        raise WeightsError(f"{file.path}: tensor {name!r} is of {file.dtype(name)}, expected a float type")
    if array.shape != shape:
        raise WeightsError(f"{file.path}: tensor {name!r} is {list(array.shape)}, expected {list(shape)} in this model")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise WeightsError(f"{file.path}: tensor {name!r} holds values that are not finite; the file is damaged")
    return array


def _write(path: Path, content: bytes) -> None:
    temporary = partial_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
