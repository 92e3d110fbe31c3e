"""What the data commands say while they work: a bar, a line now and then where nobody watches, and of Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_corpus import sentences, write_tokenizer
from rich.console import Console

from mindspeed_ms.cli import output

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def screen(monkeypatch, clock):
    file = io.StringIO()
    options = {"force_terminal": True, "width": 120, "color_system": None, "get_time": lambda: clock.seconds}
    monkeypatch.setattr(output, "_stderr", Console(file=file, **options))
    return file


def test_a_bar_shows_bytes_as_megabytes_and_all_else_by_number(screen):
    with output.phases() as advance:
        advance("tokenize", 40_000_000, 100_000_000, "bytes")
        advance("tokenize", 50_000_000, 100_000_000, "bytes")
        advance("write", 3, 7, "rows")
        advance("look", 3, None, "documents")
    shown = screen.getvalue()
    assert "50.0/100.0 MB" in shown and "3/7 rows" in shown and "3 documents" in shown


def test_a_bar_shows_speed_and_time_left_without_what_an_earlier_run_has_done(screen, clock):
    with output.phases() as advance:
        for at, done in enumerate((400, 410, 420, 430)):  # 10 MB a second, of which 400 were there
            clock.seconds = float(at)
            advance("tokenize", done * 1_000_000, 1_000_000_000, "bytes")
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "MB" in line)
    assert "430.0/1,000.0 MB  10.0 MB/s" in last and "0:00:57" in last


def test_where_there_is_no_terminal_nothing_is_said_of_short_work(capsys):
    with output.phases() as advance:
        advance("tokenize", 1, 2, "bytes")
        advance("tokenize", 2, 2, "bytes")
    assert capsys.readouterr() == ("", "")


def test_where_there_is_no_terminal_a_line_every_half_minute_goes_to_stderr(capsys, clock):
    reports = [
        (1, "tokenize", 40_000_000, 100_000_000, "bytes"),
        (31, "tokenize", 70_000_000, 100_000_000, "bytes"),
        (60, "tokenize", 90_000_000, 100_000_000, "bytes"),
        (61, "tokenize", 100_000_000, 100_000_000, "bytes"),
        (70, "write", 30, 1200, "rows"),
        (92, "write", 1130, 1200, "rows"),
        (130, "look", 5, None, "documents"),
        (162, "look", 69, None, "documents"),
    ]
    with output.phases() as advance:
        for seconds, *said in reports:
            clock.seconds = float(seconds)
            advance(*said)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "tokenize 70.0/100.0 MB  1.0 MB/s, 30 s left",
        "tokenize 100.0/100.0 MB  1.0 MB/s, 0 s left",
        "write 1,130/1,200 rows  50 rows/s, 1 s left",
        "look 5 documents  0 documents/s",
        "look 69 documents  2 documents/s",
    ]


@pytest.mark.parametrize(
    ("options", "how"),
    [([], "the same command goes on"), (["--restart"], "the same command without --restart goes on")],
    ids=["first", "restart"],
)
def test_ctrl_c_says_how_preparing_goes_on(tmp_path, options, how):
    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(150_000)))
    (tmp_path / "c.yaml").write_text("shard_tokens: 4096\n")
    command = ["prepare", "corpus.txt", "--out", "set", "--tokenizer", "tokenizer.json", "--config", "c.yaml"]
    process = subprocess.Popen(
        # A shell starts its background jobs with SIGINT ignored, and a test may be one of them.
        [sys.executable, "-c", PROGRAM, "data", *command, "--workers", "1", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("set/.work/segments/00000/segment.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, error) == (130, "", f"interrupted; {how}\n")
    assert not (tmp_path / "set" / "manifest.json").exists()


PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mindspeed_ms.cli.main import main
main()
"""
