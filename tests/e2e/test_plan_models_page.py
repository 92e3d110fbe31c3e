"""The Python of docs/plan-models.md, and what the page says that it prints: its figures are those of the models now."""

import contextlib
import io
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from page_runs import blocks, not_printed  # noqa: E402

PAGE = ROOT / "docs" / "plan-models.md"


def test_the_page_prints_what_it_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, (_, content) in enumerate(blocks(PAGE, "python")):
            exec(compile(content, f"{PAGE.name}, block {number}", "exec"), {})
    assert not_printed(PAGE, printed.getvalue()) == []
