"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` tokenizer.json.

Byte-level BPE vocabularies ("gpt2") are made in gguf_bpe.py, SentencePiece ones ("llama") in gguf_spm.py.
"""

from typing import Any

import numpy as np
from tokenizers import AddedToken

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights.gguf_bpe import byte_level
from mindspeed_ms.weights.gguf_spm import sentencepiece
from mindspeed_ms.weights.source import TokenizerFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
# Tokens that end a turn, whatever the metadata says.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>")
_KEY = "tokenizer.ggml."
MAX_TEMPLATE_BYTES = 1 << 20
MAX_TOKEN_LENGTH = 4096


def read_tokenizer(metadata: dict[str, Any], where: str) -> TokenizerFiles:
    """Build the tokenizer files from a GGUF file's metadata; raises TokenizerError."""
    model = metadata.get(_KEY + "model")
    if model is None:
        raise TokenizerError(f"{where}: metadata '{_KEY}model' is missing, the file has no tokenizer")
    tokens, types = _vocabulary(metadata, where)
    if model == "gpt2":
        tokenizer, add_bos = byte_level(metadata, tokens, where)
    elif model == "llama":
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
    eos = _token_id(metadata, "eos", len(tokens), where, default["eos"])
    eot = _token_id(metadata, "eot", len(tokens), where)
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
        eos_token_ids=list(dict.fromkeys([index for index in (eos, eot) if index is not None] + ends)),
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
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_LENGTH:
        raise TokenizerError(f"{where}: a token of {longest} characters, expected at most {MAX_TOKEN_LENGTH}")
    types = metadata.get(_KEY + "token_type")
    if types is None:
        return tokens, [_NORMAL] * len(tokens)
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise TokenizerError(f"{where}: metadata '{_KEY}token_type' is no list of {len(tokens)} numbers")
    return tokens, types.tolist()


def _token_id(metadata: dict[str, Any], name: str, size: int, where: str, default: int | None = None) -> int | None:
    key = f"{_KEY}{name}_token_id"
    value = metadata.get(key, default)
    if value is None or (type(value) is int and 0 <= value < size):
        return value
    raise TokenizerError(f"{where}: metadata '{key}' is {value!r}, expected a token id below {size}")
