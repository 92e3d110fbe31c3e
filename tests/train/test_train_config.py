"""What `train` may be asked: contradictions are refused by name, and the shipped files tell the truth."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from mindspeed_ms.cli.train_options import read_config
from mindspeed_ms.config.base import load_yaml
from mindspeed_ms.config.train import LoraSettings, TrainConfig
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.train.optimizer import OPTIMIZERS

FILES = sorted((Path(__file__).resolve().parents[2] / "configs" / "train").glob("*.yaml"))
COMMENT = re.compile(r"^ *# (?P<meaning>.+) \[(?P<type>.+); default: (?P<default>.+)\]$")
KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):( .+)?$")
SMALLEST = {
    "model": {"from": "x"},
    "data": {"train": "set", "batch_size": 2},
    "run": {"out": "o", "steps": 3},
    "optimizer": {"learning_rate": 1e-3},
}


def parse(**changes):
    values = {section: dict(content) for section, content in SMALLEST.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return TrainConfig.parse(values, "run.yaml")


RUN = {"out": "o", "steps": 8, "save_every": 2}
WRONG = {
    "an unknown key": ({"optimizer__lr": 1}, "unknown key 'optimizer.lr'"),
    "a misspelt key": ({"run__step": 1}, "unknown key 'run.step'; did you mean 'steps'"),
    "an alias of ours": ({"model": {"source": "x"}}, "unknown key 'model.source'"),
    "two models": ({"model__config": {}}, "model: expected one of 'from'.*both are given"),
    "no model": ({"model": {}}, "model: expected one of .*neither is there"),
    "two batch sizes": ({"data__tokens_per_batch": 9}, "expected one of batch_size and tokens_per_batch, both"),
    "no length": ({"run": {"out": "o"}}, "run: expected one of steps and epochs, neither"),
    "two lengths": ({"run__epochs": 1}, "run: expected one of steps and epochs, both"),
    "no learning rate": ({"optimizer": {}}, "the key 'optimizer.learning_rate' is missing"),
    "a negative learning rate": ({"optimizer__learning_rate": -1}, "optimizer.learning_rate is -1"),
    "an infinite learning rate": ({"optimizer__learning_rate": float("inf")}, "optimizer.learning_rate is inf"),
    "another optimizer's key": ({"optimizer__momentum": 0.9}, "momentum has no effect with adamw, whose keys are"),
    "nesterov alone": ({"optimizer__name": "sgd", "optimizer__nesterov": True}, "nesterov needs momentum"),
    "no_decay alone": ({"optimizer__no_decay": ["*embed*"]}, "no_decay has no effect without weight_decay"),
    "a decay of a constant": ({"schedule__min_ratio": 0.1}, "min_ratio has no effect with constant"),
    "a shape of a cosine": ({"schedule": {"name": "cosine", "decay": "sqrt"}}, "decay has no effect with cosine"),
    "an endless warmup": ({"schedule__warmup_steps": 4}, "warmup_steps 4 is more than run.steps 3"),
    "a scale for float32": ({"step__loss_scale": "dynamic"}, "loss_scale has no effect with amp O0"),
    "a scale that is none": ({"step": {"amp": "O2", "loss_scale": "large"}}, "loss_scale is 'large'; expected null"),
    "a scale of zero": ({"step": {"amp": "O2", "loss_scale": 0}}, "loss_scale is 0; expected null"),
    "evaluation of nothing": ({"run__eval_every": 2}, "run.eval_every has no effect without data.eval"),
    "batches of nothing": ({"data__eval_batches": 2}, "eval_batches has no effect without eval"),
    "keeping some of all": ({"run": {**RUN, "keep": 0, "keep_every": 4}}, "keep_every has no effect with keep 0"),
    "keeping the best of all": ({"run": {**RUN, "keep": 0, "keep_best": 1}}, "keep_best has no effect with keep 0"),
    "keeping what is not saved": ({"run": {**RUN, "keep_every": 5}}, "keep_every is 5, expected a multiple of .* .2."),
    "keeping without saving": ({"run__keep_every": 5}, "keep_every is 5, expected a multiple of save_every .None."),
    "the best of what is not compared": ({"run": {**RUN, "keep_best": 1}}, "keep_best needs save_every and eval_every"),
    "samples of nothing": ({"run__sample_tokens": 9}, "sample_tokens has no effect without samples"),
    "adapters of noise": ({"model": {"config": {}}, "lora": {}}, "lora trains adapters of a trained model"),
    "no targets": ({"lora__targets": []}, "lora.targets is .*expected names of layers"),
    "two wrappers": ({"lora": {}, "step": {"amp": "O1"}}, "step.amp O1 wraps the layers that lora wraps"),
    "rank 0": ({"lora__rank": 0}, "lora.rank is 0"),
    "a guard that never acts": ({"guard__max_skipped": 0}, "guard.max_skipped is 0"),
    "a chat without template": (
        {"model": {"config": {}}, "run": {"out": "o", "steps": 1, "samples": ["a"], "chat": True}},
        "run.chat needs a chat template",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_itself_is_refused_in_one_line(case):
    changes, expected = WRONG[case]
    with pytest.raises(ConfigError, match=expected) as error:
        parse(**changes)
    assert str(error.value).startswith("run.yaml: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_takes_the_settings_that_its_keys_give(name):
    given = {"betas": (0.8, 0.9), "eps": 1e-6, "momentum": 0.9, "dampening": 0.1, "beta2_decay": -0.7, "clip": 2.0}
    keys = TrainConfig.model_fields["optimizer"].annotation.KEYS[name]
    chosen = {f"optimizer__{key}": given[key] for key in keys if key in given}
    config = parse(optimizer__name=name, optimizer__weight_decay=0.5, optimizer__no_decay=["*a*"], **chosen)
    made = OPTIMIZERS[name](**config.optimizer.settings())
    assert made.weight_decay == 0.5 and made.no_decay == ("*a*",)
    assert {key: getattr(made, key) for key in keys if key in given} == {k: given[k] for k in keys if k in given}


def test_numbers_of_a_model_may_have_an_exponent():
    """YAML 1.1, which PyYAML reads, takes 1e-5 for text."""
    config = yaml.safe_load("{rms_norm_eps: 1e-5, rope_scaling: {factor: 2E0}, model_type: llama, hidden_act: silu}")
    found = parse(model={"config": config}).model.config
    assert found == {**config, "rms_norm_eps": 1e-5, "rope_scaling": {"factor": 2.0}}


# The command line: a file, keys of it replaced, a run's folder


def write(path, values=SMALLEST):
    path.write_text(yaml.safe_dump(values))
    return path


def test_set_replaces_keys_and_their_rivals(tmp_path):
    file = write(tmp_path / "run.yaml")
    settings = ["run.epochs=2", "optimizer.learning_rate=1e-4", "lora.rank=4", "data.tokens_per_batch=64"]
    found = read_config(file, [*settings, "run.samples=[a, b]"], out=tmp_path / "here")
    assert (found.run.steps, found.run.epochs, found.optimizer.learning_rate) == (None, 2, 1e-4)
    assert (found.data.batch_size, found.data.tokens_per_batch) == (None, 64)
    assert found.lora == LoraSettings(rank=4)
    assert found.run.samples == ["a", "b"] and found.run.out == str(tmp_path / "here")


def test_a_key_with_a_value_may_be_missing_in_the_file(tmp_path):
    file = write(tmp_path / "run.yaml", {**SMALLEST, "run": {"steps": 3}})
    assert read_config(file, [], out=Path("there")).run.out == "there"
    with pytest.raises(ConfigError, match=r"run\.yaml: the key 'run\.out' is missing"):
        read_config(file, [], out=None)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("run.steps", "expected KEY=VALUE"),
        ("run.steps.x=1", "steps is '3', which has no keys"),
        ("run.steps=[", "the value is not YAML"),
        ("run.stepz=1", "unknown key 'run.stepz'; did you mean 'steps'"),
        ("runs.steps=1", "unknown key 'runs'; did you mean 'run'"),
    ],
)
def test_a_wrong_setting_is_one_line(setting, expected, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        read_config(write(tmp_path / "run.yaml"), [setting], out=None)


def test_the_folder_of_a_run_is_its_configuration_wherever_it_lies_now(tmp_path):
    write(tmp_path / "config.yaml")
    assert read_config(tmp_path, [], out=None).run.out == str(tmp_path)


# The shipped files


def defaults(model: type[BaseModel], section: str = "") -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = {}
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= defaults(field.annotation, key)
        else:
            name = field.alias or key
            found[section, name] = "none, it has to be given" if field.is_required() else field.default
    return found


def test_there_are_configurations_to_copy():
    ours = ["english", "pirate", "poems", "scratch-135m", "smollm2-full", "smollm2-lora", "tiny"]
    assert [file.stem for file in FILES] == ours


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_configuration_loads_and_each_of_its_lines_has_its_effect(file):
    assert load_yaml(file, TrainConfig).plain() == yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_key_is_there_with_its_meaning_type_and_true_default(file):
    section, told = "", {}
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("    ")]
    for above, line in pairwise(lines):
        if re.fullmatch(r"\w+:", line):
            section = line[:-1]
        elif key := KEY.match(line) if not line.lstrip().startswith("#") else None:
            comment = COMMENT.match(above)
            assert comment, f"{line!r} has no comment that ends with [type; default: value]"
            told[section if key["indent"] else "", key["key"]] = yaml.safe_load(comment["default"])
    expected = defaults(TrainConfig)
    if ("", "lora") not in told:
        del expected["", "lora"]
        expected |= defaults(LoraSettings, "lora")
    assert told == expected


def test_the_configurations_are_what_their_names_say():
    by_name = {file.stem: load_yaml(file, TrainConfig) for file in FILES}
    assert by_name["smollm2-lora"].lora and by_name["smollm2-lora"].lora.merge
    assert by_name["smollm2-full"].lora is None and by_name["smollm2-full"].model.source
    from mindspeed_ms.models import spec_from_hf

    def size(name):
        given = by_name[name].model.config
        shapes = spec_from_hf({"vocab_size": 49152 if name.startswith("scratch") else 4096, **given}).parameter_shapes()
        return sum(a * (b[0] if b else 1) for a, *b in shapes.values())

    assert size("scratch-135m") == 134_515_008  # as Hugging Face counts SmolLM2-135M
    assert all(5e6 < size(name) < 10e6 for name in ("tiny", "poems", "english"))
    assert by_name["pirate"].lora and by_name["pirate"].lora.merge
