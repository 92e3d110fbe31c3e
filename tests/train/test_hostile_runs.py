"""What no run should take: tricks of YAML, folders of others, checkpoints that were tampered with."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import yaml
from train_runs import command, commits, damage, make_data, manifest, read_lines, settings, write_model, write_yaml

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.cli.train_options import read_config
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.data.loader import Batch
from mindspeed_ms.errors import CheckpointError, ConfigError, TrainError
from mindspeed_ms.train.plan import make_plan
from mindspeed_ms.train.run import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    """A run of two steps with a checkpoint of each."""
    out = tmp_path_factory.mktemp("begun") / "run"
    go(settings(data, out, run__steps=2, run__save_every=1))
    return out


def go(values, resume=False):
    return train(TrainConfig.parse(values), resume=resume)


# Configurations


@pytest.mark.parametrize("value", ["!!bool x", '!!int ""', "!!timestamp x", "&a [*a", "!!python/name:os.system"])
def test_a_setting_that_is_no_value_of_its_tag_is_one_line(value, data, tmp_path):
    file = write_yaml(tmp_path / "run.yaml", settings(data, tmp_path / "run"))
    with pytest.raises(ConfigError, match="--set run.seed=.*: the value is not YAML"):
        read_config(file, [f"run.seed={value}"], None)


def endless():
    inner = {"x": 1}
    for _ in range(12):
        inner = {f"k{i}": inner for i in range(10)}
    return inner


def circle():
    inner = {}
    inner["x"] = inner
    return inner


def deep():
    inner = 1
    for _ in range(400):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize("make", [endless, circle, deep, lambda: {"a": [endless()]}])
def test_a_model_of_aliases_without_end_is_refused(make, data, tmp_path):
    with pytest.raises(ConfigError, match="model.config.*expected at most 10,000 values, not more than 16"):
        TrainConfig.parse(settings(data, tmp_path / "run", model={"config": make()}))


@pytest.mark.parametrize("value", [".nan", "1e400", "2020-01-01", "!!binary aGk=", "!!set {a: null}"])
def test_a_number_of_a_model_that_json_does_not_hold_is_refused_and_no_default_takes_its_place(value, data, tmp_path):
    text = yaml.safe_dump(settings(data, tmp_path / "run")).replace("hidden_size: 32", f"hidden_size: {value}")
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match="model.config.*expected (numbers that are finite|what JSON can hold, not a)"):
        read_config(tmp_path / "run.yaml", [], None)


@pytest.mark.parametrize("key", ["run__out", "data__train", "data__eval"])
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_is_none_is_refused(key, path, data, tmp_path):
    with pytest.raises(ConfigError, match=f"{key.replace('__', '.')} is .*; expected a path"):
        TrainConfig.parse(settings(data, tmp_path / "run", **{key: path}))


@pytest.mark.parametrize("key", ["run__steps", "optimizer__learning_rate", "data__batch_size", "step__max_grad_norm"])
def test_true_is_no_number(key, data, tmp_path):
    with pytest.raises(ConfigError, match=f"{key.replace('__', '.')} is True; expected neither true nor false"):
        TrainConfig.parse(settings(data, tmp_path / "run", **{key: True}))


MODELS = {
    "initializer_range": ["x", -1, 0, [1], True],
    "eos_token_id": ["x", -5, 99999, [1, 1000]],
    "pad_token_id": [[1]],
    "attention_dropout": [0.5],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in MODELS.items() for value in values])
def test_what_a_new_model_cannot_be_trained_or_used_with_is_refused(key, value, data, tmp_path):
    values = settings(data, tmp_path / "run")
    values["model"]["config"][key] = value
    with pytest.raises(ConfigError, match=f"model.config: {key} is .*; expected"):
        make_plan(TrainConfig.parse(values))


def test_a_plan_knows_the_layers_that_lora_names(data, tmp_path):
    base = write_model(tmp_path / "base", data)
    values = settings(data, tmp_path / "run", model={"from": str(base)}, lora={"targets": ["q_proj", "x_proj"]})
    with pytest.raises(ConfigError, match="no linear layer is named 'x_proj'; expected some of: q_proj, k_proj"):
        make_plan(TrainConfig.parse(values))
    values["lora"]["targets"] = ["q_proj", "model.layers.0.mlp.up_proj"]
    assert len(make_plan(TrainConfig.parse(values)).trained_shapes) == 4


# Folders


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "samples.jsonl", "run.json"])
def test_a_file_of_somebody_else_is_not_replaced(name, data, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(TrainError, match=f"{name}"):
        go(settings(data, tmp_path, run__steps=1))
    assert (tmp_path / name).read_text() == "mine"


def test_the_model_that_a_run_begins_with_is_not_replaced_by_the_one_it_makes(data, tmp_path):
    base = write_model(tmp_path / "model", data)
    before = (base / "model.safetensors").read_bytes()
    with pytest.raises(TrainError, match="holds model, which a run would replace; give another folder"):
        go(settings(data, tmp_path, model={"from": str(base)}, run__steps=1))
    assert (base / "model.safetensors").read_bytes() == before


def test_a_new_run_does_not_mix_with_checkpoints_that_lie_there(begun, data, tmp_path):
    shutil.copytree(begun / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(TrainError, match="holds checkpoints, which a run would replace"):
        go(settings(data, tmp_path / "run", run__steps=1))


def test_the_configuration_that_a_killed_run_has_left_alone_is_no_obstacle(begun, data, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(begun / "config.yaml", tmp_path / "run")
    assert go(settings(data, tmp_path / "run", run__steps=1)).step == 1


def test_a_pipe_in_the_place_of_metrics_is_not_waited_for(begun, data, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(TrainError, match="holds a run already"):
        go(settings(data, tmp_path / "run", run__steps=2, run__save_every=1))


# Checkpoints


def tamper(begun, folder, change, digest=None):
    shutil.copytree(begun, folder)
    path = manifest(folder, 2)
    values = json.loads(path.read_text().splitlines()[0])
    change(values)
    line = json.dumps(values, sort_keys=True, separators=(",", ":"))
    path.write_text(f"{line}\n{hashlib.sha256(line.encode()).hexdigest() if digest is None else digest}\n")


DAMAGED = {
    "no step": (lambda values: values.pop("step"), "0" * 64),
    "no digest": (lambda values: None, ""),
    "another digest": (lambda values: None, "0" * 64),
    "NaN": (lambda values: values["state"].__setitem__("loss", float("nan")), None),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_state_that_no_checkpoint_has_is_damage(damage, begun, tmp_path):
    tamper(begun, tmp_path / "run", *DAMAGED[damage])
    store = CheckpointStore(tmp_path / "run" / "checkpoints", write=False)
    assert store.load().step == 1
    with pytest.raises(CheckpointError, match="step-00000002.*the checkpoint is damaged"):
        store.load(2)


OTHERS = {
    "frozen": lambda state: state.pop("frozen"),
    "step": lambda state: state.__setitem__("step", "x"),
    "tokens": lambda state: state.__setitem__("tokens", None),
    "bad": lambda state: state.__setitem__("bad", {"x": 1}),
    "done": lambda state: state["done"].__setitem__("eval", "x"),
    "evaluation": lambda state: state.__setitem__("evaluation", {"a": 1}),
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_checkpoint_of_another_version_is_refused_by_the_key_that_differs(key, begun, data, tmp_path):
    tamper(begun, tmp_path / "run", lambda values: OTHERS[key](values["state"]))
    with pytest.raises(CheckpointError, match=f"the checkpoint of step 2: its '{key}' is not what this program writes"):
        go(settings(data, tmp_path / "run", run__steps=3, run__save_every=1), resume=True)


def test_the_step_of_the_state_is_that_of_the_checkpoint(begun, data, tmp_path):
    tamper(begun, tmp_path / "run", lambda values: values["state"]["step"].__setitem__("step", 1))
    with pytest.raises(CheckpointError, match="its 'step' is not"):
        go(settings(data, tmp_path / "run", run__steps=3, run__save_every=1), resume=True)


def test_a_checkpoint_is_not_pruned_for_a_later_one_that_is_damaged(tmp_path):
    tensors = {"x": np.ones(3, np.float32)}
    with CheckpointStore(tmp_path / "checkpoints", keep=1) as store:
        store.save(7, tensors, {}, wait=True)
        damage(tmp_path, 7)
        store.save(5, tensors, {}, wait=True)
        assert store.load().step == 5
        store.save(8, {"x": np.zeros(3, np.float32)}, {}, wait=True)
        assert store.steps() == [8]


def test_a_run_that_goes_on_removes_the_damaged_checkpoint_that_it_went_back_behind(begun, data, tmp_path):
    """It would be the newest again as soon as it looks whole, and stand before those that are made anew."""
    shutil.copytree(begun, tmp_path / "run")
    damage(tmp_path / "run", 2)
    values = settings(data, tmp_path / "run", run__steps=3, run__save_every=None)
    assert go(values, resume=True).step == 3
    assert commits(tmp_path / "run") == [1, 3]


def test_a_commit_of_another_model_in_the_folder_is_refused_by_the_key_that_differs(begun, data, tmp_path):
    values = settings(data, tmp_path / "run", run__steps=3, run__save_every=1)
    wider = dict(values["model"]["config"]) | {"intermediate_size": 64}
    go({**values, "model": {"config": wider}})
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(begun / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="another model: architecture of the model is .*this run's is"):
        go({**values, "model": {"config": wider}, "run": {**values["run"], "steps": 4}}, resume=True)


# While it trains


def test_a_set_without_a_token_to_learn_ends_the_run(data, tmp_path, monkeypatch):
    getitem = Batch.__getitem__
    monkeypatch.setattr(
        Batch,
        "__getitem__",
        lambda self, name: getitem(self, name) * 0 - 100 if name == "labels" else getitem(self, name),
    )
    values = settings(data, tmp_path / "run", guard={"max_skipped": 3})
    with pytest.raises(TrainError, match="data.train: 3 steps in a row, from step 1 on, .*had no token to learn"):
        go(values)
    assert [line["reason"] for line in read_lines(tmp_path / "run", "skip")] == ["no token to learn in the batch"] * 3


def test_bad_steps_in_a_row_are_counted_over_a_checkpoint(data, tmp_path, monkeypatch):
    getitem = Batch.__getitem__
    monkeypatch.setattr(
        Batch,
        "__getitem__",
        lambda self, name: getitem(self, name) * 0 - 100 if name == "labels" else getitem(self, name),
    )
    values = settings(data, tmp_path / "run", guard={"max_skipped": 3}, run__save_every=1, run__steps=2)
    go(values)
    values["run"]["steps"] = 9
    with pytest.raises(TrainError, match="3 steps in a row, from step 1 on,.*the checkpoint of step 2 is kept"):
        go(values, resume=True)


def test_no_checkpoint_and_no_model_is_made_of_weights_that_are_not_finite(data, tmp_path):
    values = settings(data, tmp_path / "run", run__steps=3, run__save_every=2, optimizer__learning_rate=1e38)
    with pytest.raises(
        TrainError, match="step 2: weight .* is not finite.*there is no checkpoint yet; lower optimizer"
    ):
        go(values)
    assert not (tmp_path / "run" / "model").exists() and commits(tmp_path / "run") == []
    values["run"] |= {"out": str(tmp_path / "short"), "steps": 2, "save_every": None}
    with pytest.raises(TrainError, match="step 2: weight .* is not finite"):
        go(values)
    assert not (tmp_path / "short" / "model").exists()


def test_a_loss_that_has_diverged_does_not_push_out_good_checkpoints(data, tmp_path):
    values = settings(data, tmp_path / "run", run__save_every=1, run__keep=1, optimizer__learning_rate=30.0)
    values["guard"] = {"max_skipped": 3, "max_loss_ratio": 1.5}
    with pytest.raises(TrainError, match="the loss has diverged: from step (\\d+) on it was above 1.5 times") as failed:
        go(values)
    first = int(str(failed.value).split("from step ")[1].split()[0])
    assert commits(tmp_path / "run") == [first - 1] or first == 1


def test_a_sample_file_that_was_tampered_with_is_cut_there(begun, data, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    (tmp_path / "run" / "samples.jsonl").write_text("[" * 100_000 + "\n")
    done = go(settings(data, tmp_path / "run", run__steps=2, run__save_every=1), resume=True)
    assert done.step == 2 and (tmp_path / "run" / "samples.jsonl").read_bytes() == b""


def test_the_command_line_says_it_in_one_line(data, tmp_path):
    done = command(write_yaml(tmp_path / "run.yaml", settings(data, tmp_path / "run")), "--set", "run.seed=!!bool x")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
