"""A client of the service: grpcio and NumPy are all it needs.

It writes and reads the few messages of ms_service.proto itself (protobuf's wire format, protobuf.dev/encoding).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from mindspeed_ms.errors import RequestError, ServeError

_PATH = "/mindspore.serving.proto.MSService/Predict"
_MAX_MESSAGE = 512 << 20
_DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
_STRING, _BYTES = 13, 14


@dataclass
class Answer:
    """An answer: finish_reason is 'stop' or 'length', or 'error' with its `error` when one prompt of many failed."""

    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[float] | None = None
    error: str | None = None


class Client:
    """Calls one server, from any thread; timeout: seconds an answer may take, for calls that do not say otherwise."""

    def __init__(
        self, address: str = "127.0.0.1:5500", servable: str = "", *, version: int = 0, timeout: float = 120.0
    ) -> None:
        self.address, self.servable, self.version, self.timeout = address, servable, version, timeout
        options = [
            ("grpc.max_send_message_length", _MAX_MESSAGE),
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._predict = self._channel.unary_unary(_PATH)

    def generate(self, prompt: Any, *, timeout: float | None = None, **sampling: Any) -> Any:
        """Continue a text or a list of token ids: an Answer; a list of either: a list of Answers, in order.

        sampling: temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, stop_token_ids, max_tokens,
        logprobs, ignore_eos. Raises RequestError when the one prompt is refused, ServeError when the call fails.
        """
        many = isinstance(prompt, Sequence) and not isinstance(prompt, str)
        many = many and not all(isinstance(token, int | np.integer) for token in prompt)
        prompts = list(prompt) if many else [prompt]
        given = {name: value for name, value in sampling.items() if value is not None}
        instances = [{"prompt": p, **given} if isinstance(p, str) else {"input_ids": _ids(p), **given} for p in prompts]
        answers = [_answer(items) for items in self.infer(instances, timeout=timeout)]
        return answers if many else _one(answers)

    def chat(
        self, messages: str | Sequence[Mapping[str, str]], *, timeout: float | None = None, **sampling: Any
    ) -> Answer:
        """Answer what a user says, or a conversation [{role, content}, ...], in the model's own chat template."""
        asked = {"prompt": messages} if isinstance(messages, str) else {"messages": json.dumps(list(messages))}
        given = {name: value for name, value in sampling.items() if value is not None}
        return _one([_answer(items) for items in self.infer([{**asked, **given}], "chat", timeout=timeout)])

    def infer(
        self, instances: Sequence[Mapping[str, Any]], method: str = "generate", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """The protocol itself: numbers, arrays and strings in and out; {"error": ...} where an instance failed."""
        spec = _bytes(1, self.servable.encode()) + _bytes(2, method.encode()) + _number(3, self.version)
        request = _bytes(1, spec) + b"".join(_bytes(2, _instance(items)) for items in instances)
        limit = self.timeout if timeout is None else timeout
        try:
            reply: bytes = self._predict(request, timeout=limit)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServeError(
                    f"{self.address}: no answer in {limit:g} s: expected one; give a longer timeout"
                ) from error
            why = error.details() or error.code().name
            raise ServeError(f"{self.address}: {why}: expected a running mindspeed-ms serve") from error
        results: list[dict[str, Any]] = []
        errors: list[tuple[int, str]] = []
        for number, value in _fields(reply):
            if number == 3:
                results.append(_items(value))
            elif number == 4:
                parts = dict(_fields(value))
                errors.append((parts.get(1, 0), bytes(parts.get(2, b"")).decode("utf-8", "replace")))
        if len(errors) == 1 and errors[0][0] and not results:
            raise ServeError(f"{self.address}: {errors[0][1]}")
        if len(errors) not in (0, len(results)):
            raise ServeError(
                f"{self.address}: {len(errors)} errors for {len(results)} instances: expected none or as many"
            )
        return [{"error": errors[i][1]} if errors and errors[i][0] else items for i, items in enumerate(results)]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ids(prompt: Any) -> np.ndarray[Any, Any]:
    return np.asarray(prompt, np.int64)


def _answer(items: Mapping[str, Any]) -> Answer:
    if "error" in items:
        return Answer(finish_reason="error", error=items["error"])
    logprobs = items.get("logprobs")
    return Answer(
        items["text"],
        items["output_ids"].tolist(),
        items["finish_reason"],
        int(items["prompt_tokens"]),
        int(items["completion_tokens"]),
        None if logprobs is None else logprobs.tolist(),
    )


def _one(answers: list[Answer]) -> Answer:
    if answers[0].error is not None:
        raise RequestError(answers[0].error)
    return answers[0]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _instance(items: Mapping[str, Any]) -> bytes:
    return b"".join(_bytes(1, _bytes(1, name.encode()) + _bytes(2, _tensor(name, v))) for name, v in items.items())


def _tensor(name: str, value: Any) -> bytes:
    if isinstance(value, str | bytes):
        value = [value]
    if isinstance(value, list | tuple) and value and all(isinstance(v, str | bytes) for v in value):
        code = _STRING if isinstance(value[0], str) else _BYTES
        data = b"".join(_bytes(4, v.encode() if isinstance(v, str) else v) for v in value)
        return _bytes(1, _dims([len(value)])) + _number(2, code) + data
    array = np.asarray(value)
    if array.dtype.name not in _DTYPES:
        raise RequestError(f"{name}: {type(value).__name__} of {array.dtype}: expected numbers or strings")
    if array.ndim == 0 and not isinstance(value, np.generic | np.ndarray):
        array = array.reshape(1)
    data = array.astype(array.dtype.newbyteorder("<"), order="C").tobytes()
    return _bytes(1, _dims(array.shape)) + _number(2, 1 + _DTYPES.index(array.dtype.name)) + _bytes(3, data)


def _dims(shape: Sequence[int]) -> bytes:
    return _bytes(1, b"".join(_varint(d) for d in shape)) if len(shape) else b""


def _fields(data: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """(field number, int or memoryview) of a message."""
    view, at = memoryview(data), 0
    while at < len(view):
        key, at = _read_varint(view, at)
        if key & 7 == 0:
            value, at = _read_varint(view, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _read_varint(view, at)
            if at + size > len(view):
                raise ServeError("reply: it ends too early: expected a PredictReply")
            yield key >> 3, view[at : at + size]
            at += size
        else:
            raise ServeError(f"reply: wire type {key & 7}: expected a PredictReply")


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ServeError("reply: it ends too early: expected a PredictReply")


def _items(instance: memoryview) -> dict[str, Any]:
    items = {}
    for number, entry in _fields(instance):
        if number == 1:
            parts = dict(_fields(entry))
            items[bytes(parts[1]).decode()] = _value(parts.get(2, memoryview(b"")))
    return items


def _value(tensor: memoryview) -> Any:
    shape: list[int] = []
    code, data, strings = 0, memoryview(b""), []
    for number, value in _fields(tensor):
        if number == 1:
            for _, packed in _fields(value):
                at = 0
                while isinstance(packed, memoryview) and at < len(packed):
                    size, at = _read_varint(packed, at)
                    shape.append(size)
                if isinstance(packed, int):
                    shape.append(packed)
        elif number == 2:
            code = value
        elif number == 3:
            data = value
        elif number == 4:
            strings.append(bytes(value))
    if code in (_STRING, _BYTES):
        values = [s.decode() if code == _STRING else s for s in strings]
        return values[0] if len(values) == 1 else values
    if not 1 <= code <= len(_DTYPES):
        raise ServeError(f"reply: data type {code}: expected one of ms_service.proto's DataType")
    return np.frombuffer(data, np.dtype(_DTYPES[code - 1]).newbyteorder("<")).reshape(shape).copy()
