"""Byte-level BPE vocabularies of GGUF files (GPT-2 and its kin): the split rules by name, and the tokenizer."""

import re
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from mindspeed_ms.errors import TokenizerError

_CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _MODERN % r"\p{N}{1,3}"
_QWEN2 = _MODERN % r"\p{N}"

# tokenizer.ggml.pre -> the expressions that cut the text one after the other. Models that share a rule share a line.
_SPLITS: dict[str, list[str]] = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    **dict.fromkeys(["gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "a.x-4.0", "mellum"], [_GPT2]),
    **dict.fromkeys(
        ["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], [r"\p{N}", _GPT2]
    ),
    **dict.fromkeys(["llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "dbrx"], [_LLAMA3]),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo"], [_QWEN2]),
}
_LLAMA3_RULES = ("llama3", "llama-v3", "llama-bpe", "falcon3")  # whole words of the vocabulary first; bos by default


def byte_level(metadata: dict[str, Any], tokens: list[str], where: str) -> tuple[Tokenizer, bool]:
    """The tokenizer of a "gpt2" vocabulary, and whether text starts with bos by default; raises TokenizerError."""
    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in _SPLITS:
        raise TokenizerError(f"{where}: pre-tokenizer {rule!r} is not supported, expected one of {', '.join(_SPLITS)}")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise TokenizerError(f"{where}: metadata 'tokenizer.ggml.merges' is missing or no list of texts")
    pairs = []
    for merge in merges:
        cut = merge.find(" ", 1)
        if cut < 0:
            raise TokenizerError(f"{where}: merge {merge[:60]!r} is not two texts with a space between")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = bpe(where, vocab=vocabulary, merges=pairs, ignore_merges=rule in _LLAMA3_RULES)
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[rule]]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    absent = "".join(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(tokens)))
    if absent:  # llama.cpp drops a byte that has no token after merging, the library before: keep its neighbours apart
        splits.append(pre_tokenizers.Split(Regex("[" + re.escape(absent) + "]"), "removed"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule in _LLAMA3_RULES


def bpe(where: str, **options: Any) -> Tokenizer:
    """A BPE tokenizer; raises TokenizerError when merges and vocabulary contradict each other."""
    try:
        return Tokenizer(models.BPE(**options))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise TokenizerError(f"{where}: vocabulary and merges make no tokenizer ({str(error)[:120]})") from None
