"""Floating-point operations and seconds of the layers of a decoder on one device.

A matmul of tokens x weights counts 2 operations a token and weight, a causal attention half of its square. Seconds of
a piece are the longer of its arithmetic and its memory traffic (a roofline), each at the share of the peak that
`efficiency` gives. Backward is twice forward, and 2.5 times for a flash attention, which computes its scores again
(Dao 2023, FlashAttention-2, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.topology.cluster import Accelerator

ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True)
class Split:
    """What of a layer one device computes: degrees of the dimensions that cut a single layer."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False


@dataclass(frozen=True)
class PieceTime:
    """Seconds of one piece for one micro-batch on one device."""

    forward: float
    backward: float
    attention: float = 0.0  # part of forward that selective recompute repeats, and context parallel hides behind

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def attention_weights(shape: ModelShape) -> int:
    """Weights of the projections of one layer's attention."""
    hidden, heads = shape.hidden, shape.heads
    if not shape.kv_lora_rank:
        return hidden * shape.head_dim * (2 * heads + 2 * shape.kv_heads)
    width = shape.head_dim + shape.rope_dim
    query = shape.q_lora_rank * (hidden + heads * width) if shape.q_lora_rank else hidden * heads * width
    latent = hidden * (shape.kv_lora_rank + shape.rope_dim)
    return (
        query
        + latent
        + shape.kv_lora_rank * heads * (shape.head_dim + shape.v_head_dim)
        + heads * shape.v_head_dim * hidden
    )


def expert_weights(shape: ModelShape) -> int:
    """Weights of one expert."""
    return (3 if shape.gated else 2) * shape.hidden * shape.expert_ffn


def mlp_weights(shape: ModelShape, moe: bool) -> int:
    """Weights of one layer's MLP that a token meets: all of a dense one; router, shared and chosen experts."""
    matrices = 3 if shape.gated else 2
    if not moe:
        return matrices * shape.hidden * shape.ffn
    return (
        shape.hidden * shape.experts + matrices * shape.hidden * shape.shared_ffn + shape.top_k * expert_weights(shape)
    )


def attention_flops(shape: ModelShape, seq: int) -> float:
    """Operations of scores and weighted sum of one token in a causal sequence, all heads of one layer."""
    scores = shape.head_dim + (shape.rope_dim if shape.kv_lora_rank else 0)
    values = shape.v_head_dim if shape.kv_lora_rank else shape.head_dim
    return seq * shape.heads * (scores + values)


def is_moe(shape: ModelShape, layer: int) -> bool:
    """Whether a layer has experts."""
    return bool(shape.experts) and layer >= shape.dense_layers


def forward_flops(shape: ModelShape, seq: int) -> float:
    """Operations of the forward pass of one token, with the head."""
    moe = shape.layers - shape.dense_layers if shape.experts else 0
    weights = shape.layers * attention_weights(shape) + (shape.layers - moe) * mlp_weights(shape, False)
    weights += moe * mlp_weights(shape, True) if moe else 0
    return 2 * (weights + shape.hidden * shape.vocab) + shape.layers * attention_flops(shape, seq)


def model_flops(shape: ModelShape, seq: int) -> float:
    """Operations that training on one token needs, without recompute: three forward passes (what MFU counts)."""
    return 3 * forward_flops(shape, seq)


def _seconds(flops: float, traffic: float, accelerator: Accelerator, share: float, memory_share: float) -> float:
    return max(flops / (accelerator.peak_flops * share), traffic / (accelerator.memory_bandwidth * memory_share))


@lru_cache(maxsize=1 << 16)
def layer_time(
    shape: ModelShape, seq: int, micro_batch: int, moe: bool, split: Split, accelerator: Accelerator, rate: Efficiency
) -> PieceTime:
    """Seconds of one layer for one micro-batch."""
    tokens = micro_batch * seq / split.context
    cut = split.tensor
    weights = attention_weights(shape) / cut
    mlp = mlp_weights(shape, moe)
    # Every expert of this device is read, though a token meets top_k of them.
    read = weights + (
        mlp / cut if not moe else (mlp + expert_weights(shape) * (shape.experts / split.expert - shape.top_k)) / cut
    )
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    inner = (shape.ffn if not moe else shape.shared_ffn + shape.top_k * shape.expert_ffn) * (2 if shape.gated else 1)
    passed = 4 * shape.hidden + (width + inner) / cut
    linear = _seconds(
        2 * tokens * (weights + mlp / cut), 2 * (read + tokens * passed), accelerator, rate.matmul, rate.memory
    )
    core = tokens * attention_flops(shape, seq) / cut / (accelerator.peak_flops * rate.attention)
    # Norms and residuals read and write the hidden state ten times; rotary, activation function: theirs once each.
    spread = cut if split.sequence_parallel else 1
    element = 2 * tokens * (10 * shape.hidden / spread + (2 * width + 1.5 * inner) / cut)
    element /= accelerator.memory_bandwidth * rate.memory
    forward = linear + core + element
    return PieceTime(forward, 2 * linear + ATTENTION_BACKWARD * core + 2 * element, core)


@lru_cache(maxsize=1 << 14)
def head_time(
    shape: ModelShape, seq: int, micro_batch: int, split: Split, accelerator: Accelerator, rate: Efficiency
) -> PieceTime:
    """Seconds of the last norm, the head and the loss, the vocabulary cut by the tensor group."""
    tokens = micro_batch * seq / split.context
    weights = shape.hidden * shape.vocab / split.tensor
    logits = tokens * shape.vocab / split.tensor
    linear = _seconds(2 * tokens * weights, 2 * (weights + logits), accelerator, rate.matmul, rate.memory)
    # Softmax in float32: the logits are read twice and written once forward, read and written once backward.
    loss = 4 * 3 * logits / (accelerator.memory_bandwidth * rate.memory)
    return PieceTime(linear + loss, 2 * linear + loss * 2 / 3)


@lru_cache(maxsize=1 << 14)
def embedding_time(
    shape: ModelShape, seq: int, micro_batch: int, split: Split, accelerator: Accelerator, rate: Efficiency
) -> PieceTime:
    """Seconds of looking tokens up, and of adding their gradients."""
    tokens = micro_batch * seq / split.context
    once = 2 * 2 * tokens * shape.hidden / (accelerator.memory_bandwidth * rate.memory)
    return PieceTime(once, 2 * once)


def optimizer_time(
    parameters: float, accelerator: Accelerator, rate: Efficiency, job_bytes: tuple[int, int, int, int]
) -> float:
    """Seconds of an AdamW step: gradient read, master and moments read and written, weights written."""
    gradient, master, moments, weight = job_bytes
    traffic = parameters * (gradient + 2 * master + 2 * moments + weight)
    return traffic / (accelerator.memory_bandwidth * rate.memory)
