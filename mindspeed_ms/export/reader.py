"""Opening a bundle. Nothing of a model's Cells is imported, and nothing in the bundle is believed unchecked."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.arena import check_size, load_arena
from mindspeed_ms.export.files import check_file, read_file
from mindspeed_ms.export.program import ENTRY_POINTS, Program, decoder_program
from mindspeed_ms.export.schema import (
    BLOCK_SIZE,
    FILES,
    INFO_FILE,
    MINDIR_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    BundleInfo,
    parse_info,
)
from mindspeed_ms.weights.source import TokenizerFiles


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its description, its graph as bytes (not yet believed), its tokenizer, its arena on demand."""

    path: Path
    info: BundleInfo
    mindir: bytes = field(repr=False)
    tokenizer: TokenizerFiles = field(repr=False)

    @property
    def spec(self) -> DecoderSpec:
        return self.info.spec

    @property
    def mindir_path(self) -> Path:
        return self.path / MINDIR_FILE

    @property
    def kv_dtype(self) -> str:
        return self.info.kv_dtype

    @property
    def block_size(self) -> int:
        return self.info.block_size

    @property
    def generation(self) -> dict[str, Any]:
        return self.info.generation.model_dump(exclude_none=True)

    @cached_property
    def program(self) -> Program:
        """What the graph must be, from the description alone."""
        return decoder_program(self.spec, self.info.quantization, self.kv_dtype, self.block_size)

    def arena(self) -> np.ndarray:
        """The packed weights: uint8 [A], shared with other processes through the user's cache."""
        info = self.info
        return load_arena(self.path / WEIGHTS_FILE, info.files[WEIGHTS_FILE].sha256, info.spec, info.quantization)


def is_bundle(path: str | Path) -> bool:
    """Whether a path looks like a bundle: a directory with a bundle.json."""
    return (Path(path) / INFO_FILE).is_file()


def open_bundle(path: str | Path, graph: bool = True) -> Bundle:
    """Reads and checks a bundle; `graph=False` leaves the graph unread, to remake it.

    Raises BundleError naming the file or field.
    """
    path = Path(path)
    if not path.is_dir():
        raise BundleError(f"{path}: no such directory, expected a bundle made by `mindspeed-ms export`")
    info = parse_info(read_file(path, INFO_FILE, 8 << 20), path)
    _check(info, path)
    check_file(path, WEIGHTS_FILE, info.files[WEIGHTS_FILE])
    mindir = _small(path, info, MINDIR_FILE) if graph else b""
    template = _small(path, info, TEMPLATE_FILE) if TEMPLATE_FILE in info.files else None
    try:
        text = None if template is None else template.decode("utf-8")
    except UnicodeDecodeError:
        raise BundleError(f"{path / TEMPLATE_FILE}: is not UTF-8; export the model again") from None
    tokenizer = TokenizerFiles(_small(path, info, TOKENIZER_FILE), text, **info.tokenizer.model_dump())
    return Bundle(path, info, mindir, tokenizer)


def _small(path: Path, info: BundleInfo, name: str) -> bytes:
    return read_file(path, name, FILES[name] or 0, info.files[name])


def _check(info: BundleInfo, path: Path) -> None:
    """What the fields say of one another."""
    where = f"{path}: {INFO_FILE}"
    try:
        check_size(info.spec, info.quantization, info.files[WEIGHTS_FILE].size)
        program = decoder_program(info.spec, info.quantization, info.kv_dtype, BLOCK_SIZE)
    except BundleError as error:
        raise BundleError(f"{where}: {error}") from None
    if info.signature != program.signature():
        raise BundleError(f"{where}: signature differs from what spec gives; run `mindspeed-ms export --refresh` on it")
    if foreign := sorted(set(info.entry_points) - set(ENTRY_POINTS)):
        raise BundleError(
            f"{where}: entry_points names {foreign[0][:80]!r}, expected only {', '.join(ENTRY_POINTS)}; "
            "upgrade mindspeed-ms or run `mindspeed-ms export --refresh` on the bundle"
        )
    for name in ("bos_token_id", "pad_token_id", "eos_token_ids"):
        value = getattr(info.tokenizer, name)
        for token in value if isinstance(value, list) else [] if value is None else [value]:
            if token >= info.spec.vocab_size:
                raise BundleError(f"{where}: tokenizer.{name} {token} is not below vocab_size {info.spec.vocab_size}")
