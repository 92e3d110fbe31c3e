"""The tokenizer of a set: opened from wherever a model keeps it, as plain data that travels to workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed_ms.errors import DataError, TokenizerError, WeightsError
from mindspeed_ms.paths import open_regular

if TYPE_CHECKING:
    from mindspeed_ms.weights.source import TokenizerFiles

# For a tokenizer.json that comes alone: the tokens with a part to play, by the names that models give them.
_USUAL = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
}
_MAX_ID = (1 << 31) - 1


@dataclass(frozen=True)
class DataTokenizer:
    """A tokenizer as plain data.

    json: the copy of tokenizer.json that a set keeps: without truncation and padding, which are a caller's business,
    and without a BPE's dropout, by which the same text would have other ids every time.
    vocab_size: the model's where its configuration is known, else one more than the largest id of the tokenizer.
    context: most tokens of the model's input, where known. pad_id: the padding token, else EOS, else 0.
    """

    json: bytes
    sha256: str  # of json, in hexadecimal
    vocab_size: int
    context: int | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int
    add_bos: bool  # whether the tokenizer itself begins a text with BOS
    chat_template: str | None

    @property
    def identity(self) -> str:
        """SHA-256 of all that decides which ids come out: these fields but `context`."""
        fields = [self.sha256, self.vocab_size, self.bos_id, self.eos_id, self.pad_id, self.add_bos, self.chat_template]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    # The fields of mindspeed_ms.text.tokenizer.TokenizerFiles, by their names there.
    @property
    def tokenizer_json(self) -> bytes:
        return self.json

    @property
    def bos_token_id(self) -> int | None:
        return self.bos_id

    @property
    def eos_token_ids(self) -> list[int]:
        return [] if self.eos_id is None else [self.eos_id]

    @property
    def pad_token_id(self) -> int | None:
        return self.pad_id


def open_tokenizer(path: str | Path) -> DataTokenizer:
    """Open a tokenizer.json, a Hugging Face folder with one (weights are not needed), a GGUF file or a bundle.

    Raises TokenizerError naming the file.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _bundle(path) if (path / "bundle.json").is_file() else _folder(path)
        if not path.exists():
            raise TokenizerError(f"{path}: no such file or folder; give a tokenizer.json, a model's folder or GGUF")
        with open_regular(path) as file:
            magic = file.read(4)
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from None
    if magic == b"GGUF":
        return _gguf(path)
    beside = ("tokenizer_config.json", "config.json", "bundle.json")
    if path.name == "tokenizer.json" and any((path.parent / name).is_file() for name in beside):
        return open_tokenizer(path.parent)
    return _alone(path)


def check_tokenizer(path: str | Path, sha256: str, folder: str | Path) -> None:
    """Raises DataError unless the tokenizer at `path` is the one with this SHA-256, which the set in `folder` has."""
    found = open_tokenizer(path).sha256
    if found != sha256:
        raise DataError(
            f"{path}: a tokenizer with SHA-256 {found[:12]}..., but {folder} was made with {sha256[:12]}...; use its "
            "tokenizer.json or prepare the set again"
        )


def _folder(path: Path) -> DataTokenizer:
    from mindspeed_ms.weights.hf_tokenizer import read_tokenizer
    from mindspeed_ms.weights.json_file import read_json_if_there

    names = ("tokenizer_config.json", "config.json", "generation_config.json")
    if not any((path / name).is_file() for name in names):
        _refuse_gguf_folder(path)
        if not (path / "tokenizer.json").is_file():
            raise TokenizerError(f"{path.resolve()}: a folder without a tokenizer.json; is the path given at all?")
        return _alone(path / "tokenizer.json")
    config = read_json_if_there(path / "config.json", TokenizerError)
    if (path / "tokenizer.json").exists():
        _probed(path / "tokenizer.json")
    files = read_tokenizer(path, config)
    inner = config.get("text_config")  # where models of text and images keep their decoder's
    config = {**inner, **config} if isinstance(inner, dict) else config
    context = next((config[key] for key in ("max_position_embeddings", "n_positions") if config.get(key)), None)
    for name, value in (("vocab_size", config.get("vocab_size")), ("max_position_embeddings", context)):
        if value is not None and (type(value) is not int or not 0 < value <= _MAX_ID):
            raise TokenizerError(f"{path / 'config.json'}: {name} is {str(value)[:60]!r}, expected a whole number")
    eos = _named_eos(path, read_json_if_there(path / "tokenizer_config.json", TokenizerError), files)
    return _build(path, files, eos, config.get("vocab_size"), context)


def _refuse_gguf_folder(path: Path) -> None:
    inside = sorted(path.glob("*.gguf"))
    if inside and not (path / "tokenizer.json").exists():
        raise TokenizerError(f"{path}: has no tokenizer.json; give the file itself: {inside[0].name}")


def _named_eos(path: Path, settings: dict[str, Any], files: TokenizerFiles) -> int | None:
    """A document ends with the tokenizer's own EOS; generation settings may list further ends of a turn before it."""
    token = settings.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str):
        for entry in _parse(files.tokenizer_json, path / "tokenizer.json").get("added_tokens", []):
            if entry["content"] == token:
                return int(entry["id"])
    return files.eos_token_ids[0] if files.eos_token_ids else None


def _gguf(path: Path) -> DataTokenizer:
    from mindspeed_ms.weights.gguf_header import read_header
    from mindspeed_ms.weights.gguf_tokenizer import read_tokenizer
    from mindspeed_ms.weights.safetensors_file import map_file

    try:
        header = read_header(map_file(path), str(path))
    except WeightsError as error:
        raise TokenizerError(str(error)) from None
    files = read_tokenizer(header.metadata, str(path))
    embedding = header.tensors.get("token_embd.weight")
    context = header.metadata.get(f"{header.metadata.get('general.architecture')}.context_length")
    eos = files.eos_token_ids[0] if files.eos_token_ids else None
    context = int(context) if isinstance(context, int) and context > 0 else None
    return _build(path, files, eos, embedding.shape[0] if embedding else None, context)


def _bundle(path: Path) -> DataTokenizer:
    from mindspeed_ms.weights.hf_tokenizer import MAX_TEMPLATE_BYTES
    from mindspeed_ms.weights.json_file import read_bytes, read_json
    from mindspeed_ms.weights.source import TokenizerFiles

    info = read_json(path / "bundle.json", TokenizerError)
    where = f"{path / 'bundle.json'}"
    try:
        tokenizer, spec = info["tokenizer"], info["spec"]
        vocab_size, context = spec["vocab_size"], spec["max_position_embeddings"]
        bos, pad = tokenizer.get("bos_token_id"), tokenizer.get("pad_token_id")
        ends, add_bos = list(tokenizer.get("eos_token_ids", [])), bool(tokenizer.get("add_bos"))
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{where}: tokenizer or spec is not a bundle's ({error}); export it again") from None
    numbers = [vocab_size, context, *ends, *(value for value in (bos, pad) if value is not None)]
    if any(type(value) is not int or not 0 <= value <= _MAX_ID for value in numbers) or not vocab_size:
        raise TokenizerError(f"{where}: a size or token id is no whole number; export the bundle again")
    template = None
    if (path / "chat_template.jinja").exists():
        template = read_bytes(path / "chat_template.jinja", TokenizerError, MAX_TEMPLATE_BYTES).decode(
            "utf-8", "replace"
        )
    content = _probed(path / "tokenizer.json")
    files = TokenizerFiles(content, template, bos, ends, pad, add_bos and bos is not None)
    return _build(path, files, ends[0] if ends else None, vocab_size, context)


def _alone(path: Path) -> DataTokenizer:
    from mindspeed_ms.weights.hf_tokenizer import parse_tokenizer
    from mindspeed_ms.weights.source import TokenizerFiles

    content = _probed(path)
    tokenizer = parse_tokenizer(content, str(path))
    special = {t["content"]: t["id"] for t in _parse(content, path).get("added_tokens", []) if t.get("special")}
    ids = {part: next((special[n] for n in names if n in special), None) for part, names in _USUAL.items()}
    bos = ids["bos"]
    add_bos = bos is not None and tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos]
    ends = [] if ids["eos"] is None else [ids["eos"]]
    return _build(path, TokenizerFiles(content, None, bos, ends, ids["pad"], add_bos), ids["eos"], None, None)


def _probed(path: Path) -> bytes:
    from mindspeed_ms.data.probe import probe
    from mindspeed_ms.weights.hf_tokenizer import MAX_TOKENIZER_BYTES, without_padding
    from mindspeed_ms.weights.json_file import read_bytes

    content = read_bytes(path, TokenizerError, MAX_TOKENIZER_BYTES)
    try:
        probe(without_padding(content), str(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: is not a tokenizer ({str(error)[:120]})") from None
    return content


def _build(
    path: Path, files: TokenizerFiles, eos: int | None, vocab_size: int | None, context: int | None
) -> DataTokenizer:
    from mindspeed_ms.weights.hf_tokenizer import parse_tokenizer

    data = _parse(files.tokenizer_json, path)
    data["truncation"] = data["padding"] = None
    if isinstance(data.get("model"), dict) and data["model"].get("dropout"):
        data["model"]["dropout"] = None
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    ids = parse_tokenizer(content, str(path)).get_vocab(with_added_tokens=True).values()
    largest = max(ids, default=-1)
    if largest > _MAX_ID:
        raise TokenizerError(f"{path}: a token has the id {largest}, expected at most {_MAX_ID}; make the file again")
    size = vocab_size or largest + 1
    pad = files.pad_token_id if files.pad_token_id is not None else eos if eos is not None else 0
    _check_special(path, size, {"bos": files.bos_token_id, "eos": eos, "pad": pad})
    return DataTokenizer(
        json=content,
        sha256=hashlib.sha256(content).hexdigest(),
        vocab_size=size,
        context=context,
        bos_id=files.bos_token_id,
        eos_id=eos,
        pad_id=pad,
        add_bos=files.add_bos,
        chat_template=files.chat_template,
    )


def _check_special(path: Path, size: int, ids: dict[str, int | None]) -> None:
    for name, token in ids.items():
        if token is not None and token >= size:
            raise TokenizerError(
                f"{path}: {name} token has the id {token}, which is not below the model's vocab_size {size}; "
                "tokenizer and configuration do not belong together"
            )


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: is not a tokenizer ({str(error)[:120]})") from None
    if not isinstance(data, dict) or not isinstance(data.get("added_tokens", []), Iterable):
        raise TokenizerError(f"{path}: is not a tokenizer, expected the object of a tokenizer.json")
    return data
