"""What a request may ask of the sampler, checked field by field."""

from __future__ import annotations

import dataclasses
import difflib
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspeed_ms.errors import RequestError

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256  # held-back text is searched for every prefix of every stop string


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are drawn and when it ends; a RequestError names the field that is out of range.

    temperature: 0 takes the most likely token, else logits are divided by it. top_k: keep the k likeliest, 0 keeps all.
    top_p: keep the smallest set of likeliest tokens whose probability reaches it. min_p: drop tokens less likely than
    min_p times the likeliest. repetition_penalty: > 1 makes tokens of the prompt and the answer less likely (CTRL,
    arXiv:1909.05858). seed: same seed, same answer, whatever else runs; None draws one. stop: strings that end the
    answer and are cut from it. stop_token_ids: tokens that end it, beside the model's own. max_tokens: most tokens to
    produce, None up to the context. logprobs: report this many alternatives a token (0: the chosen one alone).
    ignore_eos: go on after the model's own end tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 256
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _real(self, "temperature", 0.0, 100.0)
        _integer(self, "top_k", 0, 2**31 - 1)
        _real(self, "top_p", 0.0, 1.0, above=True)
        _real(self, "min_p", 0.0, 1.0)
        _real(self, "repetition_penalty", 0.0, 100.0, above=True)
        _integer(self, "seed", 0, 2**64 - 1, optional=True)
        _integer(self, "max_tokens", 1, 2**31 - 1, optional=True)
        _integer(self, "logprobs", 0, MAX_LOGPROBS, optional=True)
        if not isinstance(self.ignore_eos, bool):
            raise _refused("ignore_eos", self.ignore_eos, "true or false")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        valid = isinstance(stop, list | tuple) and len(stop) <= MAX_STOPS
        if not valid or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in stop):
            raise _refused("stop", self.stop, f"at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters")
        object.__setattr__(self, "stop", tuple(stop))
        ids = self.stop_token_ids
        if not isinstance(ids, list | tuple) or not all(_is_int(i) and i >= 0 for i in ids):
            raise _refused("stop_token_ids", ids, "a list of token ids >= 0")
        object.__setattr__(self, "stop_token_ids", tuple(map(int, ids)))

    @classmethod
    def parse(cls, fields: Mapping[str, Any], defaults: SamplingParams | None = None) -> SamplingParams:
        """A request's fields over `defaults`; an unknown field is an error that names the nearest known one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise unknown_field(name, known)
        return dataclasses.replace(defaults or cls(), **fields)


def unknown_field(name: str, known: list[str]) -> RequestError:
    """The error for a field nobody knows, with the nearest known name or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return RequestError(f"{name[:64]}: unknown field; {hint}")


def _refused(field: str, value: object, expected: str) -> RequestError:
    try:
        shown = repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        shown = "a number of thousands of digits"
    return RequestError(f"{field}: {shown if len(shown) <= 80 else shown[:77] + '...'}: expected {expected}")


def _is_int(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _integer(params: SamplingParams, field: str, low: int, high: int, optional: bool = False) -> None:
    value = getattr(params, field)
    if optional and value is None:
        return
    if not _is_int(value) or not low <= value <= high:
        raise _refused(field, value, f"a whole number from {low} to {high}" + (" or none" if optional else ""))
    object.__setattr__(params, field, int(value))


def _real(params: SamplingParams, field: str, low: float, high: float, above: bool = False) -> None:
    value = getattr(params, field)
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool)  # a NumPy number is one
    if not valid or not low <= value <= high or (above and value == low):  # NaN and infinities are out of range
        raise _refused(field, value, f"a number {'above' if above else 'from'} {low:g} to {high:g}")
    object.__setattr__(params, field, float(value))
