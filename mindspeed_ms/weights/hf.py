"""A Hugging Face model directory: config.json, safetensors in one file or in shards, tokenizer, generation settings.

A directory written by `mindspeed-ms quantize` is one too; its matrices are `X.qweight`, `X.scales` and maybe `X.mins`.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.ops.native.quant import GROUPS, QuantTensor
from mindspeed_ms.weights.hf_tokenizer import read_tokenizer
from mindspeed_ms.weights.json_file import read_json, read_json_if_there
from mindspeed_ms.weights.safetensors_file import SafetensorsFile
from mindspeed_ms.weights.source import ModelSource, TokenizerFiles, check_tensors

INDEX = "model.safetensors.index.json"
FORMAT_VERSION = 1
_FLOATS = ("F32", "F16", "BF16")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class HFSource(ModelSource):
    """An opened Hugging Face or quantized directory. Raises WeightsError when anything in it does not add up."""

    def __init__(self, path: Path) -> None:
        from mindspeed_ms.models import spec_from_hf

        self.path = path
        self.config = read_json(path / "config.json")
        self.kind = "hf"
        self._read_scheme(self.config.get("quantization_config"))
        try:
            self.spec: DecoderSpec = spec_from_hf(self.config, str(path / "config.json"))
        except ConfigError as error:
            raise WeightsError(str(error)) from None
        self._files = _tensor_files(path)
        self._check()

    def get(self, name: str) -> np.ndarray | QuantTensor:
        shape = self.shape(name)
        if name in self._quantized:
            return self._quant_tensor(name, shape)
        return self._files[name].get(name)

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self.path, self.config)

    @cached_property
    def generation(self) -> dict[str, Any]:
        given = read_json_if_there(self.path / "generation_config.json")
        for key in _SAMPLING:
            value = given.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise WeightsError(f"{self.path / 'generation_config.json'}: {key} is {value!r}, expected a number")
        found = {key: given[key] for key in _SAMPLING if given.get(key) is not None}
        if found.get("top_k") == -1:  # some write "all of them" so
            found["top_k"] = 0
        return found

    def _read_scheme(self, scheme: Any) -> None:
        if scheme is None:
            return
        where = f"{self.path / 'config.json'}: quantization_config"
        method = scheme.get("quant_method") if isinstance(scheme, dict) else None
        if method != "mindspeed_ms":
            raise WeightsError(f"{where}: quant_method {method!r} is not supported, expected 'mindspeed_ms' or none")
        version = scheme.get("format_version")
        if version != FORMAT_VERSION:
            raise WeightsError(f"{where}: format_version {version!r} is not {FORMAT_VERSION}; quantize the model again")
        self.kind, self.scheme = "quantized", scheme

    def _check(self) -> None:
        """Fold the parts of quantized matrices into one name each, then compare names and shapes with the spec."""
        found = {name: file.tensors[name][1] for name, file in self._files.items()}
        wanted = self.spec.parameter_shapes()
        self._quantized: set[str] = set()
        if self.kind == "quantized":
            for part in [name for name in found if name.endswith(".qweight")]:
                name = part.removesuffix(".qweight") + ".weight"
                if name in found:
                    raise WeightsError(f"{self.path}: both {part!r} and {name!r} are there, expected one of them")
                if len(wanted.get(name, ())) != 2:
                    raise WeightsError(f"{self.path}: {part!r} is not a matrix of this {self.spec.model_type} model")
                self._quantized.add(name)
                for suffix in (".qweight", ".scales", ".mins"):
                    found.pop(name.removesuffix(".weight") + suffix, None)
                self._quant_tensor(name, wanted[name])  # reads no data: its arrays are views
                found[name] = wanted[name]
        ignored = {name for name in found if name.endswith(".rotary_emb.inv_freq")}  # buffers of old checkpoints
        if self.spec.tie_word_embeddings:
            ignored.add("lm_head.weight")  # some checkpoints store the tied matrix twice
        check_tensors(self.spec, found, str(self.path), ignored)
        for name in wanted:
            if name not in self._quantized and self._files[name].dtype(name) not in _FLOATS:
                dtype = self._files[name].dtype(name)
                raise WeightsError(
                    f"{self._files[name].path}: tensor {name!r} has dtype {dtype}, expected {', '.join(_FLOATS)}"
                )

    def _quant_tensor(self, name: str, shape: tuple[int, ...]) -> QuantTensor:
        stem = name.removesuffix(".weight")
        parts = {}
        for suffix in ("qweight", "scales", "mins"):
            file = self._files.get(f"{stem}.{suffix}")
            if file is not None:
                parts[suffix] = file.get(f"{stem}.{suffix}")
        if "scales" not in parts:
            raise WeightsError(f"{self.path}: tensor '{stem}.scales' is missing beside '{stem}.qweight'")
        codes, scales = parts["qweight"], parts["scales"]
        bits = {np.dtype(np.uint8): 4, np.dtype(np.int8): 8}.get(codes.dtype)
        if bits is None:
            raise WeightsError(f"{self.path}: tensor '{stem}.qweight' is {codes.dtype}, expected uint8 or int8")
        rows, columns = shape
        try:
            group = self._group(scales, columns)
            return QuantTensor(codes, scales, parts.get("mins"), bits, group, (rows, columns))
        except (ConfigError, WeightsError) as error:
            raise WeightsError(f"{self.path}: quantized matrix {stem!r}: {error}") from None

    def _group(self, scales: np.ndarray, columns: int) -> int:
        """The group size that a matrix's scales imply; where several fit, all give the same values."""
        if scales.dtype == np.float32:
            return 0
        declared = (self.scheme or {}).get("group")
        fitting = [group for group in GROUPS if scales.ndim == 2 and -(-columns // group) == scales.shape[1]]
        if not fitting:
            raise WeightsError(f"scales of shape {list(scales.shape)} fit no group size for {columns} inputs")
        return declared if declared in fitting else fitting[0]


def _tensor_files(path: Path) -> dict[str, SafetensorsFile]:
    """Which file holds each tensor, every header checked."""
    index_path, single = path / INDEX, path / "model.safetensors"
    if not index_path.exists():
        if not single.exists() and not single.is_symlink():
            found = sorted(item.name for item in path.glob("*.bin"))
            also = f" ({found[0]} is a pickle, which is not read)" if found else ""
            raise WeightsError(f"{path}: neither model.safetensors nor {INDEX} is there{also}")
        file = SafetensorsFile(single)
        return {name: file for name in file.tensors}
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise WeightsError(f"{index_path}: weight_map is not an object of file names")
    shards = {shard: SafetensorsFile(_shard_path(path, shard)) for shard in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            raise WeightsError(f"{path / shard}: tensor {name!r} is missing, though {INDEX} names it there")
    return {name: shards[shard] for name, shard in weight_map.items()}


def _shard_path(directory: Path, shard: str) -> Path:
    """A shard must lie in its directory, or in the blobs of the hub cache that the directory is a snapshot of."""
    where = f"{directory / INDEX}: shard {shard!r}"
    if not shard or shard in (".", "..") or "/" in shard or "\\" in shard or "\0" in shard:
        raise WeightsError(f"{where} is not a plain file name; the index must not point outside its directory")
    path = directory / shard
    if path.is_symlink():
        home = directory.resolve()
        allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
        if path.resolve().parent not in allowed:
            raise WeightsError(f"{where} is a link out of the directory; put the file itself there")
    return path
