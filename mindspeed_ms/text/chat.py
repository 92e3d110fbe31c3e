"""From messages to the prompt a chat model was trained on, by the template it brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import RequestError, TokenizerError
from mindspeed_ms.text.tokenizer import Tokenizer

_WORKER = Path(__file__).with_name("template_worker.py")
MAX_MESSAGE_CHARS = 8 << 20

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's Jinja template, rendered outside this process (see template_worker); safe to use from any thread."""

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, bos: int | None = None, eos: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._source = None if source is None else tokenizer.hide(source)
        names = {"bos_token": bos, "eos_token": eos}
        self._tokens = {name: "" if token is None else tokenizer.name(token) for name, token in names.items()}
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

    def close(self) -> None:
        """End the rendering process."""
        with self._lock:
            self._stop()

    def _render(self, messages: Seq[Message], add_generation_prompt: bool, extra: Mapping[str, Any]) -> str:
        if self._source is None:
            raise TokenizerError("chat_template: this model has none: give it a prompt (generate) instead of messages")
        variables = {
            "tools": None,
            "documents": None,
            **extra,
            **self._tokens,
            "messages": _checked(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            line = json.dumps({"template": self._source, "variables": variables}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages: {error}: expected values that JSON can hold") from error
        with self._lock:
            reply = self._ask(line)
        if "error" in reply:
            raise RequestError(f"chat_template: {self._tokenizer.reveal(reply['error'])}")
        return str(reply["text"])

    def _ask(self, line: bytes) -> dict[str, str]:
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
            return {"error": "rendering took too much time or memory and was stopped: expected a template that ends"}
        answer: dict[str, str] = json.loads(reply)
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


def _checked(messages: Seq[Message]) -> list[dict[str, Any]]:
    """Messages as plain dictionaries with string contents (a list of text parts is joined)."""
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
