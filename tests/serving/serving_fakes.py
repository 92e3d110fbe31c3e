"""A small runner and tokenizer for tests of the engine: no model, but a cache that must be right."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mindspeed_ms.serving.engine.batch import Batch

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 0, 2
VOCAB = 320
TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "你好，世界！你好吗？",
    "def f(x):\n    return x + 1\n",
    "😀 naïve café",
]


@dataclass
class Files:
    """The part of a bundle that the tokenizer reads."""

    tokenizer_json: bytes
    chat_template: str | None = CHATML
    bos_token_id: int | None = BOS
    eos_token_ids: list[int] = field(default_factory=lambda: [EOS])
    pad_token_id: int | None = None
    add_bos: bool = False


@functools.cache
def library_tokenizer() -> Tokenizer:
    """A byte-level BPE of 320 tokens as the library makes it; the first three are special."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(
        TEXT * 3,
        trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    assert tok.get_vocab_size() == VOCAB
    return tok


def files(**changes) -> Files:
    """The same tokenizer as a model brings it."""
    return Files(library_tokenizer().to_str().encode(), **changes)


def says(text: str, *, then: int = EOS):
    """A script for HashRunner: the answer is this text's tokens, for a prompt whose last token is <|im_start|>."""
    answer = [*library_tokenizer().encode(text).ids, then]

    def logits(history: list[int]) -> np.ndarray:
        produced = len(history) - 1 - max(i for i, t in enumerate(history) if t == SPECIAL.index("<|im_start|>"))
        row = np.zeros(VOCAB, np.float32)
        row[answer[min(produced, len(answer) - 1)]] = 9.0
        return row

    return logits


class HashRunner:
    """Logits are a hash of the tokens read back from the cache through the block table.

    A wrong slot, block table or position, a block shared by two sequences or a forgotten recomputation changes them.
    """

    def __init__(self, *, num_blocks=16, block_size=4, vocab_size=VOCAB, max_context=64, script=None) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.vocab_size, self.max_context = vocab_size, max_context
        self.cache = np.full(num_blocks * block_size, -1, np.int64)
        self.batches: list[Batch] = []
        self.script = script
        self.fail_on: int | None = None

    def logits(self, history: list[int]) -> np.ndarray:
        """The row of logits after these tokens."""
        if self.script is not None:
            return self.script(history)
        digest = hashlib.sha256(json.dumps(history).encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little")).standard_normal(self.vocab_size, np.float32)

    def step(self, batch: Batch) -> np.ndarray:
        self.batches.append(batch)
        for array in vars(batch).values():
            assert array.dtype == np.int32 and array.flags.c_contiguous
        if self.fail_on is not None and self.fail_on in batch.token_ids:
            raise RuntimeError(f"token {self.fail_on} is not liked")
        rows = {}
        for s in range(len(batch.seq_starts) - 1):
            table = batch.block_tables[s]
            for t in range(batch.seq_starts[s], batch.seq_starts[s + 1]):
                position = int(batch.positions[t])
                block = int(table[position // self.block_size])
                assert 0 <= block < self.num_blocks
                assert batch.slot_mapping[t] == block * self.block_size + position % self.block_size
                self.cache[batch.slot_mapping[t]] = batch.token_ids[t]
                if t in batch.logit_rows:
                    at = [
                        int(table[p // self.block_size]) * self.block_size + p % self.block_size
                        for p in range(position + 1)
                    ]
                    rows[t] = self.logits([int(token) for token in self.cache[at]])
        if not len(batch.logit_rows):
            return np.empty((0, self.vocab_size), np.float32)
        return np.stack([rows[int(t)] for t in batch.logit_rows])


GREEDY = {"temperature": 0.0, "max_tokens": 6}


def greedy(prompt, count=6):
    """The token ids that a HashRunner makes most likely, one after the other."""
    ids = library_tokenizer().encode(prompt).ids if isinstance(prompt, str) else list(prompt)
    history = list(ids)
    for _ in range(count):
        history.append(int(HashRunner().logits(history).argmax()))
    return history[len(ids) :]
