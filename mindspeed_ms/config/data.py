"""What `data prepare` is asked to do: which documents, cleaned how, cut and arranged into rows of which lengths."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mindspeed_ms.config.base import Config

Characters = Annotated[int, Field(ge=1, le=1 << 30)]
Length = Annotated[int, Field(ge=1, le=1 << 22)]


class ReadConfig(Config):
    """How documents are found in files."""

    text_key: str = "text"  # of JSON lines, parquet and arrow: the field with the text
    messages_key: str | None = None  # instead: the field with a conversation, [{role, content}, ...]
    ids_key: str | None = None  # instead: the field with token ids, for documents that are tokenized already
    txt_by: Literal["line", "paragraph", "file"] = "line"  # what one document of a .txt file is
    encoding: str = "utf-8"  # of .txt files; a byte order mark wins
    skip_damaged: bool = False  # keep what can be read of a damaged file, and count it, instead of an error
    bad_conversations: Literal["error", "drop"] = "error"  # that the chat template refuses, or rewrites as they go on

    @model_validator(mode="after")
    def _one_kind(self) -> ReadConfig:
        if self.messages_key is not None and self.ids_key is not None:
            raise ValueError("messages_key and ids_key exclude each other; give one")
        return self


class CleanConfig(Config):
    """Which documents are kept, and what is taken out of them."""

    invalid_utf8: Literal["drop", "replace", "error"] = "drop"  # the document; or each bad sequence by U+FFFD
    min_chars: Characters = 1  # shorter documents are dropped, counted in characters without white space at the ends
    max_chars: Characters = 2_000_000  # longer ones too; a worker may need 100 bytes of memory for each character
    # of the longest, where a tokenizer has to take it whole
    dedup: bool = True  # drop documents that are equal to an earlier one, by their xxh3-128
    near_duplicates: Annotated[float, Field(ge=0.1, le=0.99)] | None = None  # estimated Jaccard similarity from which a
    # document counts as a copy of an earlier one (MinHash over its words); None looks for none


class TokenizeConfig(Config):
    """How text becomes token ids."""

    bos: bool | None = None  # begin each document with BOS; None: as the tokenizer does
    eos: bool = True  # end each document with EOS, if the tokenizer has one (conversations: their template ends them)
    special_tokens: Literal["plain", "parse"] = "plain"  # whether "<|im_end|>" in a text is text or the control token
    date: str = "2024-07-26"  # the day that a chat template which asks for today gets; the same bytes on any day

    @field_validator("date", mode="before")
    @classmethod
    def _day(cls, value: Any) -> Any:
        """YAML makes a date of one without quotes; ISO knows several spellings of a day, a set only one."""
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value.isoformat()
        if isinstance(value, str):
            try:
                same = datetime.date.fromisoformat(value).isoformat() == value
            except ValueError:
                same = False
            if not same:
                raise ValueError("expected a day of the calendar, such as 2024-07-26")
        return value


class ArrangeConfig(Config):
    """How documents become rows of a few fixed lengths."""

    mode: Literal["bucket", "pack", "stream"] = "bucket"
    boundaries: list[Length] | None = None  # bucket: row lengths, ascending; or leave them to `buckets`
    buckets: Annotated[int, Field(ge=1, le=64)] | None = None  # bucket: how many, at the boundaries that pad least; 5
    max_length: Length | None = None  # tokens of the longest row: 2048, or the last of `boundaries`
    multiple_of: Length = 1  # row lengths are multiples of this (16 suits Ascend's matrix units)
    join: bool = False  # bucket: fill rows with further short documents, masked from one another
    overlong: Literal["split", "truncate", "drop"] = "split"  # bucket, pack: documents longer than the longest row
    max_documents: Length | None = None  # bucket with join, pack: in one row; None: a quarter of its length

    @field_validator("boundaries")
    @classmethod
    def _ascending(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and (not value or sorted(set(value)) != value):
            raise ValueError("expected ascending lengths without repeats, such as 128,256,512")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ArrangeConfig:
        bucket = self.mode == "bucket"
        joined = self.join or self.mode == "pack"
        for given, name, allowed in (
            (self.boundaries is not None, "boundaries", bucket),
            (self.buckets is not None, "buckets", bucket and self.boundaries is None),
            (self.max_length is not None, "max_length", self.boundaries is None),
            (self.join, "join", bucket),
            (self.overlong != "split", "overlong", self.mode != "stream"),
            (self.max_documents is not None, "max_documents", joined),
        ):
            if given and not allowed:
                beside = " beside boundaries" if bucket and self.boundaries else f" in mode {self.mode}"
                raise ValueError(f"{name} has no effect{beside}; leave it out")
        wrong = [length for length in self.boundaries or [self.longest] if length % self.multiple_of]
        if wrong:
            raise ValueError(f"the length {wrong[0]} is not a multiple of multiple_of, {self.multiple_of}")
        return self

    @property
    def longest(self) -> int:
        """Tokens of the longest row there may be."""
        return self.boundaries[-1] if self.boundaries else self.max_length or 2048


_OF_CONVERSATIONS = ("read.bad_conversations", "tokenize.date")
_NOT_OF_CONVERSATIONS = (
    "read.text_key",
    "read.txt_by",
    "read.encoding",
    "tokenize.bos",
    "tokenize.eos",
    "tokenize.special_tokens",
)
_NOT_OF_IDS = (*_NOT_OF_CONVERSATIONS, "clean.min_chars")


class PrepareConfig(Config):
    """All of `data prepare` but its folders, its tokenizer and its workers: what decides the bytes of the set."""

    read: ReadConfig = ReadConfig()
    clean: CleanConfig = CleanConfig()
    tokenize: TokenizeConfig = TokenizeConfig()
    arrange: ArrangeConfig = ArrangeConfig()
    shard_tokens: Annotated[int, Field(ge=1024, le=1 << 32)] = 32 << 20  # about so many make one shard a bucket

    @model_validator(mode="after")
    def _effective(self) -> PrepareConfig:
        """Of a manifest all keys are given, so what counts is whether a value differs from the default."""
        if self.read.messages_key is not None:
            self._refuse(_NOT_OF_CONVERSATIONS, "with read.messages_key: the chat template writes conversations")
        else:
            self._refuse(_OF_CONVERSATIONS, "without read.messages_key: it is for conversations")
        if self.read.ids_key is not None:
            self._refuse(_NOT_OF_IDS, "with read.ids_key: token ids are taken as they are")
        return self

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            section, key = name.split(".")
            part = getattr(self, section)
            if getattr(part, key) != type(part).model_fields[key].default:
                raise ValueError(f"{name} has no effect {why}; leave it out")
