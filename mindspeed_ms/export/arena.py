"""The packed arena of a bundle: made once, kept in the user's cache, mapped by every process."""

import hashlib
import json
import mmap
import os
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import BundleError, WeightsError
from mindspeed_ms.export.layout import INV_FREQ, arena_layout
from mindspeed_ms.export.schema import Quantization
from mindspeed_ms.ops.native.pack import LAYOUT_VERSION, ArenaLayout, aligned_empty
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.paths import cache_dir, partial_path, remove_abandoned
from mindspeed_ms.weights.safetensors_file import SafetensorsFile

# The file is the arena, then this: magic, layout version, bytes of the arena, xxh3 of it.
_TRAILER = struct.Struct("<8sIQ16s")
_MAGIC = b"MSMSARNA"
_CHUNK = 1 << 20


class BundleWeights:
    """The weights of a bundle, each read into memory of its own when asked for: nothing stays mapped.

    Raises BundleError when the file lacks a weight, holds another, or one has another type or shape.
    """

    def __init__(self, path: Path, spec: DecoderSpec, quantization: Quantization) -> None:
        self.path, self.quantization = path, quantization
        try:
            self.tensors = SafetensorsFile(path).tensors
        except WeightsError as error:
            raise BundleError(str(error)) from None
        self.shapes = spec.parameter_shapes()
        wanted = {part for name in self.shapes for part in self._parts(name)}
        if unknown := sorted(self.tensors.keys() ^ wanted):
            state = "is missing" if unknown[0] in wanted else "is not a part of the model"
            raise BundleError(f"{path}: tensor {unknown[0][:200]!r} {state}; export the model again")

    def get(self, name: str) -> "np.ndarray | QuantTensor":
        form, shape = self.quantization.weights.get(name), self.shapes[name]
        if form is None:
            value = self._read(name)
            if value.dtype not in (np.float32, np.float16) or value.shape != shape:
                raise BundleError(
                    f"{self.path}: {name} is {value.dtype} {list(value.shape)}, "
                    f"expected float32 or float16 {list(shape)}"
                )
            return value
        parts = [self._read(part) for part in self._parts(name)]
        try:
            mins = parts[2] if form.asym else None
            return QuantTensor(parts[0], parts[1], mins, form.bits, form.group, (shape[0], shape[1]))
        except WeightsError as error:
            raise BundleError(f"{self.path}: {name}: {error}") from None

    def items(self) -> "Iterator[tuple[str, np.ndarray | QuantTensor]]":
        for name in self.shapes:
            yield name, self.get(name)

    def _parts(self, name: str) -> list[str]:
        form = self.quantization.weights.get(name)
        if form is None:
            return [name]
        stem = name.removesuffix("weight")
        return [stem + "qweight", stem + "scales"] + ([stem + "mins"] if form.asym else [])

    def _read(self, name: str) -> np.ndarray:
        dtypes = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8}
        dtype, shape, start, stop = self.tensors[name]
        if dtype not in dtypes:
            raise BundleError(f"{self.path}: {name} has type {dtype}, expected one of {', '.join(dtypes)}")
        kind = np.dtype(dtypes[dtype])
        value = np.fromfile(self.path, kind, (stop - start) // kind.itemsize, offset=start)
        if value.nbytes != stop - start:
            raise BundleError(f"{self.path}: ends inside {name}; copy or export the bundle again")
        return value.reshape(shape)


def load_arena(weights_path: Path, weights_sha256: str, spec: DecoderSpec, quantization: Quantization) -> np.ndarray:
    """The arena of a bundle's weights: uint8 [A], a private map of the cached file, or memory when there is no cache.

    Raises BundleError when the weights do not fit the bundle's description.
    """
    layout = arena_layout(spec, quantization)
    facts = [weights_sha256, LAYOUT_VERSION, spec.model_dump(mode="json"), quantization.model_dump(mode="json")]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir() / "arenas" / f"{key}.arena"
    arena = _map(path, layout.nbytes)
    if arena is not None:
        return arena
    weights = BundleWeights(weights_path, spec, quantization)
    try:
        _write(path, spec, layout, weights)
        arena = _map(path, layout.nbytes)
    except OSError as error:
        warnings.warn(
            f"{path.parent}: cannot keep the packed weights here ({error.strerror}); they are packed again at every "
            "start and not shared between processes. Set MINDSPEED_MS_CACHE to a folder you can write to",
            stacklevel=2,
        )
    if arena is None:
        arena, position = aligned_empty(layout.nbytes), 0
        for piece in _pieces(spec, layout, weights):
            arena[position : position + piece.size] = piece
            position += piece.size
    return arena


def _pieces(spec: DecoderSpec, layout: ArenaLayout, weights: BundleWeights) -> Iterator[np.ndarray]:
    """The arena weight by weight, in its order; each piece is uint8 and a multiple of 64 bytes."""
    yield _packed(layout, INV_FREQ, spec.inv_freq())
    for name, value in weights.items():
        yield _packed(layout, name, value)


def _packed(layout: ArenaLayout, name: str, value: "np.ndarray | QuantTensor") -> np.ndarray:
    alone = ArenaLayout()
    if name in layout.vectors:
        alone.add_vector(name, layout.vectors[name][1])
    else:
        alone.add_matrix(name, *layout.matrices[name].as_list()[1:])
    piece = aligned_empty(alone.nbytes)
    alone.write(piece, name, value)
    return piece


def _write(path: Path, spec: DecoderSpec, layout: ArenaLayout, weights: BundleWeights) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = xxhash.xxh3_128()
    remove_abandoned(path)
    temporary = partial_path(path)
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            for piece in _pieces(spec, layout, weights):
                file.write(piece.data)
                digest.update(piece.data)
            file.write(_TRAILER.pack(_MAGIC, LAYOUT_VERSION, layout.nbytes, digest.digest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _map(path: Path, nbytes: int) -> np.ndarray | None:
    """Maps a cached arena if it is whole; None when it is absent, of another size, or damaged."""
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != nbytes + _TRAILER.size:
                return None
            digest, left, buffer = xxhash.xxh3_128(), nbytes, bytearray(_CHUNK)
            while left:  # read, not mapped: pages only hashed must not count as this process's memory
                count = file.readinto(memoryview(buffer)[: min(left, _CHUNK)])
                if not count:
                    return None
                digest.update(memoryview(buffer)[:count])
                left -= count
            if file.read() != _TRAILER.pack(_MAGIC, LAYOUT_VERSION, nbytes, digest.digest()):
                return None
            # A private map: MindSpore wants memory it may write to, and processes still share the pages.
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8, nbytes)
    except (OSError, ValueError):
        return None


def check_size(spec: DecoderSpec, quantization: Quantization, weights_size: int) -> None:
    """Refuses a description whose weights could not come from a file of this size, before any memory is asked for.

    Raises BundleError.
    """
    parameters = spec.num_hidden_layers * 9 + 2
    if parameters * 2 > weights_size:
        raise BundleError(f"spec: {spec.num_hidden_layers} layers cannot come from {weights_size} bytes of weights")
    smallest = 0
    for name, shape in spec.parameter_shapes().items():
        form = quantization.weights.get(name)
        bits = 16 if form is None else form.bits
        smallest += int(np.prod(shape, dtype=object)) * bits // 8
    if smallest > weights_size:
        raise BundleError(f"spec: the model needs at least {smallest} bytes of weights, the bundle has {weights_size}")
