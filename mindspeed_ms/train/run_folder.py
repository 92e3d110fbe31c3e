"""The folder of a run: its configuration, what it ran on and with, and what may change when it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mindspeed_ms.config.base import load_yaml
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import TrainError
from mindspeed_ms.paths import open_regular, partial_path, read_regular
from mindspeed_ms.train.metrics import EVENTS
from mindspeed_ms.train.metrics import NAME as METRICS

CONFIG, RUN, SAMPLES, CHECKPOINTS = "config.yaml", "run.json", "samples.jsonl", "checkpoints"
MODEL, ADAPTER, OFFLOAD = "model", "adapter", "optimizer-state"
_MOST = 16 << 20
_HEAD = "# The configuration of this run, all defaults filled in. `mindspeed-ms train FOLDER --resume` reads it.\n"

# What a run may go on with otherwise than it began: nothing of it decides the steps that were made.
_FREE = (
    *("run.steps", "run.epochs", "run.log_every", "run.eval_every", "run.save_every", "run.keep", "run.keep_every"),
    *(
        "run.keep_best",
        "run.sample_every",
        "run.samples",
        "run.sample_tokens",
        "run.temperature",
        "run.chat",
        "run.out",
        "data.eval",
        "data.eval_batches",
    ),
    *("lora.merge", "guard.max_skipped", "guard.max_loss_ratio", "step.recompute", "step.offload_optimizer"),
)
# Paths: what is there is compared by its content.
_PLACES = ("data.train", "model.from", "model.config")


def resolved(config: TrainConfig) -> TrainConfig:
    """With absolute paths, so that it means the same from any folder."""
    values = config.plain()
    for section, key in (("model", "from"), ("model", "config"), ("data", "train"), ("data", "eval"), ("run", "out")):
        if isinstance(values[section][key], str):
            values[section][key] = os.path.abspath(os.path.expanduser(values[section][key]))
    return TrainConfig.parse(values)


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run that has made a step."""
    return (folder / RUN).exists() and (_any_step(folder) or any((folder / CHECKPOINTS).glob("step-*")))


def forget_unbegun(folder: Path) -> None:
    """Remove what a run has left that failed before its first step was made."""
    if not _any_step(folder):
        shutil.rmtree(folder / EVENTS, ignore_errors=True)
        for name in (CONFIG, METRICS, SAMPLES, RUN):  # the last one says that the others are ours
            (folder / name).unlink(missing_ok=True)


def require_free(folder: Path) -> None:
    """Raises TrainError when a folder that a run is to begin in holds, by a name of its own, what no run has left."""
    if (folder / RUN).exists():
        _read_json(folder / RUN)
        return
    for name in (CONFIG, METRICS, SAMPLES, EVENTS, CHECKPOINTS, MODEL, ADAPTER):
        # config.yaml is the first that a run writes, and may be all that a killed one has left
        if os.path.lexists(folder / name) and not (name == CONFIG and _is_ours(folder / name)):
            raise TrainError(f"{folder}: holds {name}, which a run would replace; give another folder")


def _is_ours(path: Path) -> bool:
    try:
        return read_regular(path, _MOST).startswith(_HEAD.encode())
    except OSError:
        return False


def _any_step(folder: Path) -> bool:
    try:
        with open_regular(folder / METRICS) as raw, open(raw.fileno(), "rb", closefd=False) as file:
            return any(b'"kind": "step"' in line for line in file)
    except OSError:
        return False


def read_run(folder: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The configuration and run.json of a run. Raises TrainError, ConfigError."""
    values = _read_json(folder / RUN)
    return load_yaml(folder / CONFIG, TrainConfig), values


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(path, _MOST))
    except FileNotFoundError:
        raise TrainError(
            f"{path.parent}: no run in it to go on with; leave out --resume to begin one, or give its folder"
        ) from None
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise TrainError(f"{path}: is not JSON; it is damaged") from None
    if not isinstance(values, dict) or not isinstance(values.get("identity"), dict):
        raise TrainError(f"{path}: is not that of a run, or damaged")
    return values


def write_run(folder: Path, config: TrainConfig, values: Mapping[str, Any]) -> None:
    """Write config.yaml and, last, run.json. Raises TrainError."""
    text = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True, width=120)
    try:
        write_whole(folder / CONFIG, (_HEAD + text).encode())
        write_whole(folder / RUN, json.dumps(values, indent=1, ensure_ascii=False, default=str).encode() + b"\n")
    except OSError as error:
        raise TrainError(f"{folder}: cannot be written ({error.strerror}); give a folder that can be") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name, sync and rename it. Raises OSError."""
    temporary = partial_path(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def changes(before: TrainConfig, now: TrainConfig) -> list[str]:
    """A sentence for each key that is different. Raises TrainError when one decides the steps that were made."""
    old, new = _flat(before.plain()), _flat(now.plain())
    found: list[str] = []
    refused: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) == new.get(key):
            continue
        sentence = f"{key} was {_short(old.get(key))} and is {_short(new.get(key))}"
        (found if key in (*_FREE, *_PLACES) else refused).append(sentence)
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise TrainError(
            f"the configuration has changed: {refused[0]}{more}; a run that goes on may change "
            f"{', '.join(_FREE[:9])}, ... or begin a new run in another folder"
        )
    return found


def check_identity(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises TrainError unless model and data are those that the run began with, wherever they lie now."""
    for key, value in now.items():
        if before.get(key) != value:
            raise TrainError(
                f"{key}: what is there now is not what the run began with ({_short(before.get(key))}, now "
                f"{_short(value)}); give that one, or begin a new run in another folder"
            )


def digest(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of named arrays."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name}:{array.dtype}:{array.shape};".encode())
        total.update(memoryview(array.reshape(-1).view("u1")))
    return total.hexdigest()


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """section.key: value; a section that is null is one key."""
    flat: dict[str, Any] = {}
    for section, content in values.items():
        if isinstance(content, Mapping):
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            flat[section] = content
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
