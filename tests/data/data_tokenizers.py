"""Small tokenizers as folders, GGUF files and in memory, for tests of the data path."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mindspeed_ms.data.tokenizer import DataTokenizer, open_tokenizer
from mindspeed_ms.data.types import Position, RawChunk

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOT, START, END = 0, 1, 2
VOCAB = 340
TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "你好，世界！你好吗？ 三国演义",
    "def f(x):\n    return x + 1\n",
    "😀 naïve café 2024 don't I'll",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(pattern: str | None = None, digits: bool = False) -> Tokenizer:
    """A byte-level BPE of 340 tokens, cut as GPT-2 does or by an expression; the first three are special."""
    tok = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    first = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    first += [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tok.pre_tokenizer = pre_tokenizers.Sequence([*first, last]) if first else last
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": VOCAB, "special_tokens": SPECIAL, "initial_alphabet": alphabet, "show_progress": False}
    tok.train_from_iterator(TEXT * 3, trainers.BpeTrainer(**options))
    return tok


def word_piece() -> Tokenizer:
    """A BERT-like tokenizer of some hundred tokens."""
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tok.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    return tok


def sentence_piece() -> Tokenizer:
    """A BPE with word-start marks and no cutting into words, as Llama 2 has it."""
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tok.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False))
    data = json.loads(tok.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(data))


@functools.cache
def library_tokenizer() -> Tokenizer:
    """The byte-level tokenizer that most tests use, as the library makes it."""
    return byte_level()


def save_folder(folder: Path, *, template: str | None = CHATML, tok: Tokenizer | None = None, **settings) -> Path:
    """A Hugging Face folder with a tokenizer and no weights; `settings` go to tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text((tok or library_tokenizer()).to_str(), encoding="utf-8")
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", **settings}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def data_tokenizer(folder: Path, **options) -> DataTokenizer:
    """The same, opened."""
    return open_tokenizer(save_folder(folder, **options))


def chunk(records: list, kind: str = "text", **changes) -> RawChunk:
    """A chunk of these records from the start of file 0."""
    values = {
        "source": 0, "first": 0, "kind": kind, "records": records, "overlong": 0, "numbers": None,
        "bytes": sum(map(len, records)), "after": Position(len(records), 7),
    }  # fmt: skip
    return RawChunk(**{**values, **changes})
