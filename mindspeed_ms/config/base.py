"""The base of every configuration: unknown keys are errors that name the nearest known key."""

import difflib
import reprlib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.paths import read_regular

ConfigT = TypeVar("ConfigT", bound="Config")

_MAX_BYTES = 16 << 20  # of a YAML file
# What PyYAML lets through of numbers, dates and tags such as `!!map [1]` that it fails to convert.
UNPARSED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_SHORT = reprlib.Repr()  # bounded, where aliases make a small file a huge value
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlist = _SHORT.maxdict = 20


class Config(pydantic.BaseModel):
    """A typed configuration; `parse` and `load_yaml` report what is wrong in one line."""

    model_config = pydantic.ConfigDict(extra="forbid", validate_default=True)

    @pydantic.field_validator("*")
    @classmethod
    def _writable(cls, value: Any) -> Any:
        """Values go to files and messages, where lone surrogates and numbers of thousands of digits cannot."""
        if isinstance(value, int) and value.bit_length() > 64:
            raise ValueError("expected a number of at most 64 bits")
        items = (
            value if isinstance(value, list | tuple) else [*value, *value.values()] if isinstance(value, dict) else []
        )
        for text in (value, *items):
            if isinstance(text, str) and not text.isascii() and text.encode("utf-8", "ignore").decode() != text:
                raise ValueError("expected text that UTF-8 can hold, without lone surrogates")
        return value

    @classmethod
    def parse(cls: type[ConfigT], mapping: Mapping[str, Any], where: str = "configuration") -> ConfigT:
        """Build from a mapping; `where` is the file or field named in errors. Raises ConfigError."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"{where}: expected a mapping of keys to values, got {type(mapping).__name__}")
        try:
            return cls.model_validate(dict(mapping))
        except pydantic.ValidationError as error:
            raise ConfigError(f"{where}: {_sentence(cls, error)}") from None


def load_yaml(path: str | Path, cls: type[ConfigT]) -> ConfigT:
    """Read a YAML file into a configuration of class `cls`. Raises ConfigError that names the file."""
    path = Path(path)
    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a YAML configuration") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read as a text file: {problem}") from None
    try:
        # _UniqueKeys is a SafeLoader: it builds plain values only.
        content = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deep") from None
    except UNPARSED as error:
        raise ConfigError(f"{path}: not valid YAML: a value is not of the kind it has ({_line(error)})") from None
    return cls.parse({} if content is None else content, where=str(path))


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue  # a key that is itself a list or mapping is refused below
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _sentence(cls: type[Config], error: pydantic.ValidationError) -> str:
    """The first problem, and how many more there are."""
    problems = error.errors(include_url=False, include_context=False)
    # An unknown key explains the missing one beside it, so it goes first.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    loc = first["loc"]
    name = ".".join(str(part) for part in loc)
    if first["type"] == "extra_forbidden":
        known = sorted(_fields(cls, loc[:-1]))
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        text = f"unknown key {name!r}; {advice}"
    elif first["type"] == "missing":
        text = f"the key {name!r} is missing; add it"
    else:
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        given = _given(first["input"])
        given = given if len(given) <= 80 else given[:77] + "..."
        whole = isinstance(first["input"], Mapping)  # what is wrong is then in the message alone
        text = f"{name}: {message}" if name and whole else f"{name} is {given}; {message}" if name else message
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"


def _given(value: Any) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:
        return "a number too long to print"


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _fields(cls: type[Config], loc: tuple[int | str, ...]) -> set[str]:
    """The keys of the configuration nested in `cls` at a pydantic error location."""
    known = _keys(cls)
    current: list[type[Config]] = [cls]
    for part in loc:
        nested = [
            inner
            for outer in current
            for key, field in outer.model_fields.items()
            if part in (key, field.alias)
            for inner in _configs(field.annotation)
        ]
        if nested:
            current = nested
            known = set().union(*(_keys(inner) for inner in nested))
    return known


def _keys(cls: type[Config]) -> set[str]:
    return {field.alias or key for key, field in cls.model_fields.items()}


def _configs(annotation: Any) -> Iterator[type[Config]]:
    """The configuration classes named anywhere in a type annotation, such as list[X] or X | None."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _configs(argument)
