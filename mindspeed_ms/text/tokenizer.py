"""Text to tokens and back: no user can write a control token, and no stream ever cuts a character in two."""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

from mindspeed_ms.errors import RequestError, TokenizerError


class TokenizerFiles(Protocol):
    """What a bundle or a model directory brings (see `mindspeed_ms.weights`)."""

    @property
    def tokenizer_json(self) -> bytes: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> list[int]: ...
    @property
    def pad_token_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...


class Tokenizer:
    """A Hugging Face tokenizer whose special tokens are known under secret names only.

    Each special token is renamed to a random name made when the tokenizer is loaded, and so is each mention of it in
    the chat template. A `<|im_end|>` in a user's text is then plain text wherever it stands, even when a template
    joins two halves of it, while all of the template's own control tokens are recognized, in one pass over the text.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.bos_token_id = files.bos_token_id
        self.eos_token_ids = frozenset(files.eos_token_ids)
        self.add_bos = files.add_bos and files.bos_token_id is not None
        try:
            data = json.loads(files.tokenizer_json)
            self.special = {t["id"]: t["content"] for t in data.get("added_tokens", []) if t["special"]}
            salt = secrets.token_hex(8)
            self._secret = {content: f"<|{salt}-{token}|>" for token, content in self.special.items()}
            _rename(data, self._secret)
            self._inner = tokenizers.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
        except Exception as error:  # the Rust side raises bare Exception for whatever it dislikes in the file
            raise TokenizerError(f"tokenizer.json: {_line(error)}: expected a Hugging Face tokenizer file") from error
        self._byte_level = _is_byte_level(data.get("decoder"))
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of a user's text, after the model's BOS if it wants one; special tokens in it are plain text."""
        ids = self.encode_plain(text)
        return [self.bos_token_id, *ids] if self.add_bos and self.bos_token_id is not None else ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text and nothing else; only secret names become special tokens."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"text: lone surrogate at character {error.start}: expected valid Unicode") from error
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of many texts of valid Unicode at once, each as of `encode_plain`."""
        return [found.ids for found in self._inner.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_offsets(self, texts: list[str]) -> list[tokenizers.Encoding]:
        """As `encode_batch`, but slower: `ids`, and in `offsets` the characters [start, end) of each token."""
        found: list[tokenizers.Encoding] = self._inner.encode_batch(texts, add_special_tokens=False)
        return found

    def decode(self, ids: Seq[int]) -> str:
        """The text of the tokens, without special ones."""
        if self._byte_level:
            return b"".join(map(self._piece, ids)).decode("utf-8", "replace")
        text: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return text

    def name(self, token: int) -> str:
        """A token as a chat template may write it: a special one by its secret name."""
        return self._inner.id_to_token(token) or ""

    def hide(self, template: str) -> str:
        """A chat template's source with each special token under its secret name."""
        return _replace(template, self._secret)

    def reveal(self, text: str) -> str:
        """The reverse of `hide`, for people to read."""
        return _replace(text, {secret: content for content, secret in self._secret.items()})

    def stream(self, stop: Seq[str] = ()) -> TextStream:
        """A detokenizer for one answer."""
        return TextStream(_ByteSteps(self._piece) if self._byte_level else _GenericSteps(self._inner), stop)

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            name = "" if token in self.special else self._inner.id_to_token(token) or ""
            piece = self._pieces[token] = _bytes_of(name)
        return piece


class TextStream:
    """The text of one answer as its tokens arrive, cut at the first stop string to be complete."""

    def __init__(self, steps: Steps, stop: Seq[str] = ()) -> None:
        self.text = ""
        self._steps = steps
        self._stop = tuple(stop)
        self._longest = max(map(len, stop), default=0)
        self._sent = 0
        self._safe = 0  # characters that no later token can make part of a stop string

    def push(self, token: int) -> str | None:
        """Add a token; returns the stop string it completed, if any."""
        return self._append(self._steps.step(token))

    def finish(self) -> str | None:
        """No more tokens: let go of what was held back (an incomplete character becomes U+FFFD)."""
        matched = self._append(self._steps.flush())
        self._safe = len(self.text)
        return matched

    def take(self) -> str:
        """Text that is certain and has not been taken yet."""
        new = self.text[self._sent : self._safe]
        self._sent = self._safe
        return new

    def _append(self, new: str) -> str | None:
        if not new:
            return None
        start = max(0, len(self.text) - self._longest + 1)
        self.text += new
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := self.text.find(stop, start)) >= 0]
        if found:
            _, at, stop = min(found)
            self.text = self.text[:at]
            self._safe = at
            return stop
        self._safe = len(self.text) - self._held()
        return None

    def _held(self) -> int:
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0


class Steps(Protocol):
    """Tokens in, whole characters out."""

    def step(self, token: int) -> str: ...

    def flush(self) -> str: ...


class _ByteSteps:
    """Byte-level vocabularies: each token is a run of bytes, so an incremental UTF-8 decoder says it all."""

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token: int) -> str:
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _GenericSteps:
    """Any other vocabulary: the library's own stream, and one whole decode at the end for what it held back."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._length = 0

    def step(self, token: int) -> str:
        self._ids.append(token)
        text: str = self._stream.step(self._inner, token) or ""
        self._length += len(text)
        return text

    def flush(self) -> str:
        text: str = self._inner.decode(self._ids, skip_special_tokens=True)
        return text[self._length :]


def _rename(data: dict[str, Any], secret: dict[str, str]) -> None:
    """Give special tokens their secret names wherever the file looks a token up by its text."""
    for token in data.get("added_tokens", []):
        token["content"] = secret.get(token["content"], token["content"])
    model = data["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {secret.get(text, text): token for text, token in vocab.items()}
    else:
        model["vocab"] = [[secret.get(text, text), score] for text, score in vocab]
    if model.get("unk_token") in secret:
        model["unk_token"] = secret[model["unk_token"]]
    data["post_processor"] = None  # it adds BOS and EOS by name; the engine adds them by id
    data["truncation"] = data["padding"] = None


def _replace(text: str, names: dict[str, str]) -> str:
    if not names:
        return text
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(pattern, lambda match: names[match[0]], text)


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return [part.get("type") for part in decoder.get("decoders", [])] == ["ByteLevel"]
    return decoder.get("type") == "ByteLevel"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


def _bytes_of(piece: str) -> bytes:
    # An added token may hold characters outside the alphabet: it then stands for itself, as in the library.
    return bytes(_BYTES[c] for c in piece) if all(c in _BYTES for c in piece) else piece.encode()


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
