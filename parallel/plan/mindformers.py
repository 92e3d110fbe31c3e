"""The parallel sections of a MindFormers YAML, read into settings and written from them.

Keys and meanings are those of MindFormers r1.3.0 (modules/transformer/transformer.py, models/utils.py LayerSetting,
trainer/base_trainer.py): one step takes batch_size · data_parallel · micro_batch_num · micro_batch_interleave_num
sequences with a pipeline, and gradient_accumulation_steps in place of micro_batch_num without one. Ranks are numbered
as in `settings`, and the experts of a layer are spread inside the data dimension.
"""

from __future__ import annotations

from typing import Any

import yaml

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.mindformers_read import Reader
from mindspeed_ms.parallel.plan.settings import Settings

_LEVELS = {1: "level1", 2: "level2", 3: "level3"}
_SCHEDULERS = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "1f1b"}


def read_parallel(text: str, where: str) -> Settings:
    """The settings in a MindFormers YAML, or in its `parallel_config` section alone.

    Raises ConfigError that names the key for values that MindFormers would refuse. What has no place in `Settings`
    is told by `not_carried`.
    """
    return Reader(text, where).settings()


def not_carried(text: str, where: str) -> list[str]:
    """Keys that change how a job runs and that `read_parallel` leaves out, each with its value and what it means."""
    return Reader(text, where).not_carried()


def write_parallel(settings: Settings, layers: int = 0) -> str:
    """The sections of a MindFormers YAML for these settings; `read_parallel` gives the same settings back.

    `layers` is the number of the model's: MindFormers refuses a number that its stages do not divide unless `offset`
    says where the rest goes. Raises ConfigError for what MindFormers cannot express.
    """
    if settings.data % settings.expert:
        raise ConfigError(
            f"expert {settings.expert}: MindFormers spreads experts inside the data dimension, {settings.data};"
            " choose a divisor of it"
        )
    if settings.pipeline > 1 and settings.micro_batches < settings.pipeline:
        raise ConfigError(
            f"micro_batches {settings.micro_batches}: MindSpore's pipelines take at least as many as stages,"
            f" {settings.pipeline}; choose more, or fewer stages"
        )
    if settings.pipeline > 1 and settings.schedule not in _SCHEDULERS:
        raise ConfigError(
            f"schedule {settings.schedule}: MindFormers has no such one (its zero_bubble_v is not ZB-H1);"
            f" choose {', '.join(_SCHEDULERS)}"
        )
    sections = {
        "use_parallel": settings.devices > 1,
        "runner_config": _runner(settings),
        "parallel": _parallel(settings),
        "parallel_config": _degrees(settings),
        "micro_batch_interleave_num": 1,
        "recompute_config": _recompute(settings, layers),
    }
    model: dict[str, Any] = {}
    offset = _offset(settings, layers)
    if offset is not None:
        model["offset"] = offset
    if settings.layers or layers:
        model["num_layers"] = sum(settings.layers) or layers
    if settings.virtual > 1:
        model["pp_interleave_num"] = settings.virtual
    if model:
        sections["model"] = {"model_config": model}
    return yaml.safe_dump(sections, sort_keys=False)


def _runner(settings: Settings) -> dict[str, int]:
    runner = {"batch_size": settings.micro_batch}
    if settings.pipeline == 1:
        runner["gradient_accumulation_steps"] = settings.micro_batches
    return runner


def _parallel(settings: Settings) -> dict[str, Any]:
    parallel: dict[str, Any] = {
        "parallel_mode": 1,  # semi-auto: the layers carry their own strategies
        "gradients_mean": False,
        "full_batch": True,
        "enable_parallel_optimizer": settings.zero > 0,
    }
    if settings.zero:
        # MindSpore refuses gradient_accumulation_shard together with another level than 2.
        level = {"optimizer_level": _LEVELS[settings.zero]} if settings.zero == 3 else {}
        shard = {} if settings.zero == 3 else {"gradient_accumulation_shard": settings.zero == 2}
        parallel["parallel_optimizer_config"] = {**shard, **level, "parallel_optimizer_threshold": 64}
    if settings.pipeline > 1:
        interleave = settings.virtual > 1
        scheduler = _SCHEDULERS[settings.schedule]
        parallel["pipeline_config"] = {"pipeline_interleave": interleave, "pipeline_scheduler": scheduler}
    return parallel


def _degrees(settings: Settings) -> dict[str, Any]:
    return {
        "data_parallel": settings.data,
        "model_parallel": settings.tensor,
        "context_parallel": settings.context,
        "expert_parallel": settings.expert,
        "pipeline_stage": settings.pipeline,
        "micro_batch_num": settings.micro_batches if settings.pipeline > 1 else 1,
        "use_seq_parallel": settings.sequence_parallel,
        # MindFormers sets this itself with a pipeline; said here so that the file tells the truth.
        "vocab_emb_dp": False,
        "gradient_aggregation_group": 4,
    }


def _recompute(settings: Settings, layers: int) -> dict[str, Any]:
    value = True if settings.recompute_layers is None else _recomputed(settings, layers)
    return {
        "recompute": value if settings.recompute == "full" else False,
        "select_recompute": value if settings.recompute == "selective" else False,
        "parallel_optimizer_comm_recompute": settings.zero == 3,
        "mp_comm_recompute": True,
        "recompute_slice_activation": settings.sequence_parallel,
    }


def _recomputed(settings: Settings, layers: int) -> list[Any]:
    counts = list(settings.recompute_layers or ())
    if settings.virtual == 1:
        return counts
    # One list would count for every chunk of a stage, so each chunk has its own; the first chunks are filled first.
    total = sum(settings.layers) or layers or max(counts) * settings.pipeline * settings.virtual
    sizes = [stop - first for first, stop in settings.chunks(total)]
    rows = []
    for start in range(0, len(sizes), settings.pipeline):
        row = [min(count, size) for count, size in zip(counts, sizes[start:], strict=False)]
        counts = [count - taken for count, taken in zip(counts, row, strict=True)]
        rows.append(row)
    rows[-1] = [taken + count for taken, count in zip(rows[-1], counts, strict=True)]
    return rows


def _offset(settings: Settings, layers: int) -> Any:
    chunks = settings.pipeline * settings.virtual
    total = sum(settings.layers) or layers
    if not total or (not settings.layers and total % chunks == 0):
        return 0 if total else None
    sizes = [stop - first for first, stop in settings.chunks(total)]
    parts = [size - total // chunks for size in sizes]
    rows = [parts[start : start + settings.pipeline] for start in range(0, chunks, settings.pipeline)]
    return rows if settings.virtual > 1 else rows[0]
