"""Sample texts of the model that trains: the same prompts each time, gone on with by its present weights."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.text.tokenizer import Tokenizer
from mindspeed_ms.train.decode import Adapters, Decoder
from mindspeed_ms.weights.source import TokenizerFiles

if TYPE_CHECKING:
    from mindspeed_ms.train.plan import Plan


@dataclass(frozen=True)
class SampleText:
    """A prompt and what the model wrote after it."""

    prompt: str
    text: str
    tokens: int
    seconds: float


class Sampler:
    """Writes a text for each prompt of a run. Raises ConfigError for a prompt that leaves no room in the context."""

    def __init__(self, plan: Plan) -> None:
        run = plan.config.run
        files = tokenizer_files(plan)
        self._tokenizer, self._spec, self._run = Tokenizer(files), plan.spec, run
        self._prompts = [self._encode(files, prompt) for prompt in run.samples]
        for prompt, ids in zip(run.samples, self._prompts, strict=True):
            if not ids or len(ids) >= plan.spec.max_position_embeddings:
                raise ConfigError(
                    f"run.samples: {prompt[:40]!r} makes {len(ids)} tokens, expected 1 to "
                    f"{plan.spec.max_position_embeddings - 1} (max_position_embeddings)"
                )

    def write(self, step: int, weights: Mapping[str, np.ndarray], adapters: Adapters | None = None) -> list[SampleText]:
        """The texts at a step, drawn anew at each step in the same way whenever it is made."""
        return [self._one(number, step, weights, adapters) for number in range(len(self._prompts))]

    def _one(self, number: int, step: int, weights: Mapping[str, np.ndarray], adapters: Adapters | None) -> SampleText:
        started, prompt = time.perf_counter(), self._prompts[number]
        room = min(len(prompt) + self._run.sample_tokens, self._spec.max_position_embeddings)
        decoder = Decoder(self._spec, weights, 1, room, adapters)
        random = np.random.Generator(np.random.Philox(key=[self._run.seed, step << 20 | number]))
        with np.errstate(all="ignore"):  # a model that has diverged writes nonsense, and no warnings
            for token in prompt:
                logits = decoder(np.array([token]))[0]
            written: list[int] = []
            while len(prompt) + len(written) < room:
                token = _draw(logits, self._run.temperature, random)
                if token in self._tokenizer.eos_token_ids:
                    break
                written.append(token)
                if len(prompt) + len(written) < room:
                    logits = decoder(np.array([token]))[0]
        seconds = time.perf_counter() - started
        return SampleText(self._run.samples[number], self._tokenizer.decode(written), len(written), seconds)

    def _encode(self, files: TokenizerFiles, prompt: str) -> list[int]:
        if not self._run.chat:
            ids = self._tokenizer.encode(prompt)
            # Nothing to go on from: where a document begins is where it may be
            return ids or list(files.eos_token_ids[:1])
        from mindspeed_ms.text.chat import ChatTemplate

        template = ChatTemplate(
            files.chat_template, self._tokenizer, files.bos_token_id, next(iter(files.eos_token_ids), None)
        )
        try:
            return template.encode([{"role": "user", "content": prompt}])
        finally:
            template.close()


def tokenizer_files(plan: Plan) -> TokenizerFiles:
    """The tokenizer of the model; of a new one that of its data, whose documents began with BOS as texts will."""
    if plan.source is not None:
        return plan.source.tokenizer
    from mindspeed_ms.data.files import verify

    entry = plan.manifest.tokenizer
    folder = plan.folder
    verify(folder, [entry.file])
    content = (folder / entry.file.path).read_bytes()
    bos = plan.manifest.config.tokenize.bos
    if bos is None:
        bos = _adds_bos(content, entry.bos_id)
    ends = [] if entry.eos_id is None else [entry.eos_id]
    return TokenizerFiles(content, None, entry.bos_id, ends, entry.pad_id, bos and entry.bos_id is not None)


def _adds_bos(content: bytes, bos_id: int | None) -> bool:
    import tokenizers

    data = json.loads(content)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**data, "truncation": None, "padding": None}))
    return bos_id is not None and tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos_id]


def _draw(logits: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """A token from logits [V]; the likeliest where there are no probabilities to draw by."""
    number = random.random()
    if temperature == 0 or not np.isfinite(logits).all():
        return int(np.nan_to_num(logits, nan=-np.inf).argmax())
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    cumulative = np.cumsum(weights)
    return min(int(np.searchsorted(cumulative, number * cumulative[-1], side="right")), len(weights) - 1)
