"""Tiny data sets, models and configurations for tests of whole runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "data"), str(ROOT / "tests" / "weights")]

from data_sets import make_set  # noqa: E402

MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


def make_data(folder):
    """A set of one bucket, so that one graph is compiled, and one that is held out."""
    make_set(folder / "set", {16: 40}, seed=1)
    make_set(folder / "held-out", {16: 10}, seed=2)
    return folder


COSINE = {"name": "cosine", "warmup_steps": 2}


def settings(data, out, **changes):
    """A run of 12 steps, without evaluation and samples; `section__key` changes a key, `section` all of it."""
    values = {
        "model": {"config": dict(MODEL)},
        "data": {"train": str(data / "set"), "batch_size": 4},
        "run": {"out": str(out), "steps": 12, "save_every": 5, "seed": 3},
        "optimizer": {"learning_rate": 0.01},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if not name:
            values[section] = value
        elif value is None:
            values[section].pop(name, None)
        else:
            values.setdefault(section, {})[name] = value
    return values


def write_yaml(path, values):
    path.write_text(yaml.safe_dump(values))
    return path


def command(*arguments, **options):
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mindspeed_ms.cli.main", "train", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


def two_ranks(folder, script):
    """The command and the environment that run a script in two processes under msrun, its argument the folder."""
    bin_folder = Path(sys.executable).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = shutil.which("msrun", path=str(bin_folder)) or "msrun"
    options = [f"--master_port={port}", "--master_addr=127.0.0.1", f"--log_dir={folder}/log", "--cluster_time_out=120"]
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    return [msrun, "--worker_num=2", "--local_worker_num=2", *options, "--join=True", str(script), str(folder)], env


def read_lines(folder, kind=None):
    """The lines of a run's metrics."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def losses(folder):
    """The loss by step; a step that is there twice is an error."""
    found = [(line["step"], line["loss"]) for line in read_lines(folder, "step")]
    assert [step for step, _ in found] == list(range(1, len(found) + 1))
    return [loss for _, loss in found]


def commits(folder):
    """The steps that a run has checkpoints of."""
    from mindspeed_ms.checkpoint.store import CheckpointStore

    return CheckpointStore(folder / "checkpoints", write=False).steps()


def manifest(folder, step):
    return folder / "checkpoints" / f"step-{step:08d}.json"


def damage(folder, step):
    """Empty what was written for a checkpoint itself, beside what it has of others."""
    files = list((folder / "checkpoints").glob(f"step-{step:08d}.*.bin"))
    assert files
    for file in files:
        file.write_bytes(b"")


def weights(folder):
    """All bytes of the finished model's weights."""
    return (folder / "model" / "model.safetensors").read_bytes()


def write_model(folder, data, seed=0, **changes):
    """A model of the set's tokenizer, with random weights, as Hugging Face would write it."""
    from safetensors.numpy import save_file
    from weights_files import hf_shapes

    config = {**MODEL, "vocab_size": 1000, "num_key_value_heads": 1, "head_dim": 32, "eos_token_id": 1, **changes}
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    tensors = {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in hf_shapes(config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((data / "set" / "tokenizer.json").read_bytes())
    return folder
