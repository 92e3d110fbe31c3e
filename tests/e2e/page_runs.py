"""Runs what a page of docs/ shows, in its order, as a reader would, and looks for what the page says is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Language and content of the blocks of a page."""
    return [found for found in _BLOCK.findall(page.read_text(encoding="utf-8")) if found[0] in languages]


def run_page(page: Path, folder: Path, timeout: float = 300) -> str:
    """Run all bash and python blocks as one script, which ends at the first that fails; what they print together."""
    program = folder / "bin" / "mindspeed-ms"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mindspeed_ms.cli.main "$@"\n')
    program.chmod(0o755)
    parts = ["set -eux"]
    for number, (language, content) in enumerate(blocks(page, "bash", "python")):
        if language == "python":
            (folder / f"block{number}.py").write_text(content, encoding="utf-8")
            parts.append(f"{sys.executable} block{number}.py")
        else:
            parts.append(content)
    paths = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=folder,
        env={**os.environ, **paths},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def not_printed(page: Path, printed: str) -> list[str]:
    """Lines of the page's text blocks that were not printed, in their order; a line that ends with … may go on."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    missing = []
    for shown in "".join(content for _, content in blocks(page, "text")).splitlines():
        shown = shown.rstrip()
        start = shown.removesuffix("…")
        if not any(line == shown or (start != shown and line.startswith(start)) for line in lines):
            missing.append(shown)
            break  # what follows would be looked for behind the end
    return missing
