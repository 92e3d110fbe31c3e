"""The trained model as a folder in Hugging Face's layout, which `quantize`, `export` and `generate` take."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindspeed_ms.checkpoint.tensors import write_tensors
from mindspeed_ms.errors import TrainError
from mindspeed_ms.paths import partial_path, remove_abandoned
from mindspeed_ms.train.samples import tokenizer_files
from mindspeed_ms.weights.layout import write_tokenizer, write_tokenizer_files

if TYPE_CHECKING:
    from mindspeed_ms.train.plan import Plan


def save_model(out: Path, plan: Plan, weights: Mapping[str, np.ndarray]) -> None:
    """Write config.json, model.safetensors and the tokenizer's files; a model that is there is replaced.

    weights: float32 by Hugging Face's names. Raises TrainError; what was there is then still there.
    """
    temporary = partial_path(out)
    try:
        remove_abandoned(out)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        wanted = {name: weights[name] for name in plan.spec.parameter_shapes()}
        write_tensors(temporary / "model.safetensors", wanted, {"format": "pt"})
        config = json.dumps(_config(plan), indent=2, ensure_ascii=False) + "\n"
        (temporary / "config.json").write_text(config, encoding="utf-8")
        if plan.source is not None:
            write_tokenizer(plan.source, temporary)
        else:
            write_tokenizer_files(tokenizer_files(plan), temporary)
        if out.exists():
            old = partial_path(out.with_name(out.name + "-old"))
            os.rename(out, old)
            os.rename(temporary, out)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, out)
    except OSError as error:
        megabytes = 4e-6 * sum(math.prod(shape) for shape in plan.spec.parameter_shapes().values())
        raise TrainError(
            f"{out}: the model of {megabytes:.0f} MB cannot be written ({error.strerror}); make room, and resume the "
            "run: its last checkpoint is whole"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _config(plan: Plan) -> dict[str, object]:
    from mindspeed_ms.models import MODEL_TYPES

    # Both names of the same setting, the old one and that of transformers 5, would contradict each other.
    kept = {key: value for key, value in plan.hf_config.items() if key not in ("torch_dtype", "dtype")}
    kept.setdefault("architectures", [MODEL_TYPES[plan.spec.model_type] + "ForCausalLM"])
    return {**kept, "torch_dtype": "float32"}
