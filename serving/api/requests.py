"""What the items of an instance mean: a prompt and its sampling fields in, an answer out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from mindspeed_ms.errors import RequestError
from mindspeed_ms.serving.api.tensors import Value, read, write
from mindspeed_ms.serving.engine.llm import LLM, Handle, RequestOutput, SamplingParams
from mindspeed_ms.serving.engine.params import unknown_field

_SAMPLING = [field.name for field in fields(SamplingParams)]
METHODS = {"generate": ("prompt", "input_ids"), "chat": ("prompt", "system", "messages")}


def submit(llm: LLM, method: str, items: Mapping[str, Any]) -> Handle:
    """Start one instance's request.

    generate: `prompt` (a string) or `input_ids` (integers [n]). chat: `prompt` (what the user says) with an optional
    `system`, or `messages` (a JSON list of {role, content}). Both: SamplingParams' fields, each with shape [] or [1];
    `stop` strings [n], `stop_token_ids` integers [n]. Raises RequestError.
    """
    own = METHODS[method]
    for name in items:
        if name not in own and name not in _SAMPLING:
            raise unknown_field(name, [*own, *_SAMPLING])
    values = {name: read(name, tensor) for name, tensor in items.items()}
    sampling = {name: _sampling(name, values.pop(name)) for name in _SAMPLING if name in values}
    params = SamplingParams.parse(sampling, llm.default_params)
    return llm.submit(_chat(llm, values) if method == "chat" else _prompt(values), params)


def fill(instance: Any, output: RequestOutput) -> None:
    """Write an answer into an Instance message.

    text, finish_reason: strings. output_ids: int32 [n]. prompt_tokens, completion_tokens: int32 []. When asked for:
    logprobs float32 [n], and with k > 0 top_ids int32 [n, k], top_logprobs float32 [n, k].
    """
    items: dict[str, str | np.ndarray[Any, Any]] = {
        "text": output.text,
        "output_ids": np.array(output.output_ids, np.int32),
        "finish_reason": output.finish_reason,
        "prompt_tokens": np.array(output.prompt_tokens, np.int32),
        "completion_tokens": np.array(output.completion_tokens, np.int32),
    }
    if output.logprobs is not None:
        items["logprobs"] = np.array([token.logprob for token in output.logprobs], np.float32)
        if output.logprobs and output.logprobs[0].top:
            items["top_ids"] = np.array([list(token.top) for token in output.logprobs], np.int32)
            items["top_logprobs"] = np.array([list(token.top.values()) for token in output.logprobs], np.float32)
    for name, value in items.items():
        write(instance.items[name], value)


def _prompt(values: Mapping[str, Value]) -> str | list[int]:
    if len(values) != 1:
        raise RequestError(f"prompt, input_ids: {'both' if values else 'neither'} given: expected one of them")
    if "prompt" in values:
        return _string("prompt", values["prompt"])
    return _integers("input_ids", values["input_ids"])


def _chat(llm: LLM, values: Mapping[str, Value]) -> list[int]:
    if ("prompt" in values) == ("messages" in values):
        raise RequestError(f"prompt, messages: {'both' if values else 'neither'} given: expected one of them")
    if "prompt" in values:
        messages = [{"role": "user", "content": _string("prompt", values["prompt"])}]
        if "system" in values:
            messages.insert(0, {"role": "system", "content": _string("system", values["system"])})
        return llm.chat_ids(messages)
    if "system" in values:
        raise RequestError("system: given beside messages: expected it as the first of the messages")
    try:
        return llm.chat_ids(json.loads(_string("messages", values["messages"])))
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        raise RequestError(f"messages: {error}: expected a JSON list of {{role, content}}") from error


def _sampling(name: str, value: Value) -> Any:
    if name == "stop":
        if not isinstance(value, list):
            raise RequestError(f"stop: {value.dtype}: expected strings")
        return value
    if name == "stop_token_ids":
        return _integers(name, value)
    if isinstance(value, list) or value.size != 1:
        what = "a string" if isinstance(value, list) else f"shape {list(value.shape)}"
        raise RequestError(f"{name}: {what}: expected one number")
    return value.reshape(())[()].item()


def _string(name: str, value: Value) -> str:
    if not isinstance(value, list) or len(value) != 1:
        what = f"{len(value)} strings" if isinstance(value, list) else str(value.dtype)
        raise RequestError(f"{name}: {what}: expected one string")
    return value[0]


def _integers(name: str, value: Value) -> list[int]:
    if isinstance(value, list) or value.dtype.kind not in "iu" or value.ndim > 1:
        what = "strings" if isinstance(value, list) else f"{value.dtype} {list(value.shape)}"
        raise RequestError(f"{name}: {what}: expected integers [n]")
    ids: list[int] = value.reshape(-1).tolist()
    return ids
