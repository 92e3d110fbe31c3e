"""What a layer keeps from its forward pass for its backward pass, tensor by tensor, on one rank.

For a GPT layer with dropout and without flash attention the sums are those of table 2 of Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models". For Llama and its kin the same tensors are listed as
MindSpore's own gradients ask for them: the gradient of `RmsNorm` takes its input and one number a token, that of
`Swiglu` its input and not its output, that of `RotaryPositionEmbedding` no activation at all, that of
`FlashAttentionScore` queries, keys, values, the result and two float32 statistics, eight numbers wide
(mindspore/ccsrc/frontend/expander/bprop, REG_BPROP_BUILDER of each).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job

# tensor: each rank of a tensor group has its share; sequence: only with sequence parallelism.
Split = Literal["tensor", "sequence"]
# cheap: what selective recomputation gives up; input: what full recomputation keeps; other: the rest.
Part = Literal["input", "cheap", "other"]

_FLASH_STATISTICS = 2 * 8 * 4  # bytes a head and token: softmax_max and softmax_sum, float32 [batch, heads, seq, 8]


@dataclass(frozen=True)
class Saved:
    """One tensor kept for backward: bytes for each token before any split."""

    name: str
    bytes: int
    split: Split
    part: Part = "other"


@dataclass(frozen=True)
class LayerBytes:
    """One layer on one rank, for one micro-batch: bytes kept under each choice, and what backward needs on top."""

    none: int
    selective: int
    full: int
    working: int  # the gradients that are alive at once in the backward pass of the layer, less what it has freed

    def kept(self, recompute: str) -> int:
        """Bytes kept for backward under a recompute choice."""
        return {"none": self.none, "selective": self.selective, "full": self.full}[recompute]


@lru_cache(maxsize=4096)
def saved_tensors(shape: ModelShape, experts: bool, job: Job) -> tuple[Saved, ...]:
    """The tensors one layer keeps for backward, in the order of the computation."""
    each = job.activation_bytes
    hidden = each * shape.hidden
    statistics = 0 if shape.norm_bias else 4  # RmsNorm's rstd, float32; the published table leaves LayerNorm's out
    tensors = [
        Saved("input of the first norm", hidden, "sequence", "input"),
        Saved("first norm's statistic", statistics, "sequence"),
        Saved("input of the projections", hidden, "sequence"),
        *(_latent(shape, each) if shape.kv_lora_rank else _queries(shape, each)),
        *_attention(shape, job),
        Saved("input of the output projection", each * shape.value_size, "tensor"),
        Saved("dropout mask of attention", shape.hidden if job.dropout else 0, "sequence"),
        Saved("input of the second norm", hidden, "sequence"),
        Saved("second norm's statistic", statistics, "sequence"),
        Saved("input of the feed-forward part", hidden, "sequence"),
        *(_experts(shape, job) if experts else _feed_forward(shape, shape.ffn, job)),
        Saved("dropout mask of the feed-forward part", shape.hidden if job.dropout else 0, "sequence"),
    ]
    return tuple(tensor for tensor in tensors if tensor.bytes)


@lru_cache(maxsize=65536)
def layer_bytes(shape: ModelShape, experts: bool, job: Job, tokens: int, tensor: int, sequence: bool) -> LayerBytes:
    """Bytes of one layer for a micro-batch of so many tokens on this rank, over `tensor` ranks.

    `tokens` counts what the rank's context share holds; `sequence` tells whether sequence parallelism is on.
    """
    sums = {"input": 0, "cheap": 0, "other": 0}
    for saved in saved_tensors(shape, experts, job):
        sums[saved.part] += saved.bytes * tokens // (tensor if saved.split == "tensor" or sequence else 1)
    none = sum(sums.values())
    return LayerBytes(none, none - sums["cheap"], sums["input"], _working(shape, experts, job, tokens, tensor))


def logits_bytes(shape: ModelShape, job: Job, tokens: int, tensor: int) -> int:
    """What the head and the loss need at their peak, on the last stage.

    Megatron's `VocabParallelCrossEntropy` holds the logits as computed and a float32 copy that it turns into the
    softmax in place; in backward that and the gradient in the type of the logits. The input of the last norm and of
    the head stay for backward.
    """
    return tokens * shape.vocab // tensor * (job.activation_bytes + 4)


def head_bytes(shape: ModelShape, job: Job, tokens: int, tensor: int, sequence: bool) -> int:
    """What the last norm and the head keep for backward: the input of each."""
    return 2 * job.activation_bytes * shape.hidden * tokens // (tensor if sequence else 1)


def embedding_bytes(shape: ModelShape, job: Job, tokens: int, tensor: int, sequence: bool) -> int:
    """What the embedding keeps for backward: a dropout mask, where there is dropout (the ids count for nothing)."""
    return shape.hidden * tokens // (tensor if sequence else 1) if job.dropout else 0


def _queries(shape: ModelShape, each: int) -> list[Saved]:
    tensors = [
        Saved("queries", each * shape.q_size, "tensor"),
        Saved("keys and values", 2 * each * shape.kv_size, "tensor"),
    ]
    if shape.qk_norm:
        tensors += [
            Saved("queries before their norm", each * shape.q_size + 4 * shape.heads, "tensor"),
            Saved("keys before their norm", each * shape.kv_size + 4 * shape.kv_heads, "tensor"),
        ]
    return tensors


def _latent(shape: ModelShape, each: int) -> list[Saved]:
    """The latents before and after their norms, and what they expand to."""
    return [
        Saved("query latent", 2 * each * shape.q_lora_rank, "sequence"),
        Saved("key-value latent", each * (2 * shape.kv_lora_rank + shape.rope_dim), "sequence"),
        Saved("queries", each * shape.q_size, "tensor"),
        Saved("keys", each * shape.q_size, "tensor"),
        Saved("values", each * shape.value_size, "tensor"),
    ]


def _attention(shape: ModelShape, job: Job) -> list[Saved]:
    """The softmax, and with dropout its mask and result; flash attention keeps two statistics instead."""
    if job.flash_attention:
        return [Saved("statistics of flash attention", _FLASH_STATISTICS * shape.heads, "tensor")]
    scores = shape.heads * job.seq
    width = job.activation_bytes + (1 + job.activation_bytes if job.dropout else 0)
    return [Saved("attention matrices", scores * width, "tensor", "cheap")]


def _feed_forward(shape: ModelShape, inner: int, job: Job) -> list[Saved]:
    each = job.activation_bytes
    if not shape.gated:
        return [
            Saved("input of the activation", each * inner, "tensor"),
            Saved("input of the second matrix", each * inner, "tensor"),
        ]
    return [
        Saved("gate and up", 2 * each * inner, "tensor"),
        Saved("activated gate", 0 if job.fused else each * inner, "tensor", _cheap(job)),
        Saved("input of the down projection", each * inner, "tensor", _cheap(job)),
    ]


def _experts(shape: ModelShape, job: Job) -> list[Saved]:
    """Each token goes to `top_k` experts; when they are used evenly a rank works on as many tokens as it sends.

    The experts are spread over the tensor ranks too (`--moe-tp-extend-ep` of MindSpeed's published scripts), so that
    what is sent is split as the sequence is.
    """
    each, visits = job.activation_bytes, shape.top_k
    inner = visits * shape.expert_ffn
    return [
        Saved("scores of the router", 2 * 4 * shape.experts, "sequence"),
        Saved("tokens sent to experts", each * visits * shape.hidden, "sequence"),
        *_feed_forward(shape, inner, job),
        Saved("results of the experts", each * visits * shape.hidden, "sequence"),
        *(_feed_forward(shape, shape.shared_ffn, job) if shape.shared_ffn else []),
    ]


def _cheap(job: Job) -> Part:
    return "cheap" if job.flash_attention else "other"


def _working(shape: ModelShape, experts: bool, job: Job, tokens: int, tensor: int) -> int:
    """The most that backward has above what was kept: in the gradient of the activation function.

    It holds the gradients of its output and of its input, when the input of the matrix behind it has just been freed,
    and the gradient that the residual connection passes by.
    """
    inner = max(shape.top_k * shape.expert_ffn, shape.shared_ffn) if experts else shape.ffn
    ups = 2 if shape.gated else 1
    return job.activation_bytes * tokens * (ups * inner + shape.hidden) // tensor
