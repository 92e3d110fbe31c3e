"""Ctrl-C in a program that uses `LLM` is a KeyboardInterrupt, and the program may go on; SIGTERM still ends it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with it ignored
from mindspeed_ms import LLM, SamplingParams

endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
llm = LLM(sys.argv[1], kv_tokens=None)
try:
    print("ready", flush=True)  # in here: the answer to it may come before the next line
    if sys.argv[2] == "sleep":
        time.sleep(60)
    elif sys.argv[2] == "ignore":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        llm.generate("%&", SamplingParams(max_tokens=4))
        signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt
    else:
        while True:
            llm.generate("%&", endless)
except KeyboardInterrupt:
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    print("interrupted", llm.generate("%&", short)[0].completion_tokens, flush=True)
    if sys.argv[2] == "generate":
        while True:
            llm.generate("%&", endless)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "tests" / "weights"))
    from weights_files import write_hf

    from mindspeed_ms.export.bundle import export_bundle

    folder = tmp_path_factory.mktemp("interrupt")
    export_bundle(write_hf(folder / "model", max_position_embeddings=4096), folder / "bundle")
    return folder / "bundle"


@pytest.fixture
def start(bundle):
    started = []

    def run(what):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(bundle), what],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_between_two_runs_of_the_graph_is_a_keyboard_interrupt(start):
    process = start("sleep")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted 2\n"
    assert process.returncode == 0


def test_ctrl_c_while_the_graph_runs_is_one_too_and_sigterm_ends_the_process(start):
    process = start("generate")
    try:
        process.wait(timeout=0.3)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    # Without an answer the program ends, and so does the wait for its line.
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout.readline() == "interrupted 2\n"
    watchdog.cancel()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM


def test_what_the_program_does_with_sigint_itself_stays(start):
    process = start("ignore")
    assert process.communicate(timeout=60)[0] == "interrupted 2\n"
    assert process.returncode == 0
