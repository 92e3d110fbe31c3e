"""From messages to the prompt a chat model was trained on, by the template it brings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.errors import RequestError, TokenizerError
from mindspeed_ms.text.tokenizer import Tokenizer

_WORKER = Path(__file__).with_name("template_worker.py")
MAX_MESSAGE_CHARS = 8 << 20

Message = Mapping[str, Any]
Answers = tuple[str, list[tuple[int, int]]]  # a rendered conversation, and the characters [start, end) of its answers


class Stopped(RequestError):
    """A rendering took too long or too much memory, which another machine may have."""


class ChatTemplate:
    """A model's Jinja template, rendered outside this process (see template_worker); safe to use from any thread."""

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, bos: int | None = None, eos: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._source = None if source is None else tokenizer.hide(source)
        names = {"bos_token": bos, "eos_token": eos}
        self._tokens = {name: "" if token is None else tokenizer.name(token) for name, token in names.items()}
        secrets = [tokenizer.name(token) for token in tokenizer.special]
        self._specials = re.compile("|".join(map(re.escape, secrets))) if secrets else None
        self._worker: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.max_chars: int | None = None  # of a rendered conversation, before it is tokenized

    def encode(self, messages: Seq[Message], *, add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of the rendered conversation; control tokens come from the template alone, never from a message."""
        text = self._render(messages, add_generation_prompt, variables)
        if self.max_chars is not None and len(text) > self.max_chars:
            raise RequestError(f"messages: {len(text)} characters in the template: expected at most {self.max_chars}")
        return self._tokenizer.encode_plain(text)

    def render(self, messages: Seq[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The rendered conversation for people to read."""
        return self._tokenizer.reveal(self._render(messages, add_generation_prompt, variables))

    def answers(self, messages: Seq[Message], *, date: str | None = None, **variables: Any) -> Answers:
        """The rendered conversation, special tokens under secret names, and the characters that are answers in it.

        An answer is what the assistant writes after the generation prompt: the text and the token that ends the turn,
        not the white space a template puts between turns. date: ISO, what the template takes for today; None: today.
        Raises RequestError when the template refuses the conversation, or does not render the start of one as it
        renders the whole, so that nobody can tell what the model would have to write.
        """
        checked = checked_messages(messages)
        asked = [i for i, message in enumerate(checked) if message["role"] == "assistant"]
        reply = self._request(checked, False, variables, answers=asked, date=date)
        text = str(reply["text"])
        _check_unicode(text)
        return text, [(start, self._end_of_turn(text, start, end)) for start, end in reply["spans"]]

    def encode_answers(self, rendered: Seq[Answers]) -> list[tuple[list[int], np.ndarray]]:
        """Of each conversation that `answers` gave its token ids, and uint8 [tokens]: 1 for a token of an answer.

        A token counts as soon as one of its characters belongs to an answer.
        """
        encodings = self._tokenizer.encode_offsets([text for text, _ in rendered])
        return [
            (encoding.ids, answer_mask(encoding.offsets, spans))
            for encoding, (_, spans) in zip(encodings, rendered, strict=True)
        ]

    def close(self) -> None:
        """End the rendering process."""
        with self._lock:
            self._stop()

    def _end_of_turn(self, text: str, start: int, end: int) -> int:
        """The end of an answer without the white space after its last special token."""
        marks = self._specials.finditer(text, start, end) if self._specials else ()
        last = max((mark.end() for mark in marks), default=start)
        return last if last > start and not text[last:end].strip() else end

    def _render(self, messages: Seq[Message], add_generation_prompt: bool, extra: Mapping[str, Any]) -> str:
        return str(self._request(checked_messages(messages), add_generation_prompt, extra)["text"])

    def _request(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, extra: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        if self._source is None:
            raise TokenizerError("chat_template: this model has none: give it a prompt (generate) instead of messages")
        variables = {
            "tools": None,
            "documents": None,
            **extra,
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            line = json.dumps({"template": self._source, "variables": variables, **more}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages: {error}: expected values that JSON can hold") from error
        with self._lock:
            reply = self._ask(line)
        if reply is None:
            advice = "expected a template that ends"
            raise Stopped(f"chat_template: rendering took too much time or memory and was stopped: {advice}")
        if "error" in reply:
            raise RequestError(f"chat_template: {self._tokenizer.reveal(reply['error'])}")
        return reply

    def _ask(self, line: bytes) -> dict[str, Any] | None:
        if self._worker is None or self._worker.poll() is not None:
            self._stop()
            env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
            # A session of its own: Ctrl-C here must not end it in the middle of another thread's request.
            self._worker = subprocess.Popen(
                [sys.executable, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        assert self._worker.stdin is not None and self._worker.stdout is not None
        try:
            self._worker.stdin.write(line)
            self._worker.stdin.flush()
            reply = self._worker.stdout.readline()  # ends in any case: the worker's alarm closes the pipe
        except BrokenPipeError:
            reply = b""
        if not reply:
            self._stop()
            return None
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def _stop(self) -> None:
        if self._worker is None:
            return
        for pipe in (self._worker.stdin, self._worker.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # it died with our text unread
        self._worker.kill()
        self._worker.wait()
        self._worker = None


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"messages: lone surrogate at character {error.start} of the rendered text: expected valid Unicode"
        ) from None


def answer_mask(offsets: Seq[tuple[int, int]], spans: Seq[tuple[int, int]]) -> np.ndarray:
    """uint8 [tokens]: 1 where a token's characters [start, end) meet one of the ascending, disjoint spans."""
    if not len(offsets) or not len(spans):
        return np.zeros(len(offsets), np.uint8)
    starts, ends = np.array(offsets, np.int64).T
    span_starts, span_ends = np.array(spans, np.int64).T
    at = np.searchsorted(span_ends, starts, side="right")  # the first span that is not over yet
    beyond = np.append(span_starts, np.iinfo(np.int64).max)
    return (beyond[at] < ends).astype(np.uint8)


def checked_messages(messages: Seq[Message]) -> list[dict[str, Any]]:
    """Messages as plain dictionaries with string contents (a list of text parts is joined). Raises RequestError."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Seq) or not messages:
        raise RequestError("messages: expected a non-empty list of {role, content}")
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{i}]: expected a mapping with a role and a content")
        content = message.get("content")
        if isinstance(content, list):
            texts = [
                part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            ]
            content = "".join(texts) if len(texts) == len(content) else None
        if not isinstance(content, str):
            raise RequestError(f"messages[{i}].content: {type(content).__name__}: expected a string or text parts")
        checked.append({**message, "content": content})
    size = sum(len(m["content"]) for m in checked)
    if size > MAX_MESSAGE_CHARS:
        raise RequestError(f"messages: {size} characters in all: expected at most {MAX_MESSAGE_CHARS}")
    return checked
