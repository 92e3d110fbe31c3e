"""What a run will do, with all that can be checked before the first step, and before a model takes memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.config.train import LoraSettings, TrainConfig
from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.data.manifest import Manifest
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.train import memory
from mindspeed_ms.train.new_model import check_new_model
from mindspeed_ms.train.offload import GROUP_BYTES
from mindspeed_ms.train.optimizer import OPTIMIZERS, Optimizer
from mindspeed_ms.weights.source import ModelSource

_COLUMNS = ("input_ids", "labels", "position_ids")


@dataclass(frozen=True)
class Plan:
    """A checked run. `hf_config` is what config.json of the trained model says; `batches` are those of all steps."""

    config: TrainConfig
    spec: DecoderSpec
    hf_config: dict[str, Any]
    source: ModelSource | None
    loader: BucketLoader
    eval_loader: BucketLoader | None
    optimizer: Optimizer
    trained_shapes: dict[str, tuple[int, ...]]
    steps: int
    batches: int
    memory: memory.MemoryEstimate
    available: int | None
    saves_aside: bool  # in the background, from a copy

    @property
    def manifest(self) -> Manifest:
        return self.loader.manifest

    @property
    def folder(self) -> Path:
        """Of the set that is learnt."""
        return Path(self.config.data.train)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """[rows, tokens of a row] of each bucket's batches."""
        return _shapes(self.loader)

    def summary(self) -> dict[str, Any]:
        """For people, and for the first line of the metrics."""
        manifest, spec = self.manifest, self.spec
        trained = sum(math.prod(shape) for shape in self.trained_shapes.values())
        return {
            "model": f"{spec.model_type}, {spec.num_hidden_layers} layers x {spec.hidden_size}",
            "parameters": sum(math.prod(shape) for shape in spec.parameter_shapes().values()),
            "trained_parameters": trained,
            "vocabulary": spec.vocab_size,
            "rows": manifest.rows,
            "tokens": manifest.tokens,
            "batch_shapes": [list(shape) for shape in self.shapes],
            "steps": self.steps,
            "epochs": round(self.batches / len(self.loader), 4),
            "memory_bytes": self.memory.total,
            "available_bytes": self.available,
            "checkpoints": "in the background" if self.saves_aside else "while the run waits",
        }


def make_plan(config: TrainConfig) -> Plan:
    """Open model and data, and check that they belong together and fit the memory.

    Raises ConfigError, WeightsError, TokenizerError, DataError, TrainError.
    """
    loader = _loader(config, config.data.train, "data.train")
    eval_loader = _loader(config, config.data.eval, "data.eval") if config.data.eval is not None else None
    _check_pair(config, loader.manifest, eval_loader.manifest if eval_loader else None)
    source, hf_config, spec = open_model_of(config, loader.manifest)
    _check_model(config, spec, [loader.manifest, *([eval_loader.manifest] if eval_loader else [])])
    optimizer = OPTIMIZERS[config.optimizer.name](**config.optimizer.settings())
    steps, batches = _length(config, len(loader))
    trained = _trained(spec, config.lora)
    needed, available = _estimate(config, spec, optimizer, trained, _shapes(loader)), memory.available_bytes()
    # A copy of state that was put on the disk would undo that; and where there is no room for one, the run waits.
    aside = not config.step.offload_optimizer and (available is None or needed.total <= available)
    if not aside:
        needed = memory.without_snapshot(needed)
    memory.require(needed, available, _advice(config))
    return Plan(
        config, spec, hf_config, source, loader, eval_loader, optimizer, trained, steps, batches, needed, available,
        aside,
    )  # fmt: skip


def _loader(config: TrainConfig, folder: str, key: str) -> BucketLoader:
    try:
        return BucketLoader(
            folder,
            batch_size=config.data.batch_size,
            tokens_per_batch=config.data.tokens_per_batch,
            seed=config.run.seed,
            columns=_COLUMNS,
            tokenizer=config.model.source,
        )
    except DataError as error:
        raise DataError(f"{key}: {error}") from error


def _check_pair(config: TrainConfig, train: Manifest, held_out: Manifest | None) -> None:
    if held_out is None:
        return
    if held_out.tokenizer.identity != train.tokenizer.identity:
        raise DataError(
            f"data.eval: {config.data.eval} was made with another tokenizer or chat template than {config.data.train}; "
            "prepare it again with the same --tokenizer"
        )
    if held_out.checksum == train.checksum:
        raise ConfigError(
            f"data.eval: {config.data.eval} is the set that is learnt; give one of held-out rows, or leave it out"
        )


def open_model_of(config: TrainConfig, manifest: Manifest) -> tuple[ModelSource | None, dict[str, Any], DecoderSpec]:
    """The source of weights if there is one, config.json and the checked description."""
    from mindspeed_ms.models import spec_from_hf

    if config.model.source is not None:
        from mindspeed_ms.weights import open_model
        from mindspeed_ms.weights.layout import model_config

        source = open_model(config.model.source)
        return source, model_config(source), source.spec
    given, where = config.model.config, "model.config"
    if isinstance(given, str):
        from mindspeed_ms.weights.json_file import read_json

        path = Path(given) / "config.json" if Path(given).is_dir() else Path(given)
        given, where = read_json(path, ConfigError), str(path)
    assert given is not None  # ModelConfig has one of the two
    tokenizer = manifest.tokenizer
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    hf_config = {"vocab_size": tokenizer.vocab_size, **ids, **given}
    spec = spec_from_hf(hf_config, where)
    check_new_model(hf_config, spec.vocab_size, where)
    return None, hf_config, spec


def _check_model(config: TrainConfig, spec: DecoderSpec, manifests: list[Manifest]) -> None:
    for key, manifest in zip(("data.train", "data.eval"), manifests, strict=False):
        ids = manifest.tokenizer.vocab_size
        if ids > spec.vocab_size:
            raise ConfigError(
                f"{key}: its tokenizer has {ids} tokens, but the model's vocab_size is {spec.vocab_size}; "
                "give a model with at least as many, or prepare the set with the model's tokenizer"
            )
        longest = max(bucket.length for bucket in manifest.buckets if bucket.rows)
        if longest > spec.max_position_embeddings:
            raise ConfigError(
                f"{key}: its rows have up to {longest} tokens, but the model's max_position_embeddings is "
                f"{spec.max_position_embeddings}; prepare the set with a max_length up to that"
            )


def _length(config: TrainConfig, epoch: int) -> tuple[int, int]:
    """Steps, and batches of all of them; `epoch` is the number of batches in one."""
    micro = config.step.micro_batches
    if config.run.steps is not None:
        return config.run.steps, config.run.steps * micro
    assert config.run.epochs is not None  # RunConfig has one of the two
    batches = math.ceil(config.run.epochs * epoch)
    steps = math.ceil(batches / micro)
    if config.schedule.warmup_steps > steps:
        raise ConfigError(
            f"schedule.warmup_steps {config.schedule.warmup_steps} is more than the {steps} steps of run.epochs "
            f"{config.run.epochs:g}: the learning rate would never be reached"
        )
    return steps, batches


def _shapes(loader: BucketLoader) -> list[tuple[int, int]]:
    rows = {bucket.length: bucket.rows for bucket in loader.manifest.buckets}
    return [(batch, length) for length, batch in loader.batch_rows.items() if rows[length]]


def _trained(spec: DecoderSpec, lora: LoraSettings | None) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that are trained, by name; of adapters as train/lora.py makes them."""
    shapes = spec.parameter_shapes()
    if lora is None:
        return shapes
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        path = name.removesuffix(".weight")
        if len(shape) != 2 or not path.startswith("model.layers."):
            continue
        if lora.targets == "all-linear" or any(path == t or path.endswith(f".{t}") for t in lora.targets):
            found[f"{path}.lora_A.weight"] = (lora.rank, shape[1])
            found[f"{path}.lora_B.weight"] = (shape[0], lora.rank)
    for target in lora.targets if lora.targets != "all-linear" else ():
        paths = [name.removesuffix(".lora_A.weight") for name in found]
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            layers = (name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2)
            known = dict.fromkeys(path.rpartition(".")[2] for path in layers if path.startswith("model.layers."))
            raise ConfigError(
                f"lora.targets: no linear layer is named {target!r}; expected some of: {', '.join(known)}"
            )
    return found


def _estimate(
    config: TrainConfig,
    spec: DecoderSpec,
    optimizer: Optimizer,
    trained: dict[str, tuple[int, ...]],
    shapes: list[tuple[int, int]],
) -> memory.MemoryEstimate:
    numbers = sum(math.prod(shape) for shape in trained.values())
    state = sum(math.prod(optimizer.state_shape(kind, shape)) for shape in trained.values() for kind in optimizer.kinds)
    # Stopped between micro-batches, a run saves the sums of gradients as well.
    saved = state + numbers * (2 if config.step.micro_batches > 1 else 1)
    if config.step.offload_optimizer:
        group = max([GROUP_BYTES // 4, *(math.prod(shape) for shape in trained.values())])
        state = min(state, len(optimizer.kinds) * group)
    return memory.estimate(
        spec,
        shapes,
        trained=numbers,
        state_floats=state,
        accumulates=config.step.micro_batches > 1 or config.step.offload_optimizer,
        recompute=config.step.recompute,
        extra=numbers if config.lora else 0,
        adapters=len(trained) // 2 if config.lora else 0,
        dropped=sum(shape[1] for name, shape in trained.items() if "lora_A" in name)
        if config.lora and config.lora.dropout
        else 0,
        saved_floats=saved,
    )


def _advice(config: TrainConfig) -> list[str]:
    size = "batch_size" if config.data.batch_size is not None else "tokens_per_batch"
    found = [f"lower data.{size} (and raise step.micro_batches)"]
    if not config.step.recompute:
        found.append("set step.recompute: true")
    if not config.step.offload_optimizer and config.lora is None and config.optimizer.name != "sgd":
        found.append("set step.offload_optimizer: true")
    if config.lora is None and config.model.source is not None:
        found.append("train adapters (lora)")
    elif config.optimizer.name == "adamw" and config.lora is None:
        found.append("take optimizer.name: adafactor")
    return found
