"""Runs that are killed at any moment and go on come to the same losses and the same weights, to the last bit.

MINDSPEED_MS_RUN_KILLS says how many kills a run survives (default 1; the long form takes 10).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from train_runs import (
    COSINE,
    ROOT,
    commits,
    losses,
    make_data,
    read_lines,
    settings,
    two_ranks,
    weights,
    write_model,
    write_yaml,
)  # fmt: skip

KILLS = int(os.environ.get("MINDSPEED_MS_RUN_KILLS", "1"))
STEPS = 24
PAIR = Path(__file__).with_name("killed_pair.py")
HALF = {"amp": "O2", "loss_scale": "dynamic", "micro_batches": 2}
LORA = {"lora": {"rank": 2, "dropout": 0.3, "merge": True}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = make_data(tmp_path_factory.mktemp("data"))
    write_model(folder / "base", folder)
    return folder


def variant(data, name, out):
    """A run of STEPS steps that saves every second one."""
    changes = {
        "float16": {"step": HALF},
        "adapters": {**LORA, "model": {"from": str(data / "base")}},
        "adapters in micro-batches": {**LORA, "model": {"from": str(data / "base")}, "step__micro_batches": 3},
        "offload": {"step": {"offload_optimizer": True, "micro_batches": 2}},
    }[name]
    values = settings(data, out, schedule=COSINE, run__steps=STEPS, run__save_every=2, **changes)
    values["run"] |= {"eval_every": 6, "keep": 3, "keep_every": 8, "keep_best": 1}
    values["data"]["eval"] = str(data / "held-out")
    return values


def begin(*arguments, threads=None, **options):
    """A `train` process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if threads is not None:
        env["MINDSPEED_MS_THREADS"] = str(threads)
    command = [sys.executable, "-m", "mindspeed_ms.cli.main", "train", *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def whole(process):
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr[-3000:]


def steps_made(out):
    """Whole lines of steps so far, without reading what is half written."""
    try:
        return (out / "metrics.jsonl").read_bytes().count(b'{"kind": "step"')
    except FileNotFoundError:
        return 0


def kill_after(process, out, steps, delay, number=signal.SIGKILL):
    """Send a signal some time after a step; returns whether the process was still there."""
    until = time.monotonic() + 240
    while process.poll() is None and steps_made(out) < steps and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(delay)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode in (0, -number, 128 + number), stderr[-3000:]
    return process.returncode != 0


def undisturbed_and_killed(values, folder, seed, threads=2):
    """(folder of a run that nothing interrupts, of one that is killed again and again until it is done)."""
    draw = random.Random(seed)
    whole_values = {**values, "run": {**values["run"], "out": str(folder / "whole")}}
    first = begin(write_yaml(folder / "whole.yaml", whole_values))
    out = folder / "run"
    process, killed = begin(write_yaml(folder / "run.yaml", values)), 0
    for number in range(KILLS):
        after = max(steps_made(out), 0) + draw.randint(1, max(1, STEPS // (KILLS + 1)))
        killed += kill_after(process, out, min(after, STEPS - 1), draw.random() * 0.05)
        # other threads from process to process: the bits do not depend on them
        resumed = out if (out / "run.json").exists() else folder / "run.yaml"
        arguments = [resumed, "--resume"] if resumed == out else [resumed]
        process = begin(*arguments, threads=1 + number % threads)
    whole(process)
    whole(first)
    assert killed or KILLS > 1
    return folder / "whole", out


def same(first, second):
    """The lines of steps and evaluations, but for what the clock decides, and the model."""
    assert losses(second) == losses(first)
    assert weights(second) == weights(first)
    made = [[line for line in read_lines(out) if line["kind"] in ("step", "eval")] for out in (first, second)]
    for key in ("step", "loss", "tokens", "learning_rate", "grad_norm", "skipped", "loss_scale", "rows", "perplexity"):
        assert [line.get(key) for line in made[1]] == [line.get(key) for line in made[0]], key


@pytest.mark.parametrize("name", ["float16", "adapters"])
def test_a_run_that_is_killed_goes_on_bit_by_bit(name, data, tmp_path):
    first, second = undisturbed_and_killed(variant(data, name, tmp_path / "run"), tmp_path, seed=name)
    same(first, second)
    assert commits(second) == commits(first)


def test_a_run_that_is_stopped_within_a_step_goes_on_within_it(data, tmp_path):
    """SIGTERM between micro-batches, with dropout, with the optimizer's state in files, and with other threads."""
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: stop_within(data, tmp_path, name), ["adapters in micro-batches", "offload"]):
            same(*done)


def stop_within(data, folder, name):
    folder = folder / name.replace(" ", "-")
    folder.mkdir()
    values = variant(data, name, folder / "run")
    # Of a slow step nearly all time is between its micro-batches.
    values["step"]["micro_batches"] = 40
    values["run"] |= {"steps": 4, "save_every": 3, "eval_every": 3, "keep_every": None}
    done = [folder / "whole", folder / "run"]
    for out in done:
        values["run"]["out"] = str(out)
        process = begin(write_yaml(folder / f"{out.name}.yaml", values))
        if out.name == "run":
            assert kill_after(process, out, 1, 0.05, signal.SIGTERM)
            pending = state(out)["step"]["pending"]
            process = begin(out, "--resume", threads=1)
        whole(process)
    assert 0 < pending < 40
    return done


def state(out):
    path = sorted((out / "checkpoints").glob("step-*.json"))[-1]
    return json.loads(path.read_text().splitlines()[0])["state"]


# Two processes that share the steps


def run_pair(folder, *, kill=None):
    """Two ranks under msrun; `kill` says after which step each of them is killed."""
    command, env = two_ranks(folder, PAIR)
    folder.mkdir(exist_ok=True)
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        if kill is not None:
            wait_for_step(folder, kill)
            for rank in (0, 1):
                os.kill(int((folder / f"rank{rank}.pid").read_text()), signal.SIGKILL)
            os.killpg(process.pid, signal.SIGKILL)  # what started them would wait half a minute
        output = process.communicate(timeout=300)[0]
        logs = "".join(log.read_text(errors="replace")[-3000:] for log in (folder / "log").glob("worker_*.log"))
        assert kill is not None or process.returncode == 0, output[-2000:] + logs


def wait_for_step(folder, step):
    until = time.monotonic() + 240
    while time.monotonic() < until:
        made = [path.read_text().count("\n") for path in folder.glob("rank?.txt")]
        if len(made) == 2 and min(made) >= step:
            return
        time.sleep(0.005)
    raise AssertionError(f"no step {step} in time")


def test_two_ranks_that_are_killed_go_on_bit_by_bit(tmp_path):
    draw = random.Random(7)
    with ThreadPoolExecutor() as pool:
        undisturbed = pool.submit(run_pair, tmp_path / "whole")
        for _ in range(KILLS):
            run_pair(tmp_path / "pair", kill=draw.randint(4, 10))
        run_pair(tmp_path / "pair")
        undisturbed.result()
    for rank in (0, 1):
        first, second = (np.load(tmp_path / name / f"rank{rank}.npz") for name in ("whole", "pair"))
        assert first.files == second.files
        for name in first.files:
            np.testing.assert_array_equal(second[name], first[name], err_msg=name)
        text = [(tmp_path / name / f"rank{rank}.txt").read_text() for name in ("whole", "pair")]
        assert set(text[1].splitlines()) == set(text[0].splitlines())  # steps made twice gave the same loss
        # It went on from a commit: not all steps before the last kill were made again.
        assert text[0].count("\n") < text[1].count("\n") < 2 * text[0].count("\n") or KILLS > 1
