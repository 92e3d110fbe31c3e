"""How many parameters a decoder has: piece by piece, and on one rank of a job.

The pieces are the tensors of the models themselves, so that sums equal the byte counts of real weights. What a tensor
group splits is Megatron's: queries, keys, values, gate and up by output, the two other matrices by input, the
embedding and the head by vocabulary; norms, routers and the down projections of latent attention are whole everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Settings

# expert: by expert ranks and, inside an expert, by tensor ranks
Split = Literal["tensor", "expert", "whole"]


@dataclass(frozen=True)
class Piece:
    """Some tensors of a model that are split in the same way: how many numbers they hold together."""

    name: str
    numbers: int
    split: Split


@dataclass(frozen=True)
class Count:
    """Numbers on one rank: those that every rank of the data dimension holds, and the experts'."""

    dense: int
    expert: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.dense + self.expert


@lru_cache(maxsize=4096)
def layer_pieces(shape: ModelShape, experts: bool) -> tuple[Piece, ...]:
    """The pieces of one layer, with a mixture of experts or a plain feed-forward part."""
    norm = shape.hidden * (2 if shape.norm_bias else 1)
    pieces = [Piece("norms", 2 * norm, "whole"), *(_latent(shape) if shape.kv_lora_rank else _attention(shape))]
    pieces += _experts(shape) if experts else _feed_forward("mlp", shape, shape.ffn)
    return tuple(piece for piece in pieces if piece.numbers)


@lru_cache(maxsize=256)
def embedding_pieces(shape: ModelShape) -> tuple[Piece, ...]:
    """The vectors of tokens and, in a GPT, of positions."""
    pieces = [Piece("embedding", shape.vocab * shape.hidden, "tensor")]
    if shape.positions:
        pieces.append(Piece("positions", shape.positions * shape.hidden, "whole"))
    return tuple(pieces)


@lru_cache(maxsize=256)
def head_pieces(shape: ModelShape) -> tuple[Piece, ...]:
    """The last norm and the head; of a tied model the norm alone."""
    pieces = [Piece("norm", shape.hidden * (2 if shape.norm_bias else 1), "whole")]
    if not shape.tied:
        pieces.append(Piece("head", shape.vocab * shape.hidden, "tensor"))
    return tuple(pieces)


@lru_cache(maxsize=1024)
def total(shape: ModelShape) -> int:
    """All parameters of the model."""
    layers = sum(_sum(layer_pieces(shape, shape.has_experts(layer))) for layer in range(shape.layers))
    return _sum(embedding_pieces(shape)) + layers + _sum(head_pieces(shape))


@lru_cache(maxsize=1024)
def active(shape: ModelShape) -> int:
    """The parameters that one token meets: of the experts only those it visits."""
    idle = 0
    for layer in range(shape.layers):
        if shape.has_experts(layer):
            routed = sum(piece.numbers for piece in layer_pieces(shape, True) if piece.split == "expert")
            idle += routed // shape.experts * (shape.experts - shape.top_k)
    return total(shape) - idle


def on_rank(pieces: tuple[Piece, ...], settings: Settings) -> Count:
    """What one rank holds of some pieces, before ZeRO spreads anything over the data dimension."""
    dense = expert = 0
    tensor = settings.tensor
    for piece in pieces:
        if piece.split == "expert":
            expert += piece.numbers // (tensor * settings.expert)
        elif piece.split == "whole":
            dense += piece.numbers
        else:
            dense += piece.numbers // tensor
    return Count(dense, expert)


def stage_count(shape: ModelShape, settings: Settings, stage: int) -> Count:
    """What one rank of a pipeline stage holds, before ZeRO spreads anything over the data dimension.

    A tied model whose head is on another stage than its embedding has the matrix on both.
    """
    kinds = [layer_kinds(shape, first, stop) for first, stop in settings.stage_chunks(shape.layers, stage)]
    plain, experts = (sum(part) for part in zip(*kinds, strict=True))
    return count_of(shape, settings, (plain, experts), stage == 0, stage == settings.pipeline - 1)


def count_of(shape: ModelShape, settings: Settings, kinds: tuple[int, int], first: bool, last: bool) -> Count:
    """As `stage_count`, of a stage with so many plain layers and so many with experts."""
    dense = expert = 0
    for number, experts in zip(kinds, (False, True), strict=True):
        if number:
            count = _layer_on_rank(shape, experts, settings.tensor, settings.expert)
            dense += number * count.dense
            expert += number * count.expert
    ends: tuple[Piece, ...] = ()
    if first:
        ends += embedding_pieces(shape)
    if last:
        ends += head_pieces(shape)
        if shape.tied and settings.pipeline > 1:
            ends += embedding_pieces(shape)[:1]
    return Count(dense + on_rank(ends, settings).dense, expert)


@lru_cache(maxsize=8192)
def layer_kinds(shape: ModelShape, first: int, stop: int) -> tuple[int, int]:
    """How many of the layers from `first` to before `stop` are plain, and how many have experts."""
    with_experts = sum(shape.has_experts(layer) for layer in range(first, stop)) if shape.experts else 0
    return stop - first - with_experts, with_experts


@lru_cache(maxsize=8192)
def _layer_on_rank(shape: ModelShape, experts: bool, tensor: int, expert: int) -> Count:
    return on_rank(layer_pieces(shape, experts), Settings(tensor=tensor, expert=expert))


def _sum(pieces: tuple[Piece, ...]) -> int:
    return sum(piece.numbers for piece in pieces)


def _attention(shape: ModelShape) -> list[Piece]:
    hidden, q_size, kv_size = shape.hidden, shape.q_size, shape.kv_size
    inputs = hidden + (1 if shape.qkv_bias else 0)
    return [
        Piece("query", inputs * q_size, "tensor"),
        Piece("key and value", inputs * kv_size * 2, "tensor"),
        Piece("output", hidden * q_size, "tensor"),
        Piece("output bias", hidden if shape.o_bias else 0, "whole"),
        Piece("query and key norms", 2 * shape.head_dim if shape.qk_norm else 0, "whole"),
    ]


def _latent(shape: ModelShape) -> list[Piece]:
    """DeepSeek-V2, section 2.1: queries and key-values through a narrow latent with a norm, and a shared rotary key."""
    hidden, latent, low = shape.hidden, shape.kv_lora_rank, shape.q_lora_rank
    expanded = shape.heads * (shape.head_dim - shape.rope_dim + shape.v_head_dim)
    return [
        Piece("query down", (hidden + 1) * low, "whole"),  # with the norm of the latent
        Piece("query up", (low or hidden) * shape.q_size, "tensor"),
        Piece("key and value down", hidden * (latent + shape.rope_dim) + latent, "whole"),
        Piece("key and value up", latent * expanded, "tensor"),
        Piece("output", shape.value_size * hidden, "tensor"),
    ]


def _feed_forward(name: str, shape: ModelShape, inner: int) -> list[Piece]:
    ups = 2 if shape.gated else 1
    bias = shape.mlp_bias
    return [
        Piece(f"{name} up", ups * (shape.hidden + (1 if bias else 0)) * inner, "tensor"),
        Piece(f"{name} down", inner * shape.hidden, "tensor"),
        Piece(f"{name} down bias", shape.hidden if bias else 0, "whole"),
    ]


def _experts(shape: ModelShape) -> list[Piece]:
    matrices = 3 if shape.gated else 2
    return [
        Piece("router", shape.hidden * shape.experts, "whole"),
        Piece("experts", shape.experts * matrices * shape.hidden * shape.expert_ffn, "expert"),
        *(_feed_forward("shared expert", shape, shape.shared_ffn) if shape.shared_ffn else []),
        Piece("shared gate", shape.hidden if shape.shared_gate else 0, "whole"),
    ]
