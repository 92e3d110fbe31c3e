"""Tokenizer files of a Hugging Face directory: tokenizer.json, the chat template wherever it is kept, special ids."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mindspeed_ms.errors import TokenizerError
from mindspeed_ms.weights.json_file import read_bytes, read_json_if_there
from mindspeed_ms.weights.source import TokenizerFiles

MAX_TOKENIZER_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 1 << 20


def read_tokenizer(path: Path, config: dict[str, Any]) -> TokenizerFiles:
    """Read the tokenizer beside `config` (the content of config.json); raises TokenizerError."""
    file = path / "tokenizer.json"
    if not file.exists():
        old = next((name for name in ("tokenizer.model", "vocab.json", "spiece.model") if (path / name).exists()), None)
        hint = f"; {old} is not read, convert it with transformers' save_pretrained" if old else ""
        raise TokenizerError(f"{file}: no such file, the model has no tokenizer{hint}")
    content = read_bytes(file, TokenizerError, MAX_TOKENIZER_BYTES)
    tokenizer = parse_tokenizer(content, str(file))
    settings = read_json_if_there(path / "tokenizer_config.json", TokenizerError)
    generation = read_json_if_there(path / "generation_config.json", TokenizerError)

    def special(name: str, *sources: dict[str, Any]) -> list[int]:
        for source in sources:
            ids = _ids(source.get(f"{name}_token_id"), f"{path}: {name}_token_id")
            if ids:
                return ids
        return []

    def named(name: str) -> list[int]:
        token = settings.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.token_to_id(token) if isinstance(token, str) else None
        return [] if found is None else [found]

    bos = named("bos") or special("bos", generation, config)
    # A chat model's turn ends with the tokenizer's eos token even where config.json names another one.
    eos = list(dict.fromkeys(special("eos", generation, config) + named("eos")))
    pad = named("pad") or special("pad", generation, config)
    add_bos = settings.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = bool(bos) and tokenizer.encode("", add_special_tokens=True).ids[:1] == bos[:1]
    if add_bos and not bos:
        raise TokenizerError(f"{path / 'tokenizer_config.json'}: add_bos_token is true, but there is no bos_token")
    return TokenizerFiles(
        tokenizer_json=content,
        chat_template=_chat_template(path, settings),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        pad_token_id=pad[0] if pad else None,
        add_bos=add_bos,
    )


def parse_tokenizer(content: bytes, where: str) -> Tokenizer:
    """Build the tokenizer from the bytes of a tokenizer.json, without its truncation and padding.

    Raises TokenizerError when it is none.
    """
    try:
        tokenizer = Tokenizer.from_buffer(without_padding(content))
        tokenizer.encode("a")  # some contradictions show only when it is used
        return tokenizer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - the library raises nothing narrower, its panics are no Exception
        line = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise TokenizerError(f"{where}: is not a tokenizer ({line})") from None


def without_padding(content: bytes) -> bytes:
    """A tokenizer.json without truncation and padding: this may be to a length that fills the memory.

    Raises ValueError, RecursionError when it is not JSON.
    """
    data = json.loads(content)
    if not isinstance(data, dict) or not (data.get("truncation") or data.get("padding")):
        return content
    return json.dumps({**data, "truncation": None, "padding": None}).encode()


def _chat_template(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return read_bytes(file, TokenizerError, MAX_TEMPLATE_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise TokenizerError(f"{file}: is not UTF-8 text") from None
    template = settings.get("chat_template")
    if template is None:
        template = read_json_if_there(path / "chat_template.json", TokenizerError).get("chat_template")
    if isinstance(template, list):  # several named templates: the one called default, else the first
        named = [item for item in template if isinstance(item, dict)]
        default = [item for item in named if item.get("name") == "default"] or named
        template = default[0].get("template") if default else None
    if template is not None and not isinstance(template, str):
        kind = type(template).__name__
        raise TokenizerError(f"{path / 'tokenizer_config.json'}: chat_template is of type {kind}, expected text")
    return template


def _ids(value: Any, where: str) -> list[int]:
    values: Iterable[Any] = [] if value is None else value if isinstance(value, list) else [value]
    ids = list(values)
    for item in ids:
        if type(item) is not int or item < 0:
            raise TokenizerError(f"{where} is {value!r}, expected a token id or a list of them")
    return ids
