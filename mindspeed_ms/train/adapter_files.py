"""An adapter directory in PEFT's layout, of arrays: what save_adapter writes of a network."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.config.train import LoraSettings
from mindspeed_ms.weights.safetensors_writer import of_array, write_safetensors

if TYPE_CHECKING:
    from mindspeed_ms.train.lora import LoraConfig


def write_adapter(
    folder: Path, spec: DecoderSpec, lora: LoraSettings, base: str | None, adapters: Mapping[str, np.ndarray]
) -> None:
    """Write adapter_config.json and adapter_model.safetensors into a new folder; names end in lora_A.weight, ...

    Raises OSError.
    """
    from mindspeed_ms.train.lora import LoraConfig  # which loads MindSpore: an export of other models has no need of it

    folder.mkdir(parents=True)
    tensors = {f"base_model.model.{name}": of_array(np.asarray(array)) for name, array in adapters.items()}
    write_safetensors(folder / "adapter_model.safetensors", tensors, {"format": "pt"})
    paths = sorted({name.partition(".lora_")[0] for name in adapters})
    linear = [name.removesuffix(".weight") for name, shape in spec.parameter_shapes().items() if len(shape) == 2]
    settings = LoraConfig(lora.rank, lora.alpha, lora.dropout)
    config = peft_config(linear, paths, settings, base)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def peft_config(linear: Collection[str], paths: Sequence[str], config: LoraConfig, base: str | None) -> dict[str, Any]:
    """adapter_config.json for the layers at `paths`; linear: the paths of all linear layers of the model."""
    # PEFT wraps all layers that a name ends with, so a name that means more than was wrapped is given in full.
    leaves = sorted({path.rpartition(".")[2] for path in paths})
    meant = {path for path in linear if path.rpartition(".")[2] in leaves}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if float(config.alpha).is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": leaves if meant == set(paths) else list(paths),
        "use_rslora": config.use_rslora,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
    }
