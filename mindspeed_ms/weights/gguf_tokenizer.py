"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` tokenizer.json.

Byte-level BPE vocabularies ("gpt2") split text as `tokenizer.ggml.pre` names it. SentencePiece vocabularies ("llama")
merge by score; they become BPE with byte fallback (see gguf_spm.py).
"""

import re
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights.source import TokenizerFiles

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
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# Tokens that end a turn, whatever the metadata says.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>")
_KEY = "tokenizer.ggml."
MAX_TEMPLATE_BYTES = 1 << 20


def read_tokenizer(metadata: dict[str, Any], where: str) -> TokenizerFiles:
    """Build the tokenizer files from a GGUF file's metadata; raises TokenizerError."""
    model = metadata.get(_KEY + "model")
    if model is None:
        raise TokenizerError(f"{where}: metadata '{_KEY}model' is missing, the file has no tokenizer")
    tokens, types = _vocabulary(metadata, where)
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(metadata, tokens, where)
    elif model == "llama":
        from mindspeed_ms.weights.gguf_spm import sentencepiece

        tokenizer, add_bos = sentencepiece(metadata, tokens, types, where), True
    else:
        raise TokenizerError(f"{where}: tokenizer model {model!r} is not supported, expected 'gpt2' or 'llama'")
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN)
        ]
    )
    default = {"bos": None, "eos": None} if model == "gpt2" else {"bos": 1, "eos": 2}
    bos = _token_id(metadata, "bos", len(tokens), where, default["bos"])
    eos = [_token_id(metadata, "eos", len(tokens), where, default["eos"]), _token_id(metadata, "eot", len(tokens), where)]
    ends = [index for index, token in enumerate(tokens) if token in _END_OF_TURN and types[index] == _CONTROL]
    add_bos = bool(metadata.get(_KEY + "add_bos_token", add_bos))
    if add_bos and bos is None:
        raise TokenizerError(f"{where}: metadata '{_KEY}bos_token_id' is missing, though text starts with that token")
    template = metadata.get("tokenizer.chat_template")
    if template is not None and (not isinstance(template, str) or len(template) > MAX_TEMPLATE_BYTES):
        raise TokenizerError(f"{where}: tokenizer.chat_template is not a text of at most {MAX_TEMPLATE_BYTES} bytes")
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str().encode("utf-8"),
        chat_template=template,
        bos_token_id=bos,
        eos_token_ids=list(dict.fromkeys([index for index in eos if index is not None] + ends)),
        pad_token_id=_token_id(metadata, "padding", len(tokens), where),
        add_bos=add_bos,
    )


def _vocabulary(metadata: dict[str, Any], where: str) -> tuple[list[str], list[int]]:
    tokens = metadata.get(_KEY + "tokens")
    if not isinstance(tokens, list) or not tokens:
        raise TokenizerError(f"{where}: metadata '{_KEY}tokens' is missing or no list of texts")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{where}: metadata '{_KEY}tokens' names a token twice")
    types = metadata.get(_KEY + "token_type")
    if types is None:
        return tokens, [_NORMAL] * len(tokens)
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise TokenizerError(f"{where}: metadata '{_KEY}token_type' is no list of {len(tokens)} numbers")
    return tokens, types.tolist()


def _byte_level(metadata: dict[str, Any], tokens: list[str], where: str) -> tuple[Tokenizer, bool]:
    rule = metadata.get(_KEY + "pre", "default")
    if rule not in _SPLITS:
        raise TokenizerError(f"{where}: pre-tokenizer {rule!r} is not supported, expected one of {', '.join(_SPLITS)}")
    merges = metadata.get(_KEY + "merges")
    if not isinstance(merges, list):
        raise TokenizerError(f"{where}: metadata '{_KEY}merges' is missing or no list of texts")
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
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{where}: vocabulary and merges make no tokenizer ({str(error)[:120]})") from None


def _token_id(metadata: dict[str, Any], name: str, size: int, where: str, default: int | None = None) -> int | None:
    key = f"{_KEY}{name}_token_id"
    value = metadata.get(key, default)
    if value is None or (type(value) is int and 0 <= value < size):
        return value
    raise TokenizerError(f"{where}: metadata '{key}' is {value!r}, expected a token id below {size}")
