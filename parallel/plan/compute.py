"""Floating-point operations and seconds of the layers of a decoder on one device.

A matmul of tokens x weights counts 2 operations a token and weight, a causal attention half of its square. Seconds of
a piece are the longer of its arithmetic and its memory traffic (a roofline), each at the share of the peak that
`efficiency` gives. Backward is twice forward, and 2.5 times for a flash attention, which computes its scores again
(Dao 2023, FlashAttention-2, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mindspeed_ms.parallel.plan import parameters
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Settings
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
    attention: float = 0.0  # scores and weighted sum: part of forward that a ring of keys and values hides behind
    cheap: float = 0.0  # what selective recompute repeats

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Weights:
    """Matrix entries on one device of one layer: those that every token meets, and one expert."""

    common: float
    chosen: float  # of the experts that a token visits, top_k of them
    experts: float  # of all experts held

    @property
    def met(self) -> float:
        """What a token is multiplied with."""
        return self.common + self.chosen


@lru_cache(maxsize=1 << 12)
def layer_weights(shape: ModelShape, moe: bool, tensor: int = 1, expert: int = 1) -> Weights:
    """The matrices of one layer on one device; norms and biases are no matmuls."""
    pieces = tuple(piece for piece in parameters.layer_pieces(shape, moe) if not piece.name.endswith(("norms", "bias")))
    count = parameters.on_rank(pieces, Settings(tensor=tensor, expert=expert))
    all_experts = sum(piece.numbers for piece in pieces if piece.split == "expert")
    chosen = all_experts * shape.top_k / shape.experts / tensor if moe else 0.0
    return Weights(count.dense, chosen, count.expert)


def attention_flops(shape: ModelShape, seq: int) -> float:
    """Operations of scores and weighted sum of one token in a causal sequence, all heads of one layer."""
    return float(seq * (shape.q_size + shape.value_size))


def forward_flops(shape: ModelShape, seq: int) -> float:
    """Operations of the forward pass of one token, with the head."""
    plain, moe = parameters.layer_kinds(shape, 0, shape.layers)
    weights = sum(count * layer_weights(shape, kind).met for count, kind in ((plain, False), (moe, True)) if count)
    return 2 * (weights + shape.hidden * shape.vocab) + shape.layers * attention_flops(shape, seq)


def model_flops(shape: ModelShape, seq: int) -> float:
    """Operations that training on one token needs, without recompute: three forward passes (what MFU counts)."""
    return 3 * forward_flops(shape, seq)


def _seconds(flops: float, traffic: float, accelerator: Accelerator, share: float, memory_share: float) -> float:
    return max(flops / (accelerator.peak_flops * share), traffic / (accelerator.memory_bandwidth * memory_share))


@lru_cache(maxsize=1 << 16)
def layer_time(
    shape: ModelShape,
    seq: int,
    micro_batch: int,
    moe: bool,
    split: Split,
    accelerator: Accelerator,
    rate: Efficiency,
    flash: bool = True,
) -> PieceTime:
    """Seconds of one layer for one micro-batch; without flash attention its matrices go through memory."""
    tokens = micro_batch * seq / split.context
    cut = split.tensor
    weights = layer_weights(shape, moe, cut, split.expert)
    width = (shape.q_size + 2 * shape.kv_size) / cut
    inner = (shape.shared_ffn + shape.top_k * shape.expert_ffn if moe else shape.ffn) * (2 if shape.gated else 1) / cut
    # Every expert of this device is read, though a token meets top_k of them.
    traffic = 2 * (weights.common + weights.experts + tokens * (4 * shape.hidden + width + inner))
    linear = _seconds(2 * tokens * weights.met, traffic, accelerator, rate.matmul, rate.memory)
    core = tokens * attention_flops(shape, seq) / cut / (accelerator.peak_flops * rate.attention)
    back = ATTENTION_BACKWARD
    bandwidth = accelerator.memory_bandwidth * rate.memory
    if not flash:
        # Scores, mask, softmax and weights: each is written and read once.
        core += 2 * 6 * tokens * seq * shape.heads / cut / bandwidth
        back = 2.0
    # Norms and residuals read and write the hidden state ten times; rotary, activation function: theirs once each.
    spread = cut if split.sequence_parallel else 1
    element = 2 * tokens * (10 * shape.hidden / spread + 2 * width + 1.5 * inner)
    element /= bandwidth
    # Selective recompute repeats the attention matrices, or with flash attention, which has none, the activation.
    cheap = 2 * tokens * 1.5 * inner / bandwidth if flash else core
    forward = linear + core + element
    return PieceTime(forward, 2 * linear + back * core + 2 * element, core, cheap)


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
