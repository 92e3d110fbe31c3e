"""What bundle.json says: every field typed and bounded, because a bundle comes from anywhere."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mindspeed_ms.config.base import Config
from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import BundleError, ConfigError

FORMAT_VERSION = 1
BLOCK_SIZE = 32
INFO_FILE = "bundle.json"
MINDIR_FILE = "graph.mindir"
WEIGHTS_FILE = "weights.safetensors"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
# The only files a bundle may name, with the most bytes each may have (None: as many as the model needs).
FILES: dict[str, int | None] = {
    MINDIR_FILE: 64 << 20,
    WEIGHTS_FILE: None,
    TOKENIZER_FILE: 256 << 20,
    TEMPLATE_FILE: 4 << 20,
}
_MAX_INFO_BYTES = 8 << 20
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]


class WeightFormat(Config):
    """How one matrix is stored: integers of `bits`, a scale a `group` of inputs (0: a row), `act` 1 for int8 inputs."""

    bits: Literal[4, 8]
    group: Literal[0, 32, 64, 128]
    asym: Literal[0, 1] = 0
    act: Literal[0, 1] = 0


class Quantization(Config):
    """The scheme's name and the matrices it covers, by Hugging Face name; the others are float32."""

    scheme: Literal["fp32", "w8a8", "w4a8", "w8a16", "w4a16"]
    weights: dict[str, WeightFormat] = {}


class FileInfo(Config):
    """Checksum and size of one file of the bundle."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(strict=True, ge=0, lt=1 << 50)]


class TokenizerInfo(Config):
    """The ids a generator needs beside tokenizer.json."""

    bos_token_id: TokenId | None = None
    eos_token_ids: Annotated[list[TokenId], Field(max_length=1024)] = []
    pad_token_id: TokenId | None = None
    add_bos: Annotated[bool, Field(strict=True)] = False


class GenerationInfo(Config):
    """Sampling settings the model came with."""

    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None


class BundleInfo(Config):
    """The whole of bundle.json."""

    format_version: int
    mindspore: Annotated[str, Field(max_length=64)]
    kernel_abi: int
    entry_points: Annotated[list[str], Field(max_length=64)]
    kv_dtype: Literal["float16", "float32"]
    block_size: Literal[32]
    spec: DecoderSpec
    quantization: Quantization
    signature: dict[str, list[str | int]]
    files: dict[str, FileInfo]
    tokenizer: TokenizerInfo
    generation: GenerationInfo
    source: dict[str, Annotated[str, Field(max_length=4096)]] = {}


def parse_info(data: bytes, path: Path) -> BundleInfo:
    """bundle.json's bytes -> BundleInfo. Raises BundleError naming the field, or the version and what to do."""
    where = f"{path}: {INFO_FILE}"
    if len(data) > _MAX_INFO_BYTES:
        raise BundleError(f"{where}: {len(data)} bytes, expected at most {_MAX_INFO_BYTES}; this is no bundle of ours")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if isinstance(error, ValueError) else "nested too deeply"
        raise BundleError(f"{where}: not valid JSON ({reason}); export the model again") from None
    version = value.get("format_version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise BundleError(
            f"{where}: format_version is {str(version)[:80]}, expected {FORMAT_VERSION}; this is no bundle"
        )
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{where}: format_version {version} is newer than {FORMAT_VERSION}, the newest read here; "
            "upgrade mindspeed-ms or export the model again with this version"
        )
    if version < FORMAT_VERSION:
        raise BundleError(
            f"{where}: format_version {version} is older than {FORMAT_VERSION}; export the model again from its source"
        )
    try:
        info = BundleInfo.parse(value, where)
    except ConfigError as error:
        raise BundleError(str(error)) from None
    _check_files(info, where)
    return info


def _check_files(info: BundleInfo, where: str) -> None:
    for name, entry in info.files.items():
        if name not in FILES:
            raise BundleError(f"{where}: files names {name[:200]!r}, expected only {', '.join(FILES)}")
        limit = FILES[name]
        if limit is not None and entry.size > limit:
            raise BundleError(f"{where}: files: {name} of {entry.size} bytes, expected at most {limit}")
    missing = [name for name in FILES if name not in info.files and name != TEMPLATE_FILE]
    if missing:
        raise BundleError(f"{where}: files lacks {missing[0]}; export the model again")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
