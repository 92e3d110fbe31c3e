"""The model of a run's folder, as far as its files and those it names tell: without data, device or memory for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.data.manifest import Manifest, read_manifest
from mindspeed_ms.errors import DataError
from mindspeed_ms.weights.source import ModelSource

if TYPE_CHECKING:
    from mindspeed_ms.train.plan import Plan


@dataclass(frozen=True)
class RunModel:
    """What a plan says of its model."""

    config: TrainConfig
    source: ModelSource | None
    hf_config: dict[str, Any]
    spec: DecoderSpec
    manifest: Manifest
    folder: Path

    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files. Raises OSError, MindSpeedError."""
        from mindspeed_ms.train.samples import tokenizer_files
        from mindspeed_ms.weights.layout import write_tokenizer, write_tokenizer_files

        if self.source is not None:
            write_tokenizer(self.source, folder)
        else:
            write_tokenizer_files(tokenizer_files(cast("Plan", self)), folder)  # it reads what both have


def open_run_model(folder: Path) -> RunModel:
    """Raises TrainError, ConfigError, DataError, WeightsError: model.from and data.train must still be there."""
    from mindspeed_ms.train.plan import open_model_of
    from mindspeed_ms.train.run_folder import read_run

    config, _ = read_run(folder)
    try:
        manifest = read_manifest(Path(config.data.train))
    except DataError as error:
        raise DataError(
            f"data.train of the run in {folder}, which its tokenizer is of: {error}; put it back, or export as "
            "safetensors or ckpt"
        ) from None
    source, hf_config, spec = open_model_of(config, manifest)
    return RunModel(config, source, hf_config, spec, manifest, Path(config.data.train))
