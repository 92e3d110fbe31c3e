"""Round a model's weights to the nearest 8- or 4-bit integers and write them as a quantized directory."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mindspeed_ms.compress.store import SafetensorsWriter, atomic_directory, write_json
from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor, check_scheme, quantize_rtn
from mindspeed_ms.weights import open_model
from mindspeed_ms.weights.layout import model_config, write_tokenizer
from mindspeed_ms.weights.source import ModelSource

SCHEMES = {"w8a8": 8, "w4a8": 4, "w8a16": 8, "w4a16": 4}
FORMAT_VERSION = 1
# The embedding is looked up and the output decides between 50,000 words: both lose most from 4 bits.
_DELICATE = ("model.embed_tokens.weight", "lm_head.weight")
_DELICATE_FORM = (8, 32, False)
_CHUNK = 1 << 22  # weights rounded and compared at a time


@dataclass
class LayerReport:
    """One matrix: its form (such as `w4 group 32 asymmetric`), bytes, error relative to its rms, largest error."""

    name: str
    shape: tuple[int, int]
    form: str
    bytes: int
    relative_rms: float
    max_error: float
    lossless: bool


@dataclass
class QuantizeReport:
    """What `quantize_model` did: bytes of the weights before and after, and a line a matrix."""

    path: Path
    scheme: str
    group: int
    asymmetric: bool
    bytes_before: int
    bytes_after: int = 0
    layers: list[LayerReport] = field(default_factory=list)

    @property
    def lossless(self) -> bool:
        """Whether every matrix was carried over bit by bit."""
        return all(layer.lossless for layer in self.layers)


def quantize_model(
    path: str | Path,
    out: str | Path,
    scheme: str,
    group: int | None = None,
    asymmetric: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> QuantizeReport:
    """Writes the model at `path` as a quantized directory `out`, which must not exist, in one step or not at all.

    scheme: w8a8, w4a8, w8a16 or w4a16. group: 32 (default of 4 bits), 64 or 128 weights a scale, or 0 (only and
    default of 8 bits), a scale a row; int8 activations get a scale for each such group, with 0 one a token.
    GGUF matrices that have the asked form already are carried over bit by bit, and so is a Q8_0 embedding or output;
    other embeddings and outputs get 8 bits in groups of 32. progress(done, total) counts weights.
    Raises ConfigError for an unknown scheme or a model quantized before, WeightsError for files that fail.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"scheme: {scheme!r} is unknown, expected one of {', '.join(SCHEMES)}")
    group = (32 if SCHEMES[scheme] == 4 else 0) if group is None else group
    form = (SCHEMES[scheme], group, asymmetric)
    check_scheme(*form)
    source = open_model(path)
    if source.kind == "quantized":
        raise ConfigError(f"{path}: is quantized already, expected the original model; quantize that")
    source.tokenizer  # noqa: B018 - a missing tokenizer is reported before the work, not after
    report = QuantizeReport(Path(os.path.abspath(out)), scheme, group, asymmetric, _stored_bytes(source))
    config = {
        **model_config(source),
        "quantization_config": {
            "quant_method": "mindspeed_ms",
            "format_version": FORMAT_VERSION,
            "scheme": scheme,
            "group": group,
            "asymmetric": asymmetric,
        },
    }
    names = source.names()
    with atomic_directory(out, _estimate(source, form)) as folder:
        with SafetensorsWriter(folder / "model.safetensors", len(names), {"format": "pt"}) as writer:
            for done, name in enumerate(names):
                if progress:
                    progress(done, len(names))
                value = source.get(name)
                if len(source.shape(name)) == 2:
                    value, line = _convert(name, value, _DELICATE_FORM if name in _DELICATE else form)
                    report.layers.append(line)
                writer.add(name, value)
        report.bytes_after = (folder / "model.safetensors").stat().st_size
        write_json(folder / "config.json", config)
        write_tokenizer(source, folder)
    if progress:
        progress(len(names), len(names))
    return report


def _convert(
    name: str, value: "np.ndarray | QuantTensor", form: tuple[int, int, bool]
) -> tuple[QuantTensor, LayerReport]:
    """One matrix in the asked form, and how far it is from what it was."""
    if isinstance(value, QuantTensor) and (value.bits, value.group, value.asymmetric) == form:
        return value, LayerReport(name, value.shape, _describe(value), value.nbytes, 0.0, 0.0, True)
    rows, columns = value.shape
    pieces, error, power, largest = [], 0.0, 0.0, 0.0
    step = max(1, _CHUNK // columns)
    for start in range(0, rows, step):
        if isinstance(value, QuantTensor):
            exact = value.rows(start, start + step).dequantize()
        else:
            exact = np.asarray(value[start : start + step], np.float32)
        try:
            pieces.append(quantize_rtn(exact, *form))
        except WeightsError as problem:
            raise WeightsError(f"{name}: {problem}") from None
        difference = pieces[-1].dequantize() - exact
        error += float(np.vdot(difference, difference))
        power += float(np.vdot(exact, exact))
        largest = max(largest, float(np.abs(difference).max(initial=0)))
    result = QuantTensor(
        np.concatenate([piece.q for piece in pieces]),
        np.concatenate([piece.scales for piece in pieces]),
        np.concatenate([piece.mins for piece in pieces]) if form[2] else None,
        form[0],
        form[1],
        (rows, columns),
    )
    relative = math.sqrt(error / power) if power else 0.0
    return result, LayerReport(name, result.shape, _describe(result), result.nbytes, relative, largest, False)


def _describe(value: QuantTensor) -> str:
    group = f" group {value.group}" if value.group else " row"
    return f"w{value.bits}{group}{' asymmetric' if value.asymmetric else ''}"


def _stored_bytes(source: ModelSource) -> int:
    path = Path(source.path)
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _estimate(source: ModelSource, form: tuple[int, int, bool]) -> int:
    """Bytes of the result, a little more than it will take."""
    total = 64 << 20
    for name, shape in source.spec.parameter_shapes().items():
        bits, group, asymmetric = _DELICATE_FORM if name in _DELICATE else form
        count = math.prod(shape)
        scales = math.ceil(count / group) * (4 if asymmetric else 2) if group else 4 * shape[0]
        total += 4 * count if len(shape) == 1 else count * bits // 8 + scales
    return total
