"""Parameter names and layouts of MindFormers 1.9.0, and Hugging Face's that they are made of.

It has two families. "llama" is its older LlamaForCausalLM, which its Llama and (with biases of q, k and v) Qwen2
checkpoints are of; "core" is the one of the training graph of Qwen3. Either may keep q, k, v and gate, up joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec

Family = Literal["llama", "core"]
# apart: three (two) matrices. grouped: of each key/value head its queries, then key, then value; rows of gate and up
# in turn. contiguous: one after another.
Layout = Literal["apart", "grouped", "contiguous"]

_TOP = {
    "llama": {
        "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
        "model.norm.weight": "model.norm_out.weight",
        "lm_head.weight": "lm_head.weight",
    },
    "core": {
        "model.embed_tokens.weight": "embedding.word_embeddings.weight",
        "model.norm.weight": "decoder.final_layernorm.weight",
        "lm_head.weight": "output_layer.weight",
    },
}
_LAYER = {"llama": "model.layers", "core": "decoder.layers"}
_INSIDE = {
    "llama": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    "core": {
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "pre_mlp_layernorm",
        "self_attn.q_proj": "self_attention.linear_q",
        "self_attn.k_proj": "self_attention.linear_k",
        "self_attn.v_proj": "self_attention.linear_v",
        "self_attn.o_proj": "self_attention.linear_proj",
        "self_attn.q_norm": "self_attention.q_layernorm",
        "self_attn.k_norm": "self_attention.k_layernorm",
        "mlp.gate_proj": "mlp.gating",
        "mlp.up_proj": "mlp.hidden",
        "mlp.down_proj": "mlp.linear_fc2",
    },
}
_JOINED = {
    "llama": {"qkv": "attention.w_qkv", "ffn": "feed_forward.w_gate_hidden"},
    "core": {"qkv": "self_attention.linear_qkv", "ffn": "mlp.linear_fc1"},
}
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_FFN = ("mlp.gate_proj", "mlp.up_proj")
# What a trainer saves beside the weights: optimizer state by the parameter's name, and counters.
_STATE = re.compile(
    r"(adam_[mv]|exp_avg|exp_avg_sq|max_exp_avg_sq|moments|moment[12]|accu_grads)\..+"
    r"|global_step|step_num|epoch_num|scale_sense|loss_scale|current_iterator_step|last_overflow_iterator_step"
    r"|learning_rate|beta[12]_power|state_step"
)


@dataclass(frozen=True)
class Entry:
    """One of MindFormers' parameters, and the Hugging Face names of the parts that it is joined of."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    layout: Layout = "apart"
    kind: Literal["qkv", "ffn"] | None = None


def entries(spec: DecoderSpec, family: Family, qkv: Layout, ffn: Layout) -> Iterator[Entry]:
    """Every parameter of a model, in the order of the computation."""
    shapes = spec.parameter_shapes()
    inside, joined = _INSIDE[family], _JOINED[family]
    for name, shape in shapes.items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None:
            yield Entry(_TOP[family][name], shape, (name,))
            continue
        index, module, kind = match.groups()
        prefix = f"{_LAYER[family]}.{index}"
        for what, members, layout in (("qkv", _QKV, qkv), ("ffn", _FFN, ffn)):
            if module in members and layout != "apart":
                if module == members[0]:
                    parts = tuple(f"model.layers.{index}.{member}.{kind}" for member in members)
                    rows = sum(shapes[part][0] for part in parts)
                    whole = f"{prefix}.{joined[what]}.{kind}"
                    yield Entry(whole, (rows, *shape[1:]), parts, layout, "qkv" if what == "qkv" else "ffn")
                break
        else:
            yield Entry(f"{prefix}.{inside[module]}.{kind}", shape, (name,))


def join(entry: Entry, spec: DecoderSpec, get: Callable[[str], np.ndarray]) -> np.ndarray:
    """The array of an entry, made of those of its parts."""
    arrays = [get(part) for part in entry.parts]
    if entry.kind is None:
        return arrays[0]
    if entry.layout == "contiguous":
        return np.concatenate(arrays)
    groups = spec.num_key_value_heads if entry.kind == "qkv" else spec.intermediate_size
    return np.concatenate([a.reshape(groups, -1, *a.shape[1:]) for a in arrays], axis=1).reshape(entry.shape)


def split(entry: Entry, spec: DecoderSpec, array: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of an entry by their Hugging Face names."""
    if entry.kind is None:
        return {entry.parts[0]: array}
    shapes = spec.parameter_shapes()
    rows = [shapes[part][0] for part in entry.parts]
    groups = 1
    if entry.layout == "grouped":
        groups = spec.num_key_value_heads if entry.kind == "qkv" else spec.intermediate_size
    whole = array.reshape(groups, -1, *array.shape[1:])
    cuts = np.cumsum([count // groups for count in rows])[:-1]
    pieces = np.split(whole, cuts, axis=1)
    return {part: piece.reshape(shapes[part]) for part, piece in zip(entry.parts, pieces, strict=True)}


def has_joined(family: Family, kind: str, names: Container[str]) -> bool:
    """Whether a checkpoint keeps q, k, v ("qkv") or gate, up ("ffn") in one."""
    return f"{_LAYER[family]}.0.{_JOINED[family][kind]}.weight" in names


def family_of(names: Container[str]) -> Family | None:
    """By the name of the embedding; None for a checkpoint of something else."""
    for family in ("llama", "core"):
        if _TOP[family]["model.embed_tokens.weight"] in names:
            return "llama" if family == "llama" else "core"
    return None


def is_state(name: str) -> bool:
    """Whether a name is that of a trainer's state, not of a weight."""
    return _STATE.fullmatch(name) is not None
