"""Our side of scripts/check_mindformers.sh: `export` makes cases and exports them, `import` takes back theirs."""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np

from mindspeed_ms.weights import open_model
from mindspeed_ms.weights.hf_writer import write_hf
from mindspeed_ms.weights.load import load_model
from mindspeed_ms.weights.mindformers import MindFormersModel, write_mindformers
from mindspeed_ms.weights.safetensors_writer import of_array

BASE = {
    "vocab_size": 100, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CASES = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True},
    "llama-llama3": {"model_type": "llama", "rope_scaling": LLAMA3},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 64},
    "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True},
}
IDS = np.array([3, 99, 0, 41, 7, 7, 12, 55, 31, 8, 64, 2, 90, 17, 23, 1])


def logits(source):
    return load_model(source)(ms.Tensor(IDS[None], ms.int32)).asnumpy()[0]


def export(work):
    from mindspeed_ms.models import spec_from_hf

    for name, changes in CASES.items():
        config = {**BASE, **changes}
        rng = np.random.default_rng(0)
        shapes = spec_from_hf(config).parameter_shapes()
        tensors = {
            key: of_array((0.2 * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32))
            for key, shape in shapes.items()
        }
        folder = work / name
        folder.mkdir(parents=True)
        write_hf(folder / "hf", config, tensors)
        source = open_model(folder / "hf")
        (folder / "ours").mkdir()
        write_mindformers(folder / "ours", source.spec, {"eos_token_id": 2}, source.get, name)
        np.save(folder / "ids.npy", IDS)
        np.save(folder / "logits.npy", logits(source))


def take_back(work):
    for name in CASES:
        folder = work / name
        model = MindFormersModel(folder / "theirs/model.ckpt", folder / "theirs/run.yaml")
        write_hf(folder / "imported", model.config, model.tensors())
        found, wanted = logits(open_model(folder / "imported")), np.load(folder / "theirs.npy")
        worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        print(f"{name}: MindFormers' in ours: largest difference of logits {worst:.2e} of the largest logit")
        if not worst <= (5e-3 if name.startswith("qwen3") else 1e-4):
            sys.exit(f"{name}: too much")
    print(json.dumps({"cases": list(CASES), "mindformers": "1.9.0", "ok": True}))


{"export": export, "import": take_back}[sys.argv[1]](Path(sys.argv[2]))
