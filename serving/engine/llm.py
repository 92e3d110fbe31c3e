"""`LLM`: a language model in one object, from a model directory, a GGUF file or a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from mindspeed_ms.errors import ConfigError, RequestError
from mindspeed_ms.serving.engine.batch import Runner
from mindspeed_ms.serving.engine.core import Engine, StepProfile
from mindspeed_ms.serving.engine.loop import Chunk, EngineLoop, Handle
from mindspeed_ms.serving.engine.params import SamplingParams
from mindspeed_ms.serving.engine.sequence import RequestOutput, Sequence
from mindspeed_ms.text.chat import ChatTemplate, Message
from mindspeed_ms.text.tokenizer import Tokenizer, TokenizerFiles

__all__ = ["LLM", "Chunk", "Handle", "RequestOutput", "SamplingParams"]

T = TypeVar("T")
Prompt = str | list[int]
# No tokenizer we know makes tokens of more characters; far longer texts are refused before they are tokenized.
_MAX_TOKEN_CHARS = 256


class LLM:
    """A model ready to answer; its methods may be called from several threads, whose requests share batches.

    path: a Hugging Face directory, a GGUF file, a quantized directory or a bundle. kv_tokens: tokens the cache holds.
    threads: of the kernels, None for all cores. token_budget: most tokens a step. max_seqs: most sequences a step.
    profile: keep a StepProfile for each step in `self.profile`. Raises WeightsError, TokenizerError, BundleError,
    BuildError or ConfigError when the model cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        kv_tokens: int | None = 8192,
        threads: int | None = None,
        token_budget: int = 512,
        max_seqs: int = 64,
        profile: bool = False,
    ) -> None:
        # Here, not above: the rest of this room runs without MindSpore.
        from mindspeed_ms.export.cache import bundle_for
        from mindspeed_ms.ops.native.interrupt import restore_interrupt
        from mindspeed_ms.serving.engine.runner import RaggedRunner

        restore_interrupt()
        bundle = bundle_for(path)
        self._start(
            lambda: RaggedRunner(bundle, kv_tokens=kv_tokens, threads=threads),
            bundle.tokenizer,
            bundle.generation,
            token_budget=token_budget,
            max_seqs=max_seqs,
            profile=profile,
        )

    @classmethod
    def over(
        cls,
        make_runner: Callable[[], Runner],
        tokenizer: TokenizerFiles,
        generation: Mapping[str, Any] | None = None,
        *,
        token_budget: int = 512,
        max_seqs: int = 64,
        profile: bool = False,
    ) -> LLM:
        """An LLM over any runner; `make_runner` is called in the engine's thread."""
        self = cls.__new__(cls)
        self._start(
            make_runner, tokenizer, generation or {}, token_budget=token_budget, max_seqs=max_seqs, profile=profile
        )
        return self

    def _start(
        self,
        make_runner: Callable[[], Runner],
        files: TokenizerFiles,
        generation: Mapping[str, Any],
        *,
        token_budget: int,
        max_seqs: int,
        profile: bool,
    ) -> None:
        for name, value in (("token_budget", token_budget), ("max_seqs", max_seqs)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: {str(value)[:80]}: expected a whole number, at least 1")
        self.profile: list[StepProfile] | None = [] if profile else None
        self.default_params = _defaults(generation)
        self.tokenizer = Tokenizer(files)
        eos = min(self.tokenizer.eos_token_ids, default=None)
        self._template = ChatTemplate(files.chat_template, self.tokenizer, files.bos_token_id, eos)
        options = {"token_budget": token_budget, "max_seqs": max_seqs, "profile": self.profile}
        self._loop = EngineLoop(lambda: Engine(make_runner(), **options))  # type: ignore[arg-type]
        self._template.max_chars = _MAX_TOKEN_CHARS * self.max_context

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self._loop.engine.limit

    @property
    def lost(self) -> bool:
        """Whether the device failed for good; only a new process can answer again."""
        return self._loop.engine.lost

    @property
    def pending(self) -> int:
        """Requests in flight."""
        return self._loop.pending

    def generate(
        self, prompts: Prompt | Seq[Prompt], params: SamplingParams | Seq[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer each prompt (text or token ids), in order; params: one for all, one each, or the model's defaults.

        A prompt that cannot run gets finish_reason 'error' and its `error`; the others are not affected.
        """
        each_prompt = _listed(prompts)
        each = [params] * len(each_prompt) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(each_prompt):
            raise RequestError(f"params: {len(each)} for {len(each_prompt)} prompts: expected one, or one each")
        handles: list[Handle | RequestOutput] = []
        try:
            for prompt, param in zip(each_prompt, each, strict=True):
                try:
                    handles.append(self.submit(prompt, param))
                except RequestError as error:
                    handles.append(RequestOutput(finish_reason="error", error=str(error)))
            return [h.result() if isinstance(h, Handle) else h for h in handles]
        except BaseException:  # Ctrl-C: nobody waits for the rest
            for handle in handles:
                if isinstance(handle, Handle):
                    handle.cancel()
            raise

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Text of one answer as it comes; leaving the loop early cancels the request. Raises RequestError."""
        handle = self.submit(prompt, params)  # now, not at the first next(): a bad request is told at once
        return self._chunks(handle)

    def chat(self, messages: Seq[Message], params: SamplingParams | None = None, **variables: Any) -> RequestOutput:
        """Answer a conversation [{role, content}, ...]; variables go to the chat template. Raises RequestError."""
        return self.submit(self.chat_ids(messages, **variables), params).result()

    def chat_stream(
        self, messages: Seq[Message], params: SamplingParams | None = None, **variables: Any
    ) -> Iterator[Chunk]:
        """`chat`, as its text comes."""
        return self.stream(self.chat_ids(messages, **variables), params)

    def chat_ids(self, messages: Seq[Message], **variables: Any) -> list[int]:
        """Token ids of a conversation in the model's own template; no message can hold control tokens."""
        return self._template.encode(messages, **variables)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Handle:
        """Start a request and return at once; raises RequestError if it can never run."""
        params = self.default_params if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params: {type(params).__name__}: expected SamplingParams or None")
        ids = self._ids(prompt)
        self._loop.engine.check(ids)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.tokenizer.eos_token_ids
        return self._loop.submit(Sequence(ids, params, self.tokenizer.stream(params.stop), stop_ids))

    def on_engine(self, function: Callable[[Engine], T]) -> T:
        """Run `function(engine)` in the engine's thread, between two steps."""
        return self._loop.call(function)

    def close(self) -> None:
        """Free the model; requests in flight end with an error."""
        self._loop.close()
        self._template.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            if not isinstance(prompt, list | tuple | np.ndarray) or not all(map(_is_token, prompt)):
                raise RequestError(f"prompt: {type(prompt).__name__}: expected text or a list of token ids")
            return [int(token) for token in prompt]
        if not prompt:
            raise RequestError("prompt: empty: expected some text")
        if len(prompt) > _MAX_TOKEN_CHARS * self.max_context:
            raise RequestError(f"prompt: {len(prompt)} characters: expected fewer than {self.max_context} tokens")
        return self.tokenizer.encode(prompt)

    def _chunks(self, handle: Handle) -> Iterator[Chunk]:
        finished = False
        try:
            for chunk in handle:
                finished = chunk.output is not None
                yield chunk
        finally:
            if not finished:
                handle.cancel()


def _is_token(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _listed(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple | np.ndarray):
        raise RequestError(f"prompts: {type(prompts).__name__}: expected a text, token ids or a list of either")
    if len(prompts) and _is_token(prompts[0]):  # one prompt of token ids
        return [cast("list[int]", prompts)]
    return list(cast("Seq[Prompt]", prompts))


def _defaults(generation: Mapping[str, Any]) -> SamplingParams:
    """The model's recommendation (generation_config.json)."""
    known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    fields = {name: generation[name] for name in known if generation.get(name) is not None}
    try:
        return SamplingParams.parse(fields)
    except RequestError as error:
        raise ConfigError(f"generation_config: {error}") from error
