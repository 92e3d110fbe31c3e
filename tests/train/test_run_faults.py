"""What goes wrong in a run: each in one line, before it costs anything, and with what was learnt kept."""

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file, save_file
from train_runs import (
    ROOT,
    command,
    commits,
    damage,
    losses,
    make_data,
    make_set,
    read_lines,
    settings,
    write_model,
    write_yaml,
)

from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import CheckpointError, ConfigError, DataError, MindSpeedError, TrainError, WeightsError
from mindspeed_ms.train.lock import only_run
from mindspeed_ms.train.plan import make_plan
from mindspeed_ms.train.run import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def go(values, resume=False, observe=None):
    return train(TrainConfig.parse(values), resume=resume, observe=observe)


def plan(values):
    return make_plan(TrainConfig.parse(values))


# Before the first step


def test_a_vocabulary_smaller_than_the_ids_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="its tokenizer has 1000 tokens, but the model's vocab_size is 99"):
        plan(settings(data, tmp_path / "run", model__config={"model_type": "llama", "vocab_size": 99}))


def test_rows_longer_than_the_context_are_refused(data, tmp_path):
    values = settings(data, tmp_path / "run")
    values["model"]["config"]["max_position_embeddings"] = 15
    with pytest.raises(ConfigError, match="rows have up to 16 tokens.*max_position_embeddings is 15"):
        plan(values)


def test_a_data_set_of_another_tokenizer_is_refused(data, tmp_path):
    base = write_model(tmp_path / "base", data)
    changed = json.loads((base / "tokenizer.json").read_text())
    changed["model"]["vocab"]["w7"], changed["model"]["vocab"]["w8"] = 8, 7
    (base / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="a tokenizer with SHA-256 .*was made with"):
        plan(settings(data, tmp_path / "run", model={"from": str(base)}))


def test_the_training_set_is_not_held_out_data(data, tmp_path):
    with pytest.raises(ConfigError, match="data.eval: .* is the set that is learnt"):
        plan(settings(data, tmp_path / "run", data__eval=str(data / "set")))


def test_a_folder_that_is_no_set_is_named_with_its_key(data, tmp_path):
    with pytest.raises(DataError, match="data.train: .*nothing: no manifest.json in it"):
        plan(settings(data, tmp_path / "run", data__train=str(tmp_path / "nothing")))


def test_a_damaged_set_is_refused(data, tmp_path):
    shutil.copytree(data / "set", tmp_path / "set")
    block = next((tmp_path / "set").rglob("*.block"))
    content = bytearray(block.read_bytes())
    content[5] ^= 1
    block.write_bytes(content)
    with pytest.raises(DataError, match="data.train: .*its SHA-256 is not the manifest's"):
        plan(settings(data, tmp_path / "run", data__train=str(tmp_path / "set")))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_named(value, data, tmp_path):
    base = write_model(tmp_path / "base", data)
    tensors = {name: array.copy() for name, array in load_file(base / "model.safetensors").items()}
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, base / "model.safetensors")
    with pytest.raises(WeightsError, match="'model.layers.0.mlp.up_proj.weight' holds 1 values that are not finite"):
        go(settings(data, tmp_path / "run", model={"from": str(base)}))
    assert not (tmp_path / "run" / "run.json").exists()


def test_more_memory_than_there_is_is_refused_with_an_estimate(data, tmp_path):
    config = {"model_type": "llama", "hidden_size": 1 << 16, "intermediate_size": 1 << 18, "num_hidden_layers": 100}
    config |= {"num_attention_heads": 512, "max_position_embeddings": 64}
    with pytest.raises(TrainError, match=r"out of memory before the first step: .*of \[4, 16\].*lower data.batch_size"):
        plan(settings(data, tmp_path / "run", model__config=config))


def test_a_prompt_longer_than_the_context_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="run.samples: 'w5 w5 .*makes 40 tokens, expected 1 to 31"):
        go(settings(data, tmp_path / "run", run__samples=["w5 " * 40]))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_that_failed_before_its_first_step_is_no_run(data, tmp_path):
    def fails(kind, step, fields):
        raise MemoryError

    values = settings(data, tmp_path / "run", run__steps=1)
    with pytest.raises(MemoryError):
        go(values, observe=fails)
    assert (tmp_path / "run" / "run.json").exists()
    assert go(settings(data, tmp_path / "run", run__steps=1, data__batch_size=2)).step == 1
    assert len(read_lines(tmp_path / "run", "start")) == len(losses(tmp_path / "run")) == 1


# One folder, one run


def test_a_second_run_into_a_folder_is_refused_while_the_first_is_at_it(data, tmp_path):
    (tmp_path / "run").mkdir()
    refused = pytest.raises(TrainError, match=f"another run writes into it .process {os.getpid()}")
    with only_run(tmp_path / "run"), refused:
        go(settings(data, tmp_path / "run"))


def test_the_lock_goes_with_the_process_that_had_it(data, tmp_path):
    code = "import sys, time, pathlib\nfrom mindspeed_ms.train.lock import only_run\n"
    code += "with only_run(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(TrainError, match=f"process {process.pid} on"), only_run(tmp_path):
        pass
    process.kill()
    process.communicate()
    with only_run(tmp_path):
        pass


def test_a_folder_with_a_run_is_not_begun_in_again(data, tmp_path):
    values = settings(data, tmp_path / "run", run__steps=1)
    go(values)
    with pytest.raises(TrainError, match="holds a run already .its last checkpoint is of step 1.; go on with --resume"):
        go(values)


def test_there_has_to_be_a_run_to_go_on_with(data, tmp_path):
    with pytest.raises(TrainError, match="no run in it to go on with"):
        go(settings(data, tmp_path / "run"), resume=True)
    assert not (tmp_path / "run").exists()


# Going on otherwise


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("begun") / "run"
    go(settings(data, out, run__steps=2))
    return out


CHANGES = {
    "seed": ({"run__seed": 4}, "run.seed was 3 and is 4"),
    "optimizer": ({"optimizer": {"name": "lion", "learning_rate": 0.01}}, 'optimizer.name was "adamw" and is "lion"'),
    "learning rate": ({"optimizer__learning_rate": 0.1}, "optimizer.learning_rate was 0.01 and is 0.1"),
    "batch": ({"data__batch_size": 8}, "data.batch_size was 4 and is 8"),
    "adapters": ({"lora": {}}, "lora trains adapters"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_decides_the_steps_is_refused_by_name(change, begun, data):
    changes, expected = CHANGES[change]
    with pytest.raises(MindSpeedError, match=expected):
        go(settings(data, begun, run__steps=3, **changes), resume=True)
    assert len(losses(begun)) == 2


def test_other_data_is_refused(begun, data, tmp_path):
    make_set(tmp_path / "set", {16: 40}, seed=9)
    with pytest.raises(TrainError, match="data.train: what is there now is not what the run began with"):
        changes = {"data__train": str(tmp_path / "set")}
        go(settings(data, begun, run__steps=3, **changes), resume=True)


def test_another_model_is_refused(begun, data):
    values = settings(data, begun, run__steps=3)
    values["model"]["config"]["num_hidden_layers"] = 2
    with pytest.raises(TrainError, match="architecture of the model: what is there now is not what the run began with"):
        go(values, resume=True)


# While it trains


def test_a_loss_far_above_guessing_ends_the_run(data, tmp_path):
    values = settings(data, tmp_path / "run", optimizer__learning_rate=30.0)
    values["guard"] = {"max_skipped": 2, "max_loss_ratio": 1.5}
    with pytest.raises(TrainError, match=r"the loss has diverged: from step \d+ on it was above 1.5 times"):
        go(values)
    assert read_lines(tmp_path / "run", "end")[-1]["reason"].count("lower optimizer.learning_rate") == 1


def test_a_loader_whose_thread_dies_ends_the_run_with_what_was_learnt(data, tmp_path):
    shutil.copytree(data / "set", tmp_path / "set")
    plain = settings(data, tmp_path / "whole", run__steps=5)
    go(plain)
    values = settings(data, tmp_path / "run", run__steps=5)
    made = make_plan(TrainConfig.parse(values)).loader
    take, calls = type(made._plan).take, []

    def dies(self, step, rank, world_size):
        calls.append(step)
        if len(calls) > 3:
            raise OSError(5, "Input/output error")
        return take(self, step, rank, world_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(made._plan), "take", dies)
        with pytest.raises(TrainError, match=r"no batch could be made after step 3 .*Input/output error.*resume"):
            go(values)
    assert "Input/output error" in read_lines(tmp_path / "run", "end")[-1]["reason"]
    go(values, resume=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays_whole(data, tmp_path):
    """A limit on the size of files is what a test can have of a full disk."""
    out = tmp_path / "run"

    def full_after_5(kind, step, fields):
        if kind == "checkpoint" and fields["of"] == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(CheckpointError, match="step-00000010.json: no space left on the disk.*resume the run"):
            go(settings(data, out), observe=full_after_5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert commits(out) == [5]
    assert not [path for path in (out / "checkpoints").iterdir() if "10" in path.name]
    assert "step-00000010" in read_lines(out, "end")[-1]["reason"]
    assert go(settings(data, out), resume=True).step == 12
    assert len(losses(out)) == 12


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_taken(data, tmp_path, caplog):
    out = tmp_path / "run"
    go(settings(data, out))
    expected = losses(out)
    damage(out, 12)
    go(settings(data, out), resume=True)
    assert "step-00000012" in caplog.text and "the newest good checkpoint is that of step 10" in caplog.text
    assert read_lines(out, "resume")[0]["step"] == 10
    assert losses(out) == expected


# On the command line


def test_a_mistake_is_one_line_and_exit_2(data, tmp_path):
    done = command(write_yaml(tmp_path / "run.yaml", settings(data, tmp_path / "run")), "--set", "run.stepz=1")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}/run.yaml and options: unknown key 'run.stepz'; did you mean 'steps'?"
    ]


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(data, tmp_path):
    file = write_yaml(tmp_path / "run.yaml", settings(data, tmp_path / "run"))
    done = command(file, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["steps"], found["batch_shapes"], found["epochs"]) == (12, [[4, 16]], 1.2)
    assert found["parameters"] == 1000 * 32 + 32 + (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32)
    assert not (tmp_path / "run").exists()
    assert "in all" in command(file, "--dry-run").stdout


def test_ctrl_c_ends_the_command_with_a_checkpoint_and_the_way_on(data, tmp_path):
    """SIGTERM takes the same way: test_run.py sends it in this process."""
    out = tmp_path / "run"
    file = write_yaml(tmp_path / "run.yaml", settings(data, out, run__steps=100_000, run__save_every=100_000))
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job has it ignored
        "from mindspeed_ms.cli.main import main\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", str(file), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(600):
            if (out / "metrics.jsonl").exists() and len(read_lines_so_far(out)) > 5:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT, stderr
    done = json.loads(stdout)
    assert done["complete"] is False and done["steps"] > 0
    last = stderr.splitlines()[-1]
    assert last == f"stopped at step {done['steps']} of 100000; go on with: mindspeed-ms train {out} --resume"
    assert commits(out) == [done["steps"]]
    again = command(out, "--resume", "--set", f"run.steps={done['steps'] + 1}")
    assert again.returncode == 0, again.stderr
    assert len(losses(out)) == done["steps"] + 1


def read_lines_so_far(folder):
    return (folder / "metrics.jsonl").read_bytes().splitlines()
