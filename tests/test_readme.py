"""What README and docs tell a reader to type exists; both READMEs say the same."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
# Examples that need neither a model nor a service of the reader's.
RUNNABLE = {"operators.md", "errors.md"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def help_of(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mindspeed_ms.cli.main", *command, "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell_commands(page: Path) -> list[list[str]]:
    found = []
    for block in blocks(page, "bash"):
        block = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", block, flags=re.DOTALL | re.MULTILINE)  # what goes into a file
        for line in block.replace("\\\n", " ").splitlines():
            # A command whose output is kept in a variable counts like any other.
            inner = re.fullmatch(r"\w+=\$\((.*)\)", line.strip())
            found.append(shlex.split(inner.group(1) if inner else line, comments=True))
    return [words for words in found if words]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_commands_of_a_page_exist(page):
    for words in shell_commands(page):
        if words[0] == "mindspeed-ms":
            command = [words[1]] + ([words[2]] if words[1] in ("ops", "data", "checkpoint", "topo") else [])
            described = help_of(*command)
            for word in words:
                if word.startswith("--"):
                    assert re.search(rf"{re.escape(word)}\b", described), f"{' '.join(command)} has no {word}"
        elif words[0] == "bash":
            assert words[1] == "-n" or (ROOT / words[1]).is_file(), words
        else:
            known = {"source", "python3", ".venv/bin/pip", ".venv/bin/python", "python", "sudo", "curl", "grpcurl"}
            known |= {"cat", "mkdir", "echo", "sed", "for", "done"}
            assert words[0] in known, f"{names(page)}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_modules_and_variables_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (mindspeed_ms[.\w]*)", text):
        assert importlib.util.find_spec(module), module
    sources = "\n".join(
        file.read_text(encoding="utf-8", errors="replace")
        for folder in ("mindspeed_ms", "ops", "serving", "scripts")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".cc", ".h", ".sh")
    )
    for variable in re.findall(r"MINDSPEED_MS_\w+", text):
        assert variable in sources, variable


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_the_python_of_a_page_is_valid_and_its_imports_exist(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mindspeed_ms"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert alias.name in dir(module) or hasattr(module, alias.name), alias.name


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in RUNNABLE], ids=names)
def test_the_examples_of_a_page_run(page, tmp_path):
    for index, block in enumerate(blocks(page, "python")):
        # A file, since MindSpore reads the source of the code it compiles.
        script = tmp_path / f"example{index}.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", "nothing of MindSpore's reaches the screen"


def test_every_error_is_explained():
    from mindspeed_ms import errors

    explained = re.findall(r"^\| `(\w+)`", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    defined = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert explained == [name for name in defined if name != "MindSpeedError"]


def test_every_page_of_the_documentation_is_in_its_index():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_the_command_line_is_in_the_readme():
    from mindspeed_ms.cli.main import _COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `mindspeed-ms (\w+)`", text, re.MULTILINE) == list(_COMMANDS)


def test_both_readmes_have_the_same_code_and_the_same_sections():
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    for language in ("bash", "python"):
        assert blocks(english, language) == blocks(chinese, language)
    sections = [len(re.findall(r"^## ", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in (english, chinese)]
    assert sections[0] == sections[1]
    rows = [re.findall(r"^\| `[^`]+`", page.read_text(encoding="utf-8"), re.MULTILINE) for page in (english, chinese)]
    assert rows[0] == rows[1]
