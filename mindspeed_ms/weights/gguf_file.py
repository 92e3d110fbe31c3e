"""A GGUF file of a Llama, Qwen2 or Qwen3: llama.cpp's names and layouts turned into Hugging Face's, losslessly."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.weights.gguf_header import GGUFTensor, read_header
from mindspeed_ms.weights.gguf_tokenizer import read_tokenizer
from mindspeed_ms.weights.safetensors_file import map_file, widen_bfloat16
from mindspeed_ms.weights.source import ModelSource, TokenizerFiles, check_tensors

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FLOATS = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2", GGMLQuantizationType.BF16: "<u2"}
_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])
_BLOCKS = {GGMLQuantizationType.Q4_0: _Q4_0, GGMLQuantizationType.Q4_1: _Q4_1, GGMLQuantizationType.Q8_0: _Q8_0}
_TYPES = [kind.name for kind in (*_FLOATS, *_BLOCKS)]


class GGUFSource(ModelSource):
    """An opened GGUF file. Raises WeightsError when its header, metadata or tensors do not add up."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        header = read_header(self._map, str(path))
        self.metadata = header.metadata
        architecture = self.metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise WeightsError(
                f"{path}: architecture {architecture!r} is not supported, expected one of {', '.join(ARCHITECTURES)}"
            )
        self._refuse_variants(architecture)
        tensors = dict(header.tensors)
        factors = tensors.pop("rope_freqs.weight", None)
        self._tensors = {_hf_name(name): tensor for name, tensor in tensors.items()}
        for name, tensor in self._tensors.items():
            if tensor.type not in _FLOATS and tensor.type not in _BLOCKS:
                raise WeightsError(
                    f"{path}: tensor {name!r} has type {tensor.type.name}, which is not supported, "
                    f"expected one of {', '.join(_TYPES)}"
                )
            if tensor.type in _BLOCKS and len(tensor.shape) != 2:
                raise WeightsError(
                    f"{path}: tensor {name!r} is {tensor.type.name} {list(tensor.shape)}, expected a matrix"
                )
        self.spec = self._spec(architecture, None if factors is None else self._float(factors))
        check_tensors(self.spec, {name: tensor.shape for name, tensor in self._tensors.items()}, str(path))

    def get(self, name: str) -> np.ndarray | QuantTensor:
        self.shape(name)
        tensor = self._tensors[name]
        rows = self._half_split_rows(name)
        if tensor.type in _FLOATS:
            array = self._float(tensor)
            return array if rows is None else array[rows]
        return self._quantized(tensor, rows)

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self.metadata, str(self.path))

    @property
    def generation(self) -> dict[str, Any]:
        return {}

    def _spec(self, architecture: str, factors: np.ndarray | None) -> DecoderSpec:
        key = self._key
        heads = key("attention.head_count", int)
        hidden = key("embedding_length", int)
        if heads < 1:
            raise WeightsError(f"{self.path}: {architecture}.attention.head_count is {heads}, expected at least 1")
        head_dim = key("attention.key_length", int, hidden // heads)
        for name in ("attention.value_length", "rope.dimension_count"):
            size = key(name, int, head_dim)
            if size != head_dim:
                raise WeightsError(f"{self.path}: {architecture}.{name} {size} is not the head size {head_dim}")
        embedding = self._tensors.get("model.embed_tokens.weight")
        bias = {name.split(".", 3)[3] for name in self._tensors if name.endswith(".bias") and name.count(".") > 3}
        fields = {
            "model_type": architecture,
            "vocab_size": embedding.shape[0] if embedding else key("vocab_size", int),
            "hidden_size": hidden,
            "intermediate_size": key("feed_forward_length", int),
            "num_hidden_layers": key("block_count", int),
            "num_attention_heads": heads,
            "num_key_value_heads": key("attention.head_count_kv", int, heads),
            "head_dim": head_dim,
            "rms_norm_eps": key("attention.layer_norm_rms_epsilon", float),
            "rope_theta": key("rope.freq_base", float, 10000.0),
            "rope_scaling": self._scaling(factors),
            "max_position_embeddings": key("context_length", int),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "qkv_bias": "self_attn.q_proj.bias" in bias,
            "o_bias": "self_attn.o_proj.bias" in bias,
            "mlp_bias": "mlp.gate_proj.bias" in bias,
            "qk_norm": architecture == "qwen3",
        }
        try:
            return DecoderSpec.parse(fields, where=str(self.path))
        except ConfigError as error:
            raise WeightsError(str(error)) from None

    def _refuse_variants(self, architecture: str) -> None:
        """Refuse what shares the architecture's name but not its computation."""
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise WeightsError(f"{self.path}: is one part of a split model; join the parts with gguf-split first")
        for name, neutral in (("expert_count", 0), ("attention.sliding_window", 0), ("attention.causal", True)):
            value = self.metadata.get(f"{architecture}.{name}", neutral)
            if isinstance(value, (str, list, np.ndarray)) or value != neutral:
                raise WeightsError(f"{self.path}: {architecture}.{name} {str(value)[:60]} is not supported")

    def _key(self, name: str, kind: type[int] | type[float], default: Any = None) -> Any:
        name = f"{self.metadata['general.architecture']}.{name}"
        value = self.metadata.get(name, default)
        if value is None:
            raise WeightsError(f"{self.path}: metadata {name!r} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            raise WeightsError(f"{self.path}: metadata {name!r} is {str(value)[:60]}, expected one {kind.__name__}")
        if kind is float:  # the file holds float32: 1e-5 is stored as 9.99999975e-06
            return float(str(np.float32(value)))
        return value

    def _scaling(self, factors: np.ndarray | None) -> dict[str, Any] | None:
        kind = self.metadata.get(f"{self.metadata['general.architecture']}.rope.scaling.type", "linear")
        if kind not in ("none", "linear"):
            raise WeightsError(f"{self.path}: rope.scaling.type {kind!r} is not supported, expected none or linear")
        factor = self._key("rope.scaling.factor", float, self._key("rope.scale_linear", float, 1.0)) or 1.0
        if self._key("rope.scaling.attn_factor", float, 1.0) != 1.0:
            raise WeightsError(f"{self.path}: rope.scaling.attn_factor is not supported, expected 1")
        linear = kind == "linear" and factor != 1.0
        if factors is not None:
            stretch = factor if linear else 1.0
            return {"type": "factors", "factors": [float(value) * stretch for value in factors.ravel()]}
        return {"type": "linear", "factor": factor} if linear else None

    def _float(self, tensor: GGUFTensor) -> np.ndarray:
        if tensor.type not in _FLOATS:
            raise WeightsError(f"{self.path}: rope_freqs.weight has type {tensor.type.name}, expected F32")
        dtype = np.dtype(_FLOATS[tensor.type])
        array = np.frombuffer(self._map, dtype, (tensor.stop - tensor.start) // dtype.itemsize, tensor.start)
        array = array.reshape(tensor.shape)
        return widen_bfloat16(array) if tensor.type == GGMLQuantizationType.BF16 else array

    def _half_split_rows(self, name: str) -> np.ndarray | None:
        """llama.cpp rotates neighbouring rows, Hugging Face the halves of a head: the rows to pick, or None."""
        if self.spec.model_type != "llama" or not re.search(r"\.(q|k)_proj\.(weight|bias)$", name):
            return None
        rows = np.arange(self.shape(name)[0])
        return rows.reshape(-1, self.spec.head_dim // 2, 2).swapaxes(1, 2).ravel()

    def _quantized(self, tensor: GGUFTensor, rows: np.ndarray | None) -> QuantTensor:
        """Blocks of 32 become codes and scales apart; every number stays what it was."""
        dtype = _BLOCKS[tensor.type]
        count, columns = tensor.shape
        blocks = np.frombuffer(self._map, dtype, (tensor.stop - tensor.start) // dtype.itemsize, tensor.start)
        blocks = blocks.reshape(count, columns // 32)
        if rows is not None:
            blocks = blocks[rows]
        scales = np.ascontiguousarray(blocks["d"])
        if tensor.type == GGMLQuantizationType.Q8_0:
            return QuantTensor(blocks["q"].reshape(count, columns), scales, None, 8, 32, (count, columns))
        # A byte holds elements j and j + 16 of its block there, 2j and 2j + 1 here.
        even, odd = blocks["q"][..., 0::2], blocks["q"][..., 1::2]
        packed = np.concatenate(((even & 15) | (odd << 4), (even >> 4) | (odd & 240)), axis=-1)
        mins = np.ascontiguousarray(blocks["m"]) if tensor.type == GGMLQuantizationType.Q4_1 else None
        return QuantTensor(packed.reshape(count, columns // 2), scales, mins, 4, 32, (count, columns))


def _hf_name(name: str) -> str:
    """llama.cpp's tensor name as Hugging Face's; an unknown one is kept, and refused where names are compared."""
    stem, _, suffix = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d{1,4})\.([a-z_]+)", stem)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{suffix}"
    return name
