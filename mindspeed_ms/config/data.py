"""What `data prepare` is asked to do: which documents, cleaned how, cut and arranged into rows of which lengths."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from mindspeed_ms.config.base import Config

Positive = Annotated[int, Field(ge=1)]


class ReadConfig(Config):
    """How documents are found in files."""

    text_key: str = "text"  # of JSON lines, parquet and arrow: the field with the text
    messages_key: str | None = None  # instead: the field with a conversation, [{role, content}, ...]
    ids_key: str | None = None  # instead: the field with token ids, for documents that are tokenized already
    txt_by: Literal["line", "paragraph", "file"] = "line"  # what one document of a .txt file is
    encoding: str = "utf-8"  # of .txt files; a byte order mark wins
    skip_damaged: bool = False  # keep what can be read of a damaged file, and count it, instead of an error

    @model_validator(mode="after")
    def _one_kind(self) -> ReadConfig:
        if self.messages_key is not None and self.ids_key is not None:
            raise ValueError("messages_key and ids_key exclude each other; give one")
        return self


class CleanConfig(Config):
    """Which documents are kept, and what is taken out of them."""

    invalid_utf8: Literal["drop", "replace", "error"] = "drop"  # the document; or each bad sequence by U+FFFD
    min_chars: Positive = 1  # shorter documents are dropped, counted in characters without white space at the ends
    max_chars: Positive = 8_000_000  # longer ones too
    dedup: bool = True  # drop documents that are equal to an earlier one, by their xxh3-128
    near_duplicates: Annotated[float, Field(gt=0, lt=1)] | None = None  # estimated Jaccard similarity from which a
    # document counts as a copy of an earlier one (MinHash over its words); None looks for none


class TokenizeConfig(Config):
    """How text becomes token ids."""

    bos: bool | None = None  # begin each document with BOS; None: as the tokenizer does
    eos: bool = True  # end each document with EOS, if the tokenizer has one (conversations: their template ends them)
    special_tokens: Literal["plain", "parse"] = "plain"  # whether "<|im_end|>" in a text is text or the control token


class ArrangeConfig(Config):
    """How documents become rows of a few fixed lengths."""

    mode: Literal["bucket", "pack", "stream"] = "bucket"
    boundaries: list[Positive] | None = None  # row lengths of the buckets, ascending; or leave them to `buckets`
    buckets: Annotated[int, Field(ge=1, le=64)] = 5  # how many, at the boundaries that pad least
    max_length: Positive = 2048  # tokens of the longest row; with `boundaries` their last one counts
    multiple_of: Positive = 1  # boundaries are multiples of this (16 suits Ascend's matrix units)
    join: bool = False  # bucket: fill rows with further short documents, masked from one another
    overlong: Literal["split", "truncate", "drop"] = "split"  # documents longer than the longest row
    max_documents: Positive | None = None  # in one row; None: a quarter of its length

    @field_validator("boundaries")
    @classmethod
    def _ascending(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and (not value or sorted(set(value)) != value):
            raise ValueError("expected ascending lengths without repeats, such as 128,256,512")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ArrangeConfig:
        if self.boundaries is not None and self.mode != "bucket":
            raise ValueError(f"boundaries are for mode bucket; {self.mode} has rows of max_length only")
        if self.join and self.mode != "bucket":
            raise ValueError("join is for mode bucket; pack always joins, stream never does")
        wrong = [b for b in self.boundaries or [self.max_length] if b % self.multiple_of]
        if wrong:
            raise ValueError(f"{wrong[0]} is not a multiple of multiple_of {self.multiple_of}")
        return self


class PrepareConfig(Config):
    """All of `data prepare` but its folders, its tokenizer and its workers: what decides the bytes of the set."""

    read: ReadConfig = ReadConfig()
    clean: CleanConfig = CleanConfig()
    tokenize: TokenizeConfig = TokenizeConfig()
    arrange: ArrangeConfig = ArrangeConfig()
    shard_tokens: Annotated[int, Field(ge=1024)] = 32 << 20  # about so many tokens of documents make one shard a bucket
