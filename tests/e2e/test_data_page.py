"""The commands of docs/data.md, in their order, as somebody who reads the page would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "data.md"
PULL = "$(mindspeed-ms pull smollm2)"


def blocks() -> list[tuple[str, str]]:
    """Language and content of what the page shows to be run, without the installation."""
    found = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, content) for language, content in found if "pip install" not in content]


def script(model: Path) -> str:
    """All blocks as one shell script, which ends at the first that fails."""
    parts = ["set -eux"]
    for number, (language, content) in enumerate(blocks()):
        if language == "python":
            Path(f"block{number}.py").write_text(content, encoding="utf-8")
            parts.append(f"{sys.executable} block{number}.py")
        else:
            parts.append(content.replace(PULL, str(model)))
    return "\n".join(parts)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with books/, the command and a chat model."""
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    from data_corpus import sentences

    monkeypatch.chdir(tmp_path)
    (tmp_path / "books" / "more").mkdir(parents=True)
    for number, name in enumerate(("a.txt", "b.txt", "more/c.txt")):
        (tmp_path / "books" / name).write_text("\n".join(sentences(400, seed=number)), encoding="utf-8")
    command = tmp_path / "bin" / "mindspeed-ms"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mindspeed_ms.cli.main "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return tmp_path


def chat_model(place: Path) -> Path:
    from data_corpus import write_chat_model

    return Path(os.environ.get("MINDSPEED_MS_SMOLLM2") or write_chat_model(place / "model"))


@pytest.mark.slow
def test_the_commands_of_the_page_work_one_after_another(place):
    commands = script(chat_model(place))
    assert PULL not in commands
    for command in ("prepare", "inspect", "convert", "tokenizer"):
        assert f"\nmindspeed-ms data {command} " in commands
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    made = ["books-set", "books-set-8k", "books-again"]
    assert [(place / name / "manifest.json").is_file() for name in made] == [True] * 3
    assert all((place / name).stat().st_size for name in ("books.png", "books-ids.bin", "books-ids.idx"))
    assert re.search(r"^(32|64|128|256|512) \(\d+, \1\) \d+$", done.stdout, re.MULTILINE), "the first batch"
    assert re.search(r"^\(\d+, 512\)$", done.stdout, re.MULTILINE), "a batch of MindDataset"
