"""The engine's heart: schedule, run, sample, detokenize, one step at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindspeed_ms.errors import DeviceLostError, RequestError
from mindspeed_ms.serving.engine.batch import Chunk, Runner, make_batch
from mindspeed_ms.serving.engine.blocks import BlockManager
from mindspeed_ms.serving.engine.sampler import Drawn, sample
from mindspeed_ms.serving.engine.scheduler import Plan, Scheduler
from mindspeed_ms.serving.engine.sequence import Sequence


@dataclass(frozen=True)
class StepProfile:
    """Where one step's time went, in seconds; runner is kernels and graph together."""

    tokens: int
    rows: int
    schedule: float
    runner: float
    sampling: float
    detokenize: float


class Engine:
    """Runs the sequences it is given; not safe for threads (see `loop.EngineLoop`)."""

    def __init__(
        self, runner: Runner, *, token_budget: int = 512, max_seqs: int = 64, profile: list[StepProfile] | None = None
    ) -> None:
        self.runner = runner
        self.blocks = BlockManager(runner.num_blocks, runner.block_size)
        self.scheduler = Scheduler(self.blocks, token_budget=token_budget, max_seqs=max_seqs)
        self.cache_tokens = runner.num_blocks * runner.block_size
        self.limit = min(runner.max_context, self.cache_tokens)
        self.profile = profile
        self.lost = False  # whether the device can run no further step

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy

    def check(self, prompt_ids: list[int]) -> None:
        """Raise RequestError for a prompt that can never run; safe from any thread."""
        if not prompt_ids:
            raise RequestError("prompt: no tokens: expected at least one")
        if len(prompt_ids) >= self.limit:
            context = self.limit == self.runner.max_context
            what = "the model's context" if context else "the cache; raise kv_tokens"
            raise RequestError(f"prompt: {len(prompt_ids)} tokens: expected fewer than {self.limit} ({what})")
        low, high = min(prompt_ids), max(prompt_ids)
        if low < 0 or high >= self.runner.vocab_size:
            bad = low if low < 0 else high
            raise RequestError(f"input_ids: {bad}: expected token ids from 0 to {self.runner.vocab_size - 1}")

    def add(self, seq: Sequence) -> None:
        """Queue a sequence whose prompt `check` accepts."""
        self.check(seq.tokens)
        self.scheduler.add(seq)

    def abort(self, seq: Sequence) -> None:
        """Give a sequence up and free its blocks."""
        if not seq.finished:
            seq.finish_reason = "cancelled"
            self.scheduler.remove(seq)

    def step(self) -> list[Sequence]:
        """Run one batch; returns the sequences that got a token or ended."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        if not plan:
            return []
        scheduled = time.perf_counter()
        ready, logits = self._run(plan)
        ran = time.perf_counter()
        drawn = sample(logits, [seq.sampler for seq in ready]) if ready else []
        sampled = time.perf_counter()
        for seq, token in zip(ready, drawn, strict=True):
            self._accept(seq, token)
        changed = [seq for seq, _ in plan if seq.finished]
        for seq in changed:
            self.scheduler.remove(seq)
        changed += [seq for seq in ready if not seq.finished]
        if self.profile is not None:
            times = scheduled - start, ran - scheduled, sampled - ran, time.perf_counter() - sampled
            self.profile.append(StepProfile(sum(n for _, n in plan), len(ready), *times))
        return changed

    def _run(self, plan: Plan) -> tuple[list[Sequence], NDArray[np.float32]]:
        """The sequences whose next token can be drawn, and their logits [R, V]."""
        ready = [seq for seq, count in plan if count == seq.pending]
        chunks = []
        for seq, count in plan:
            rows = (count - 1,) if count == seq.pending else ()
            chunks.append(Chunk(seq.tokens[seq.computed : seq.computed + count], seq.computed, seq.block_table, rows))
        try:
            logits = self.runner.step(make_batch(chunks, self.blocks.block_size))
        except Exception as error:  # noqa: BLE001 - whatever the device says, it must end only the requests that caused it
            self.lost = self.lost or isinstance(error, DeviceLostError)
            if len(plan) == 1:
                plan[0][0].fail(f"engine: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
                return [], np.empty((0, self.runner.vocab_size), np.float32)
            # Writing a token into the cache twice changes nothing, so each can be tried again alone.
            alone = [self._run([one]) for one in plan]
            return [seq for seqs, _ in alone for seq in seqs], np.concatenate([rows for _, rows in alone])
        for seq, count in plan:
            seq.computed += count
        return ready, logits

    def _accept(self, seq: Sequence, drawn: Drawn) -> None:
        if drawn.error is not None:
            seq.text.finish()
            seq.fail(drawn.error)
            return
        token = drawn.token_id
        seq.tokens.append(token)
        if seq.logprobs is not None and drawn.logprobs is not None:
            seq.logprobs.append(drawn.logprobs)
        if token in seq.stop_ids:
            matched = seq.text.finish()
            seq.finish_reason, seq.stop_reason = "stop", token if matched is None else matched
            return
        matched = seq.text.push(token)
        produced = len(seq.tokens) - seq.prompt_len
        full = len(seq.tokens) >= self.limit or produced == seq.params.max_tokens
        if matched is None and full:
            matched = seq.text.finish()
        if matched is not None:
            seq.finish_reason, seq.stop_reason = "stop", matched
        elif full:
            seq.finish_reason = "length"
