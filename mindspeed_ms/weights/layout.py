"""What a model directory holds beside its weights: config.json and the tokenizer's files, in Hugging Face's layout."""

import json
import shutil
from pathlib import Path
from typing import Any

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.weights.source import ModelSource, TokenizerFiles

_FROM_HF = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def model_config(source: ModelSource) -> dict[str, Any]:
    """config.json of a model: the one that came with it, without quantization, or Hugging Face's names for a GGUF's.

    Raises ConfigError for a GGUF whose settings have no form there.
    """
    if source.kind != "gguf":
        given: dict[str, Any] = source.config  # type: ignore[attr-defined]
        return {key: value for key, value in given.items() if key != "quantization_config"}
    return _of_spec(source.spec, str(source.path))


def _of_spec(spec: DecoderSpec, where: str) -> dict[str, Any]:
    from mindspeed_ms.models import MODEL_TYPES, spec_from_hf

    config: dict[str, Any] = {
        "architectures": [MODEL_TYPES[spec.model_type] + "ForCausalLM"],
        **spec.model_dump(mode="json", exclude={"qkv_bias", "o_bias", "qk_norm", "rope_scaling", "mlp_bias"}),
        "hidden_act": "silu",
        "rope_scaling": None,
    }
    if spec.model_type == "llama":
        config |= {"attention_bias": spec.o_bias, "mlp_bias": spec.mlp_bias}
    if spec.rope_scaling is not None:
        scaling = spec.rope_scaling.model_dump(mode="json", exclude={"factors"})
        config["rope_scaling"] = {"rope_type": scaling.pop("type"), **scaling}
    try:
        same = spec_from_hf(config) == spec
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(
            f"{where}: its configuration (rope scaling {spec.rope_scaling.type if spec.rope_scaling else None}, "
            f"biases) has no form in a Hugging Face config.json; run `mindspeed-ms export` on the GGUF itself"
        )
    return config


def write_tokenizer(source: ModelSource, folder: Path) -> None:
    """Write a model's tokenizer files into a folder: copies, or what a GGUF says in their form. Raises OSError."""
    if source.kind != "gguf":
        copy_tokenizer(Path(source.path), folder)
        return
    write_tokenizer_files(source.tokenizer, folder, source.generation)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy those of a tokenizer's files that a folder has. Raises OSError."""
    for name in _FROM_HF:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def write_tokenizer_files(files: TokenizerFiles, folder: Path, generation: dict[str, Any] | None = None) -> None:
    """Write a tokenizer and the ids that a generator needs in Hugging Face's files. Raises OSError."""
    (folder / "tokenizer.json").write_bytes(files.tokenizer_json)
    _write_json(folder / "tokenizer_config.json", {"add_bos_token": files.add_bos})
    ids = {
        "bos_token_id": files.bos_token_id,
        "eos_token_id": files.eos_token_ids or None,
        "pad_token_id": files.pad_token_id,
    }
    given = {name: value for name, value in ids.items() if value is not None}
    _write_json(folder / "generation_config.json", {**given, **(generation or {})})
    if files.chat_template is not None:
        (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
