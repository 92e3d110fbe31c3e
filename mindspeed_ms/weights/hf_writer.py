"""Writes a Hugging Face directory that `generate`, `quantize`, `train` and transformers load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindspeed_ms.weights.safetensors_writer import Source, write_safetensors

_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def write_hf(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Source],
    write_tokenizer: Callable[[Path], None] | None = None,
) -> None:
    """Make a folder of config.json, model.safetensors and what `write_tokenizer` adds. Raises OSError."""
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    # Both names of the same setting, the old one and that of transformers 5, would contradict each other.
    kept = {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype")}
    kinds = {tensor.dtype for tensor in tensors.values()}
    kept["torch_dtype"] = _TORCH[kinds.pop()] if len(kinds) == 1 else "float32"
    (folder / "config.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if write_tokenizer is not None:
        write_tokenizer(folder)
