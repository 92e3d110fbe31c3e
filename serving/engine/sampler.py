"""From logits to tokens: each request with its own settings and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindspeed_ms.serving.engine.params import SamplingParams

Float = NDArray[np.float32]
_FIRST_GUESS = 1024  # tokens looked at before top_p falls back to more of the vocabulary
_COLDEST = 1e-4  # a smaller temperature overflows float32 and is already the most likely token


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probability of the chosen token and of the likeliest ones, from the model's raw logits."""

    token_id: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class Drawn:
    """One row's result; `error` is set when its logits are not numbers."""

    token_id: int = -1
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class RowSampler:
    """The sampling state of one request: its generator (Philox, from its seed) and the tokens it has seen."""

    def __init__(self, params: SamplingParams, prompt_ids: Seq[int]) -> None:
        self.params = params
        self.greedy = params.temperature == 0.0 or params.top_k == 1
        # Made only when drawing: a greedy request needs no generator.
        self._rng = None if self.greedy else np.random.Generator(np.random.Philox(params.seed))
        self._seen = dict.fromkeys(prompt_ids) if params.repetition_penalty != 1.0 else None

    @property
    def plain(self) -> bool:
        """Whether the highest logit alone decides."""
        return self.greedy and self._seen is None

    def draw(self, logits: Float) -> int:
        """Choose a token from one row of logits [V], which is left unchanged."""
        if self._seen is not None:
            logits = self._penalized(logits)
        if self._rng is None:
            return int(logits.argmax())
        ids, weights = _candidates(logits, self.params)
        # One random number a token, whatever the settings: a preempted request goes on with the same stream.
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right"))
        index = min(index, len(weights) - 1)
        return index if ids is None else int(ids[index])

    def accept(self, token: int) -> None:
        """Remember a produced token for the repetition penalty."""
        if self._seen is not None:
            self._seen[token] = None

    def _penalized(self, logits: Float) -> Float:
        logits = logits.copy()
        assert self._seen is not None
        seen = np.fromiter(self._seen, np.intp, len(self._seen))
        score, penalty = logits[seen], np.float32(self.params.repetition_penalty)
        logits[seen] = np.where(score > 0, score / penalty, score * penalty)
        return logits


def sample(logits: Float, rows: Seq[RowSampler]) -> list[Drawn]:
    """Draw one token a row of logits float32 [R, V]."""
    best = logits.argmax(axis=1)  # the first NaN, where a row has one
    drawn = []
    for r, row in enumerate(rows):
        if not np.isfinite(logits[r, best[r]]):
            worst = logits[r, best[r]]
            drawn.append(Drawn(error=f"logits: the highest is {worst}: expected a number; the weights are damaged"))
            continue
        token = int(best[r]) if row.plain else row.draw(logits[r])
        row.accept(token)
        count = row.params.logprobs
        drawn.append(Drawn(token, None if count is None else _logprobs(logits[r], token, count)))
    return drawn


def _candidates(logits: Float, params: SamplingParams) -> tuple[NDArray[np.intp] | None, Float]:
    """Token ids (None: all of them, in order) and their unnormalized probabilities after top_k, top_p and min_p."""
    scaled = (logits - logits.max()) / np.float32(max(params.temperature, _COLDEST))
    vocab = len(scaled)
    k = min(params.top_k or vocab, vocab)
    if k == vocab and params.top_p == 1.0:
        weights = np.exp(scaled)
        if params.min_p:
            weights[weights < params.min_p] = 0.0
        return None, weights
    total = None if k < vocab else np.exp(scaled).sum(dtype=np.float64)
    guess = k if k < vocab else min(_FIRST_GUESS, vocab)
    while True:
        ids = _largest(scaled, guess)
        weights = np.exp(scaled[ids])
        cumulative = np.cumsum(weights, dtype=np.float64)
        enough = params.top_p * (cumulative[-1] if total is None else total)
        if total is None or guess == vocab or cumulative[-1] >= enough:
            break
        guess = min(guess * 8, vocab)
    keep = int(np.searchsorted(cumulative, enough)) + 1 if params.top_p < 1.0 else len(ids)
    ids, weights = ids[:keep], weights[:keep]
    return ids, np.where(weights < params.min_p, np.float32(0), weights)


def _largest(scores: Float, count: int) -> NDArray[np.intp]:
    """Indices of the `count` largest, falling; ties by index, so that the order does not hang on the algorithm."""
    if count < len(scores):
        threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > threshold)
        ties = np.flatnonzero(scores == threshold)[: count - len(above)]
        ids = np.sort(np.concatenate([above, ties]))
    else:
        ids = np.arange(len(scores))
    return ids[np.argsort(-scores[ids], kind="stable")]


def _logprobs(logits: Float, token: int, count: int) -> TokenLogprobs:
    top = _largest(logits, count) if count else np.empty(0, np.intp)
    highest = logits.max()
    norm = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    return TokenLogprobs(token, float(logits[token]) - norm, {int(i): float(logits[i]) - norm for i in top})
