"""SentencePiece vocabularies of GGUF files (Llama 2 and its kin) as BPE with byte fallback.

SentencePiece joins, again and again, the two neighbours whose union has the highest score. Every way to cut a piece in
two pieces becomes a merge here, ranked by the score of the union: the same choice, ties going to the left in both.
"""

from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, normalizers

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights.gguf_bpe import bpe

SPACE = "\u2581"  # SentencePiece writes a space as this block
_MERGEABLE = (1, 4, 5)  # normal, user-defined, unused: control and byte tokens never come from text
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


def sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int], where: str) -> Tokenizer:
    """Build the tokenizer of a "llama" vocabulary; raises TokenizerError when scores or byte tokens are missing."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "fi" or len(scores) != len(tokens):
        raise TokenizerError(f"{where}: metadata 'tokenizer.ggml.scores' is no list of {len(tokens)} numbers")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    absent = [token for token in _BYTES if token not in vocabulary]
    if absent:
        raise TokenizerError(f"{where}: byte token {absent[0]!r} is missing; rare characters could not be written")
    parts = {token for token, kind in zip(tokens, types, strict=True) if kind in _MERGEABLE}
    merges = [
        (float(scores[vocabulary[token]]), vocabulary[token[:cut]], vocabulary[token[cut:]])
        for token in parts
        for cut in range(1, len(token))
        if token[:cut] in parts and token[cut:] in parts
    ]
    merges.sort(key=lambda merge: (-merge[0], merge[1], merge[2]))
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == 2), None)
    tokenizer = bpe(
        where,
        vocab=vocabulary,
        merges=[(tokens[left], tokens[right]) for _, left, right in merges],
        unk_token=unknown,
        byte_fallback=True,
        fuse_unk=True,
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    escape = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if prefix else escape
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer
