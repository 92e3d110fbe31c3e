"""The commands of docs/train.md, in their order, as somebody who reads the page would run them: on small things."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "train.md"
PULL = "$(mindspeed-ms pull smollm2)"
_SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 1}

# What makes a run of the page short, by its configuration.
SHORT = {
    "tiny.yaml": {
        **{f"model.config.{key}": value for key, value in {**_SHAPE, "num_key_value_heads": 1}.items()},
        **{"schedule.warmup_steps": 2, "run.epochs": 1, "run.sample_tokens": 4},
    },
    "smollm2-full.yaml": {"schedule.warmup_steps": 1, "run.steps": 2, "run.sample_tokens": 4},
    "smollm2-lora.yaml": {"schedule.warmup_steps": 1, "run.steps": 2, "run.sample_tokens": 4},
    "runs/books": {"run.epochs": 2},
}


def blocks() -> list[tuple[str, str]]:
    """Language and content of what the page shows to be run."""
    return re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def shortened(command: str) -> str:
    """A `train` command with the settings that make it short, which come last and so count."""
    if not command.startswith("mindspeed-ms train "):
        return command
    settings = SHORT[command.split()[2].removeprefix("configs/train/")]
    return " ".join([command, *(f"--set {key}={value}" for key, value in settings.items())])


def script(model: Path) -> str:
    """All blocks as one shell script, which ends at the first that fails."""
    parts = ["set -eux"]
    for number, (language, content) in enumerate(blocks()):
        if language == "python":
            Path(f"block{number}.py").write_text(content, encoding="utf-8")
            parts.append(f"{sys.executable} block{number}.py")
        else:
            parts += [shortened(line) for line in content.replace(PULL, str(model)).splitlines()]
    return "\n".join(parts)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with books, conversations, configs/ and the command."""
    sys.path[:0] = [str(ROOT / "tests" / name) for name in ("data", "weights")]
    from data_corpus import sentences

    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate(("books", "books-held-out")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("\n".join(sentences(400, seed=seed)), encoding="utf-8")
    chats = [[("user", f"What is {i}?"), ("assistant", f"It is {i}, said the men.")] for i in range(16)]
    lines = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    command = tmp_path / "bin" / "mindspeed-ms"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mindspeed_ms.cli.main "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return tmp_path


def chat_model(folder: Path) -> Path:
    """A model with a chat template that stands for SmolLM2 and compiles in no time."""
    from data_corpus import write_chat_model
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer
    from weights_files import hf_shapes

    write_chat_model(folder)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = {"model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": 2048, **_SHAPE}
    config |= {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True, "eos_token_id": 0}
    rng = np.random.default_rng(0)
    tensors = {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in hf_shapes(config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_the_commands_of_the_page_work_one_after_another(place):
    commands = script(chat_model(place / "smollm2"))
    assert PULL not in commands
    for command in ("train", "report", "generate", "quantize", "export"):
        assert f"\nmindspeed-ms {command} " in commands
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "WARNING" not in done.stderr
    made = ["runs/books/report.html", "runs/full/compare-lora.html", "runs/full/model/model.safetensors"]
    made += ["runs/lora/adapter/adapter_model.safetensors", "runs/lora/model/config.json", "tuned-bundle/bundle.json"]
    assert [name for name in made if not (place / name).is_file()] == []
    shown = PAGE.read_text(encoding="utf-8").partition("## The folder of a run")[2].partition("```\n")[2]
    names = re.findall(r"^  (\S+)", shown.partition("```")[0], re.MULTILINE)[:-2]  # an adapter is in the other run
    missing = [name for name in names if not (place / "runs" / "books" / name).exists() and "step-" not in name]
    assert names and missing == []
    checkpoints = place / "runs/books/checkpoints"
    assert list(checkpoints.glob("step-*.json")) and list(checkpoints.glob("step-*.0.*.bin"))
    assert re.search(r"^1 \d+\.\d+ 0\.0 \d+\.\d+ False$", done.stdout, re.MULTILINE), "the first step from Python"
    assert "LoRA on 2 layers: " in done.stdout
