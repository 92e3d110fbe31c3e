"""Weights of others, read where they lie: Hugging Face directories, GGUF files and our own quantized directories."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindspeed_ms.weights.source import ModelSource


def open_model(path: str | Path) -> "ModelSource":
    """Open a model directory or a GGUF file; its configuration, names and shapes are checked, no weight is read yet.

    Raises WeightsError when there is no such model or it cannot be used as it is.
    """
    from mindspeed_ms.errors import WeightsError

    path = Path(path)
    try:
        if path.is_dir():
            inside = sorted(path.glob("*.gguf"))
            if inside and not (path / "config.json").exists():
                raise WeightsError(f"{path}: has no config.json; give the file itself: {inside[0].name}")
            if (path / "bundle.json").exists():
                raise WeightsError(f"{path}: is a bundle already, expected the model that it was made from")
            from mindspeed_ms.weights.hf import HFSource

            return HFSource(path)
        if path.is_file():
            from mindspeed_ms.weights.gguf_file import GGUFSource

            return GGUFSource(path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    raise WeightsError(f"{path}: no such model, expected a Hugging Face directory or a GGUF file")
