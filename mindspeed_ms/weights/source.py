"""What every weight file looks like once opened: names and shapes known and checked, tensors read one at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as the `tokenizers` library reads it, the chat template's source, and the ids a generator needs.

    `add_bos` says whether plain text gets `bos_token_id` in front; encode with add_special_tokens=False and add it.
    """

    tokenizer_json: bytes
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
    pad_token_id: int | None
    add_bos: bool


class ModelSource(ABC):
    """An opened model: `spec` and shapes are checked against each other, tensors stay in the file until `get`."""

    path: Path
    kind: Literal["hf", "gguf", "quantized"]
    spec: DecoderSpec
    scheme: dict[str, Any] | None = None

    def names(self) -> list[str]:
        """Every parameter by its Hugging Face name, in the order of the computation."""
        return list(self.spec.parameter_shapes())

    def shape(self, name: str) -> tuple[int, ...]:
        """The parameter's shape; raises WeightsError for a name that the model does not have."""
        shapes = self._shapes
        if name not in shapes:
            raise WeightsError(f"{self.path}: no parameter {name!r} in this {self.spec.model_type} model")
        return shapes[name]

    @abstractmethod
    def get(self, name: str) -> np.ndarray | QuantTensor:
        """One parameter: float32 or float16 (a read-only view of the file where it can be), bfloat16 widened to
        float32, or a QuantTensor. Raises WeightsError."""

    @property
    @abstractmethod
    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer that came with the weights; raises TokenizerError when there is none or it is broken."""

    @property
    @abstractmethod
    def generation(self) -> dict[str, Any]:
        """Sampling settings given with the weights: any of temperature, top_k, top_p, min_p, repetition_penalty."""

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return self.spec.parameter_shapes()


def check_tensors(
    spec: DecoderSpec, found: Mapping[str, tuple[int, ...]], where: str, ignored: Iterable[str] = ()
) -> None:
    """Compare the tensors of a file with those the configuration asks for.

    Raises WeightsError naming the first tensor that is missing, misshapen or not part of the architecture.
    """
    wanted = spec.parameter_shapes()
    missing = [name for name in wanted if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WeightsError(f"{where}: tensor {missing[0]!r}{more} is missing; the configuration asks for it")
    for name, shape in wanted.items():
        if tuple(found[name]) != shape:
            raise WeightsError(
                f"{where}: tensor {name!r} has shape {list(found[name])}, but the configuration makes it {list(shape)}"
            )
    known = {*wanted, *ignored}
    unknown = [name for name in found if name not in known]
    if unknown:
        raise WeightsError(
            f"{where}: tensor {unknown[0]!r} is not part of a {spec.model_type} model with this configuration; "
            "its effect would be lost"
        )
