"""SentencePiece vocabularies of GGUF files. Not converted yet: refused by name."""

from typing import Any

from tokenizers import Tokenizer

from mindspeed_ms.errors import TokenizerError


def sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int], where: str) -> Tokenizer:
    """Raises TokenizerError."""
    raise TokenizerError(f"{where}: tokenizer model 'llama' (SentencePiece) is not supported, expected 'gpt2'")
