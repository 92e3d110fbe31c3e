"""What a store is asked to keep and to save: what no reader would give back as it was is refused before any change."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from mindspeed_ms.checkpoint.manifest import ITEM_BYTES, MOST_AXES, MOST_CHUNK
from mindspeed_ms.errors import CheckpointError

_DEEPEST = 100  # of a state: a reader with little room on its stack reads it too


def whole(value: Any, what: str, least: int, most: int, unit: str) -> int:
    """A whole number, NumPy's too, as int. Raises CheckpointError."""
    try:
        number = -1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number <= most:
        small = most < 10**18 - 1 or number > most
        bounds = f"from {least} to {most}" if small else "that is not negative"
        raise CheckpointError(f"{what} is {_short(value)}, expected a {unit} {bounds}")
    return number


def rules(keep: Any, keep_every: Any, keep_best: Any) -> tuple[int, int | None, int]:
    """The rules of a store, checked."""
    most, unit = 10**18 - 1, "number of checkpoints"
    every = None if keep_every is None else whole(keep_every, "keep_every", 0, most, "number of steps") or None
    return whole(keep, "keep", 0, most, unit), every, whole(keep_best, "keep_best", 0, most, unit)


def chunk_size(value: Any) -> int:
    number = whole(value, "chunk_bytes", 8, MOST_CHUNK, "number of bytes")
    if number % 8:
        raise CheckpointError(f"chunk_bytes is {number}, expected a multiple of 8")
    return number


def identity(given: Mapping[str, str] | None) -> dict[str, str]:
    found = dict(given or {})
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CheckpointError(f"identity: {_short(key)} is {_short(value)}, expected text by names that are text")
    return found


def metric(value: Any, step: int) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, (bool, np.bool_, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) >= 2.0**1000:
        raise CheckpointError(f"the metric of step {step} is {_short(value)}, expected a finite number, or None")
    return number


def tensors(given: Mapping[str, np.ndarray], step: int) -> None:
    """Names that are text, arrays of the format's types."""
    if not isinstance(given, Mapping):
        raise CheckpointError(f"the tensors of step {step} are {_short(given)}, expected arrays by name")
    for name in given:
        array = given[name]
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise CheckpointError(f"tensor {_short(name)} is of {kind}, expected a NumPy array by a name that is text")
        if array.dtype.name not in ITEM_BYTES:
            raise CheckpointError(f"tensor {_short(name)} is {array.dtype}, expected one of {', '.join(ITEM_BYTES)}")
        if array.ndim > MOST_AXES:
            raise CheckpointError(f"tensor {_short(name)} has {array.ndim} axes, expected at most {MOST_AXES}")


def names(given: Mapping[str, np.ndarray], **asked: Collection[str]) -> None:
    """What is asked of tensors by name is asked of tensors that are there."""
    for what, found in asked.items():
        if isinstance(found, str):
            raise CheckpointError(f"{what} is {_short(found)}, expected a collection of names")
        for name in found:
            if name not in given:
                raise CheckpointError(f"{what}: there is no tensor {_short(name)} among the {len(given)} to save")


def layout(
    given: Mapping[str, Mapping[str, Any]] | None, arrays: Mapping[str, np.ndarray]
) -> dict[str, dict[str, list[int]]]:
    """Where parts lie in the whole, by name, as the manifest has it."""
    found = {}
    for name, place in (given or {}).items():
        shape = arrays[name].shape
        try:
            values = {key: [operator.index(value) for value in place[key]] for key in ("shape", "offset")}
        except (TypeError, KeyError):
            values = {"shape": [], "offset": [-1]}
        total, offset = values["shape"], values["offset"]
        inside = len(total) == len(offset) == len(shape) and all(
            0 <= start and start + length <= end for start, length, end in zip(offset, shape, total, strict=True)
        )
        if not inside:
            raise CheckpointError(
                f"layout of tensor {_short(name)} is {_short(place)}, expected shape and offset of a global tensor "
                f"that holds {list(shape)} there"
            )
        found[name] = values
    return found


def state(given: Mapping[str, Any], step: int) -> dict[str, Any]:
    """A copy as JSON gives it back: keys are text, tuples become lists."""
    try:
        if not isinstance(given, Mapping):
            raise TypeError(f"it is {_short(given)}, not an object")
        for depth, key in _keys(dict(given)):
            if depth > _DEEPEST:
                raise ValueError(f"more than {_DEEPEST} objects and lists in each other")
            if not isinstance(key, str):
                raise TypeError(f"key {_short(key)} is not text")
        copied: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the state of step {step} is not what JSON holds ({error})") from None
    return copied


def _keys(value: Any) -> Iterator[tuple[int, Any]]:
    """Every key and how deep it lies; text for what lies in lists."""
    stack, depth = [value], 0
    while stack and depth <= _DEEPEST + 1:
        inner = []
        depth += 1
        for item in stack:
            found = item.items() if isinstance(item, dict) else (("", value) for value in item)
            for key, below in found:
                yield depth, key
                if isinstance(below, (dict, list, tuple)):
                    inner.append(below)
        stack = inner


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."
