"""The configuration of a run from a YAML file or a run's folder, and from --set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from mindspeed_ms.config.base import UNPARSED, Config, load_yaml
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import ConfigError


class _Anything(Config):
    """What a file holds, before it is known which keys the options replace."""

    model_config = pydantic.ConfigDict(extra="allow")


def read_config(path: Path, settings: Sequence[str], out: Path | None) -> TrainConfig:
    """The file, or config.yaml of a run's folder, with the settings in it replaced. Raises ConfigError."""
    file = path / "config.yaml" if path.is_dir() else path
    values: dict[str, Any] = dict(load_yaml(file, _Anything).model_extra or {})
    for setting in settings:
        _replace(values, setting)
    if out is not None:
        _replace_at(values, ["run", "out"], str(out), f"--out {out}")
    elif path.is_dir():  # it may have been moved since
        _replace_at(values, ["run", "out"], str(path), str(path))
    changed = settings or out is not None
    return TrainConfig.parse(values, where=f"{file} and options" if changed else str(file))


# The other one of a pair goes when one is set.
_RIVALS = {
    "run.steps": "run.epochs",
    "run.epochs": "run.steps",
    "data.batch_size": "data.tokens_per_batch",
    "data.tokens_per_batch": "data.batch_size",
    "model.from": "model.config",
    "model.config": "model.from",
}


def _replace(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting}: expected KEY=VALUE, such as optimizer.learning_rate=1e-4")
    _replace_at(values, key.split("."), _value(setting, text), f"--set {setting}")
    if rival := _RIVALS.get(key):
        section, _, name = rival.partition(".")
        values[section].pop(name, None)


def _replace_at(values: dict[str, Any], keys: list[str], value: Any, where: str) -> None:
    for key in keys[:-1]:
        inner = values.get(key)
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {key} is {str(inner)[:60]!r}, which has no keys; give its whole value")
        values[key] = values = dict(inner)
    values[keys[-1]] = value


def _value(setting: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, *UNPARSED) as error:
        raise ConfigError(f"--set {setting}: the value is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(value, str):  # YAML 1.1 takes 1e-4 for text
        try:
            return float(value)
        except ValueError:
            pass
    return value
