"""The parallel settings of one training job: the degrees of each dimension and what goes with them.

Ranks are numbered as MindSpore and Megatron do, tensor innermost and pipeline outermost:
rank = ((stage · data + d) · context + c) · tensor + t. An expert group is `expert` neighbours along (d, c).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

DIMENSIONS = ("tensor", "context", "expert", "data", "pipeline")

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]


@dataclass(frozen=True)
class Settings:
    """One way to spread a job; what `validate` of `plan.rules` accepts can be run."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1  # divides data · context; the experts of a layer are spread over so many ranks
    micro_batch: int = 1  # sequences of one forward pass of one replica
    micro_batches: int = 1  # forward passes of one replica in a step: global batch = data · micro_batch · micro_batches
    zero: int = 0  # 0 none, 1 optimizer state, 2 and gradients, 3 and parameters, spread over the data dimension
    sequence_parallel: bool = False  # norms and dropout split along the sequence by the tensor group
    # selective: what is cheap to compute again: the attention matrices (Korthikanti et al. 2022) or, with flash
    # attention, which keeps none, the output of the gated activation; full: whole layers
    recompute: Recompute = "none"
    recompute_layers: tuple[int, ...] | None = None  # how many layers of each stage are recomputed; None: all
    schedule: Schedule = "1f1b"
    virtual: int = 1  # model chunks of a stage (interleaved)
    layers: tuple[
        int, ...
    ] = ()  # layers of each chunk, chunk-major: stage s holds chunks s, s + pipeline, …; empty: even

    @property
    def devices(self) -> int:
        """How many devices the job takes."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def global_batch(self) -> int:
        """Sequences of one step."""
        return self.data * self.micro_batch * self.micro_batches

    def but(self, **fields: Any) -> Settings:
        """As `dataclasses.replace`, which takes several times as long: a search makes many thousands."""
        one = object.__new__(Settings)
        one.__dict__.update(self.__dict__)
        one.__dict__.update(fields)
        return one

    def chunks(self, layers: int) -> tuple[tuple[int, int], ...]:
        """First layer, and the one after the last, of each chunk, in the order of the computation.

        Chunk c runs on stage c % pipeline. Without `layers`, what an even split leaves over goes to the first chunks.
        """
        count = self.pipeline * self.virtual
        share, rest = divmod(layers, count)
        sizes = self.layers or tuple(share + (chunk < rest) for chunk in range(count))
        bounds = [0, *itertools.accumulate(sizes)]
        return tuple(itertools.pairwise(bounds))

    def stage_chunks(self, layers: int, stage: int) -> tuple[tuple[int, int], ...]:
        """The chunks, as `chunks` gives them, that one stage runs."""
        return self.chunks(layers)[stage :: self.pipeline]


@dataclass(frozen=True)
class Job:
    """What is trained, apart from the model: sequence length in tokens and bytes of each number kept."""

    seq: int
    global_batch: int = 1
    weight_bytes: int = 2  # the copy that forward and backward compute with
    gradient_bytes: int = 4
    master_bytes: int = 4  # the optimizer's float32 weights; 0 where the weights are those
    moment_bytes: int = 8  # both moments of AdamW
    activation_bytes: int = 2
    flash_attention: bool = True  # else the matrices of attention, heads · seq numbers a token, are kept for backward
    dropout: bool = False  # after attention's softmax, attention and the feed-forward part, as in GPT-3
    fused: bool = True  # the gated activation is one operator; else its inner product is kept for backward too
    buffer_bytes: int = 200 << 20  # HCCL_BUFFSIZE: each group of ranks takes two
