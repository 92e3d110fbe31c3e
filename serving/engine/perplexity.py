"""Perplexity of a text, strided: each token is predicted once, from `context - stride` tokens or more."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindspeed_ms.errors import ConfigError, RequestError, ServeError
from mindspeed_ms.serving.engine.batch import Chunk, make_batch
from mindspeed_ms.serving.engine.core import Engine
from mindspeed_ms.serving.engine.llm import LLM

_ROWS = 128  # tokens a step: 128 rows of a 49,152-word vocabulary are 25 MB of logits


def perplexity(
    llm_or_path: LLM | str | Path, text: str, context: int = 1024, stride: int = 512
) -> dict[str, float | int]:
    """exp of the mean negative log-likelihood over windows of `context` tokens that advance by `stride`.

    As in Hugging Face's guide (huggingface.co/docs/transformers/perplexity), with every predicted token weighted the
    same. Returns perplexity, mean_nll (nats), tokens, predicted, context, stride. Raises ConfigError, RequestError.
    """
    if not isinstance(llm_or_path, LLM):
        with LLM(llm_or_path) as llm:
            return perplexity(llm, text, context, stride)
    limit = llm_or_path.max_context
    if not 2 <= context <= limit:
        raise ConfigError(f"context: {context}: expected 2 to {limit}")
    if not 1 <= stride <= context:
        raise ConfigError(f"stride: {stride}: expected 1 to the context ({context})")
    ids = llm_or_path.tokenizer.encode(text)
    if len(ids) < 2:
        raise RequestError(f"text: {len(ids)} tokens: expected at least 2")
    total, scored, predicted = 0.0, 1, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        if end > scored:
            window = ids[begin:end]
            first = max(scored - begin, 1)  # a window's first token has nothing before it
            predicted += len(window) - first
            total += llm_or_path.on_engine(partial(_window, ids=window, first=first))
            scored = end
        if end == len(ids):
            break
    mean = total / predicted
    return {
        "perplexity": math.exp(mean),
        "mean_nll": mean,
        "tokens": len(ids),
        "predicted": predicted,
        "context": context,
        "stride": stride,
    }


def _window(engine: Engine, ids: list[int], first: int) -> float:
    """Summed negative log-likelihood of ids[first:] given all before each."""
    table: list[int] = []
    if not engine.blocks.grow(table, len(ids)):
        needed = engine.blocks.needed(len(ids))
        raise ServeError(f"cache: {engine.blocks.free} free blocks: expected {needed}; wait until nothing else runs")
    total = 0.0
    try:
        for start in range(0, len(ids), _ROWS):
            chunk = ids[start : start + _ROWS]
            # The row of token i predicts token i + 1.
            rows = [r for r in range(len(chunk)) if first <= start + r + 1 < len(ids)]
            logits = engine.runner.step(make_batch([Chunk(chunk, start, table, rows)], engine.blocks.block_size))
            if rows:
                total += _nll(logits, np.array([ids[start + r + 1] for r in rows], np.intp))
    finally:
        engine.blocks.release(table)
    return total


def _nll(logits: NDArray[np.float32], targets: NDArray[np.intp]) -> float:
    highest = logits.max(axis=1, keepdims=True)
    norm = np.log(np.exp(logits - highest).sum(axis=1, dtype=np.float64)) + highest[:, 0]
    return float((norm - logits[np.arange(len(targets)), targets]).sum())
