"""One request on its way through the engine, and what its caller gets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from mindspeed_ms.serving.engine.params import SamplingParams
from mindspeed_ms.serving.engine.sampler import RowSampler, TokenLogprobs
from mindspeed_ms.text.tokenizer import TextStream


@dataclass
class RequestOutput:
    """An answer: finish_reason is 'stop', 'length' or 'error' (then `error` says why and text is what came before).

    output_ids holds every produced token, the one that ended the answer too; text holds neither it nor a stop string.
    stop_reason is the stop string or token id that matched. logprobs (if asked for) has one entry a token.
    """

    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_tokens: int = 0
    error: str | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens produced."""
        return len(self.output_ids)


_arrivals = itertools.count()


class Sequence:
    """Tokens so far, how many of them the cache holds, and the state of sampling and text."""

    def __init__(
        self, prompt_ids: list[int], params: SamplingParams, text: TextStream, stop_ids: frozenset[int]
    ) -> None:
        self.params = params
        self.tokens = list(prompt_ids)
        self.prompt_len = len(prompt_ids)
        self.computed = 0  # tokens whose keys and values are in the cache
        self.block_table: list[int] = []
        self.arrival = next(_arrivals)
        self.sampler = RowSampler(params, prompt_ids)
        self.text = text
        self.stop_ids = stop_ids
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.finish_reason = ""
        self.stop_reason: str | int | None = None
        self.error: str | None = None
        self.preemptions = 0

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, failed or was given up."""
        return bool(self.finish_reason)

    @property
    def pending(self) -> int:
        """Tokens still to be run before the next one can be drawn."""
        return len(self.tokens) - self.computed

    def fail(self, why: str) -> None:
        """End with an error; the text so far stays."""
        self.finish_reason, self.error = "error", why

    def output(self) -> RequestOutput:
        """What the caller gets now."""
        return RequestOutput(
            self.text.text,
            self.tokens[self.prompt_len :],
            self.finish_reason,
            self.stop_reason,
            self.logprobs,
            self.prompt_len,
            self.error,
        )
