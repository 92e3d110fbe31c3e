"""Who runs in the next step: every sequence ready to decode, then prompt chunks, within one budget of tokens."""

from __future__ import annotations

from collections import deque

from mindspeed_ms.serving.engine.blocks import BlockManager
from mindspeed_ms.serving.engine.sequence import Sequence

Plan = list[tuple[Sequence, int]]


class Scheduler:
    """First come, first served, with chunked prefill (Sarathi, arXiv:2308.16369) and preemption by recomputation.

    When blocks run out, the latest arrival gives its own back and starts over from its tokens so far: a token's
    result does not depend on chunks or neighbours, so its answer stays the same.
    """

    def __init__(self, blocks: BlockManager, *, token_budget: int = 512, max_seqs: int = 64) -> None:
        self.blocks = blocks
        self.token_budget = token_budget
        self.max_seqs = min(max_seqs, token_budget)  # every running sequence can then decode in each step
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence; the caller has checked that it can ever fit."""
        self.waiting.append(seq)

    def schedule(self) -> Plan:
        """Choose (sequence, token count) pairs and reserve their blocks; empty only when nothing waits or runs."""
        budget = self.token_budget
        plan: Plan = []
        # Decodes first: they cost one token each, and a long prompt must not hold up those who already answer.
        todo = sorted(self.running, key=lambda s: (s.pending > 1, s.arrival))
        preempted = False
        while todo and budget:
            seq = todo.pop(0)
            count = min(seq.pending, budget)
            while not self.blocks.grow(seq.block_table, seq.computed + count):
                victim = max([seq, *todo], key=lambda s: s.arrival)
                self._preempt(victim)
                preempted = True
                if victim is seq:
                    break
                todo.remove(victim)
            else:
                plan.append((seq, count))
                budget -= count
        while self.waiting and budget and not preempted and len(self.running) < self.max_seqs:
            seq = self.waiting[0]
            # Room for all its tokens and the next one, or the newcomer would soon be thrown out again.
            if self.running and self.blocks.needed(len(seq.tokens) + 1) > self.blocks.free:
                break
            count = min(seq.pending, budget)
            if not self.blocks.grow(seq.block_table, seq.computed + count):
                break
            self.waiting.popleft()
            self.running.append(seq)
            plan.append((seq, count))
            budget -= count
        return plan

    def remove(self, seq: Sequence) -> None:
        """Forget a finished or abandoned sequence and free its blocks."""
        self.blocks.release(seq.block_table)
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)

    def _preempt(self, seq: Sequence) -> None:
        self.blocks.release(seq.block_table)
        seq.computed = 0
        seq.preemptions += 1
        self.running.remove(seq)
        self.waiting.appendleft(seq)
