"""Making a bundle from an opened model, and remaking the graph of one. Reading is in reader.py."""

import os
import tempfile
from pathlib import Path
from typing import Any

from mindspeed_ms.compress.store import (
    SafetensorsWriter,
    atomic_directory,
    describe_os_error,
    write_json,
)
from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.arena import BundleWeights
from mindspeed_ms.export.files import describe_file
from mindspeed_ms.export.program import ENTRY_POINTS, Program, decoder_program
from mindspeed_ms.export.reader import Bundle, open_bundle
from mindspeed_ms.export.schema import (
    BLOCK_SIZE,
    FILES,
    FORMAT_VERSION,
    INFO_FILE,
    MINDIR_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    BundleInfo,
    GenerationInfo,
    Quantization,
    TokenizerInfo,
)
from mindspeed_ms.ops.native.build import ABI
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.weights.source import ModelSource

__all__ = ["Bundle", "BundleInfo", "export_bundle", "open_bundle", "refresh_bundle"]


def export_bundle(source: "ModelSource | str | Path", out: str | Path) -> Bundle:
    """Writes a model as a bundle: one that is opened, or a path (Hugging Face or quantized directory, GGUF file).

    Quantized tensors are carried as they are, others stay floats. Raises WeightsError when `out` exists or cannot be
    written, BuildError without a kernel library, and what opening the model raises.
    """
    if not isinstance(source, ModelSource):
        from mindspeed_ms.weights import open_model

        source = open_model(source)
    with atomic_directory(out, _estimate(source)) as folder:
        files = source.tokenizer
        (folder / TOKENIZER_FILE).write_bytes(files.tokenizer_json)
        if files.chat_template is not None:
            (folder / TEMPLATE_FILE).write_text(files.chat_template, encoding="utf-8")
        quantization = _write_weights(source, folder / WEIGHTS_FILE)
        kv_dtype = "float16" if quantization.weights else "float32"
        program = decoder_program(source.spec, quantization, kv_dtype, BLOCK_SIZE)
        (folder / MINDIR_FILE).write_bytes(_export_mindir(program))
        described = {name: describe_file(folder / name) for name in FILES if (folder / name).exists()}
        tokenizer = {name: getattr(files, name) for name in TokenizerInfo.model_fields}
        info = BundleInfo.parse(
            {
                **_runtime_facts(),
                "kv_dtype": kv_dtype,
                "block_size": BLOCK_SIZE,
                "spec": source.spec,
                "quantization": quantization,
                "signature": program.signature(),
                "files": described,
                "tokenizer": TokenizerInfo.parse(tokenizer, f"{source.path}: tokenizer"),
                "generation": GenerationInfo.parse(source.generation, f"{source.path}: generation settings"),
                "source": {"kind": source.kind, "name": Path(os.path.abspath(source.path)).name},
            },
            f"{source.path}: {INFO_FILE}",
        )
        write_json(folder / INFO_FILE, info.model_dump(mode="json"))
    return open_bundle(out)


def refresh_bundle(path: str | Path) -> Bundle:
    """Remakes graph.mindir and bundle.json from the bundle's own weights, for the MindSpore and the kernels in use.

    The old graph is not read. Raises BundleError when the rest of the bundle is damaged or cannot be written.
    """
    bundle = open_bundle(path, graph=False)
    info = bundle.info
    BundleWeights(bundle.path / WEIGHTS_FILE, info.spec, info.quantization)
    program = bundle.program
    data = _export_mindir(program)
    try:
        _replace(bundle.path / MINDIR_FILE, data)
        files = {**info.files, MINDIR_FILE: describe_file(bundle.path / MINDIR_FILE)}
        updated = info.model_copy(update={**_runtime_facts(), "files": files, "signature": program.signature()})
        _replace(bundle.path / INFO_FILE, updated.model_dump_json(indent=2).encode() + b"\n")
    except OSError as error:
        raise BundleError(f"{bundle.path}: cannot be refreshed: {describe_os_error(error)}") from None
    return open_bundle(path)


def _write_weights(source: ModelSource, path: Path) -> Quantization:
    found: dict[str, dict[str, Any]] = {}
    names = source.names()
    with SafetensorsWriter(path, len(names)) as writer:
        for name in names:
            value = source.get(name)
            writer.add(name, value)
            if isinstance(value, QuantTensor):
                found[name] = {"bits": value.bits, "group": value.group, "asym": int(value.asymmetric)}
    bits = {form["bits"] for form in found.values()}
    scheme = "w4a8" if 4 in bits else "w8a8" if bits else "fp32"  # a GGUF names no scheme: int8 activations
    if source.scheme is not None:
        scheme = str(source.scheme["scheme"])
    act = int(scheme.endswith("a8"))
    return Quantization.parse(
        {"scheme": scheme, "weights": {name: {**form, "act": act} for name, form in found.items()}},
        f"{source.path}: quantization",
    )


def _estimate(source: ModelSource) -> int:
    """Bytes the bundle will take, at most: floats as float32, and never much more than twice the source."""
    floats = 4 * sum(_count(shape) for shape in source.spec.parameter_shapes().values())
    path = Path(source.path)
    stored = path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.iterdir() if p.is_file())
    return min(floats, 2 * stored) + (16 << 20)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _export_mindir(program: Program) -> bytes:
    from mindspeed_ms.export.graph import export_mindir

    return export_mindir(program)


def _runtime_facts() -> dict[str, Any]:
    """The part of bundle.json that `refresh` renews."""
    import mindspore

    return {
        "format_version": FORMAT_VERSION,
        "mindspore": mindspore.__version__,
        "kernel_abi": ABI,
        "entry_points": list(ENTRY_POINTS),
    }


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
