"""MindFormers 1.9.0 checkpoints: a .ckpt with its parameter names, and its model's YAML; written and read.

The names and layouts are checked against the real package by scripts/check_mindformers.sh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.paths import read_regular
from mindspeed_ms.weights.ckpt import CkptFile
from mindspeed_ms.weights.ckpt_writer import write_ckpt
from mindspeed_ms.weights.mindformers_config import from_section, to_section
from mindspeed_ms.weights.mindformers_names import (
    Entry,
    Family,
    Layout,
    entries,
    family_of,
    has_joined,
    is_state,
    join,
    split,
)
from mindspeed_ms.weights.safetensors_writer import Source

CKPT, YAML = "mindformers.ckpt", "mindformers.yaml"
_MOST_YAML = 4 << 20
_TYPES = {"Float32": "F32", "Float16": "F16", "BFloat16": "BF16"}
_HEAD = "# For MindFormers 1.9.0: load_checkpoint is to name the .ckpt beside this file.\n"


def write_mindformers(
    folder: Path, spec: DecoderSpec, ids: Mapping[str, Any], get: Callable[[str], np.ndarray], where: str
) -> None:
    """Write mindformers.ckpt (float32) and mindformers.yaml into a folder.

    ids: bos_token_id, eos_token_id, pad_token_id where known. get(name): a parameter by its Hugging Face name.
    Raises ConfigError for a model that has no form there, OSError.
    """
    family, section = to_section(spec, ids, where)
    qkv: Layout = "apart" if family == "llama" else "grouped"
    settings = {
        "seed": 0,
        "run_mode": "train",
        "use_legacy": family == "llama",
        "load_checkpoint": CKPT,
        "load_ckpt_format": "ckpt",
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": spec.model_type},
        "model": section,
    }

    def reader(entry: Entry) -> Callable[[], np.ndarray]:
        return lambda: join(entry, spec, lambda name: get(name).astype(np.float32, copy=False))

    write_ckpt(
        folder / CKPT,
        [(entry.name, "Float32", entry.shape, reader(entry)) for entry in entries(spec, family, qkv, qkv)],
    )
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    (folder / YAML).write_text(_HEAD + text, encoding="utf-8")


class MindFormersModel:
    """A MindFormers .ckpt opened with its YAML: `config` is a config.json of Hugging Face, `spec` the checked model.

    Raises WeightsError for a key, a name or a shape that does not add up; no weight is read yet.
    """

    def __init__(self, ckpt: Path, config: Path) -> None:
        from mindspeed_ms.models import spec_from_hf

        self.path = ckpt
        self.file = CkptFile(ckpt)
        model = read_yaml(config).get("model")
        family, self.config, values = from_section(model, str(config))
        try:
            self.spec: DecoderSpec = spec_from_hf(self.config, str(config))
        except ConfigError as error:
            raise WeightsError(str(error)) from None
        if family_of(self.file.tensors) != family:
            raise WeightsError(
                f"{ckpt}: its names are not those of the {'Llama' if family == 'llama' else 'Qwen'} model that "
                f"{config.name} describes; give the YAML that it was trained with"
            )
        self._entries = self._checked(family, values)

    def tensors(self) -> dict[str, Source]:
        """Each parameter by its Hugging Face name, in the type that it is stored in."""
        found = {}
        shapes = self.spec.parameter_shapes()
        for entry in self._entries:
            kind = _TYPES[self.file.tensors[entry.name].type]
            for part in entry.parts:
                found[part] = Source(kind, shapes[part], self._reader(entry, part))
        return found

    def _reader(self, entry: Entry, part: str) -> Callable[[], np.ndarray]:
        return lambda: split(entry, self.spec, self.file.stored(entry.name))[part]

    def _checked(self, family: Family, values: Mapping[str, Any]) -> list[Entry]:
        tensors = self.file.tensors
        qkv: Layout = "grouped" if has_joined(family, "qkv", tensors) else "apart"
        ffn: Layout = "grouped" if has_joined(family, "ffn", tensors) else "apart"
        if family == "core" and qkv == "grouped" and values["use_contiguous_weight_layout_attention"]:
            qkv = "contiguous"
        if family == "core" and ffn == "grouped" and not values["use_interleaved_weight_layout_mlp"]:
            ffn = "contiguous"
        wanted = list(entries(self.spec, family, qkv, ffn))
        names = {entry.name for entry in wanted}
        if self.spec.tie_word_embeddings:
            names |= {"lm_head.weight", "output_layer.weight"}  # some store the tied matrix twice
        missing = [entry for entry in wanted if entry.name not in tensors]
        if missing:
            raise WeightsError(f"{self.path}: tensor {missing[0].name!r} is missing; the YAML asks for it")
        for entry in wanted:
            found = tensors[entry.name]
            if found.shape != entry.shape:
                raise WeightsError(
                    f"{self.path}: tensor {entry.name!r} has shape {list(found.shape)}, but the YAML makes it "
                    f"{list(entry.shape)}; one file of several ranks is a part only: merge them first"
                )
            if found.type not in _TYPES:
                raise WeightsError(f"{self.path}: tensor {entry.name!r} is {found.type}, expected {', '.join(_TYPES)}")
        unknown = [name for name in tensors if name not in names and not is_state(name)]
        if unknown:
            raise WeightsError(
                f"{self.path}: tensor {unknown[0][:200]!r} is not part of the model that the YAML describes; its "
                "effect would be lost"
            )
        return wanted


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises WeightsError."""
    try:
        text = read_regular(path, _MOST_YAML).decode("utf-8")
        values = yaml.safe_load(text)
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; give the YAML of the MindFormers model") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{path}: is not valid YAML ({line})") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path}: holds a {type(values).__name__}, expected the YAML of a MindFormers model")
    return values


class _Dumper(yaml.SafeDumper):
    """Writes floats so that YAML 1.1, which MindFormers reads with, takes them for numbers: 1.0e-06, never 1e-06."""


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if exponent and "." not in mantissa:
        text = f"{mantissa}.0e{exponent}"
    if exponent and exponent[0] not in "+-":
        text = text.replace("e", "e+")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _float)
