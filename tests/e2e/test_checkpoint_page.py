"""The commands of docs/checkpoint.md, in their order, as somebody who reads the page would run them: on a tiny run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "checkpoint.md"
sys.path.insert(0, str(ROOT / "tests" / "train"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with runs/books, whose configuration is that of the page, and the command."""
    from train_runs import command, make_data, settings, write_yaml

    make_data(tmp_path)
    rules = {"run__keep": 3, "run__keep_every": 100, "run__keep_best": 1, "run__eval_every": 5}
    held_out = str(tmp_path / "held-out")
    values = settings(tmp_path, tmp_path / "runs/books", data__eval=held_out, **rules)
    done = command(write_yaml(tmp_path / "run.yaml", values))
    assert done.returncode == 0, done.stderr
    program = tmp_path / "bin" / "mindspeed-ms"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mindspeed_ms.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return tmp_path


def test_the_page_runs_from_its_first_command_to_its_last(place):
    parts = ["set -eux"]
    found = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for number, (language, content) in enumerate(found):
        if language == "python":
            Path(f"block{number}.py").write_text(content, encoding="utf-8")
            parts.append(f"{sys.executable} block{number}.py")
        elif "check_mindformers" not in content:  # it downloads another framework
            parts.append(content)
    done = subprocess.run(["bash", "-c", "\n".join(parts)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (place / "out/from-mindformers/config.json").exists() and (place / "out/from-ckpt/tokenizer.json").exists()
    assert "[5, 10, 12]" in done.stdout and "model.model.layers.0.input_layernorm.weight float32 (32,)" in done.stdout
