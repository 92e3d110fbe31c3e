"""The runner of CPU bundles: one compiled graph for every ragged batch, weights and cache handed in without a copy."""

import re

import mindspore as ms
import numpy as np
from mindspore import nn

from mindspeed_ms.errors import BundleError, ConfigError, KernelError
from mindspeed_ms.export.graph import dynamic_inputs
from mindspeed_ms.export.mindir import write_runnable
from mindspeed_ms.export.program import cache_shape
from mindspeed_ms.export.reader import Bundle
from mindspeed_ms.ops.native import build
from mindspeed_ms.ops.native.codes import CODES
from mindspeed_ms.serving.engine.batch import Batch
from mindspeed_ms.serving.engine.checks import check_batch


class RaggedRunner:
    """Runs a bundle's graph; the paged cache and the weights are buffers it owns.

    kv_tokens: positions the cache holds, rounded up to whole blocks (None: one sequence of the model's full length);
    memory is taken only as blocks are first written. threads: of the kernels (None: as the library decides).
    Raises BundleError when the graph is not the one the bundle describes, BuildError without a kernel library.
    """

    def __init__(self, bundle: Bundle, *, kv_tokens: int | None = 8192, threads: int | None = None) -> None:
        spec = bundle.spec
        wanted = spec.max_position_embeddings if kv_tokens is None else kv_tokens
        if wanted < 1 or (threads is not None and threads < 1):
            raise ConfigError(f"kv_tokens {kv_tokens}, threads {threads}: expected positive numbers or None")
        self.block_size = bundle.block_size
        self.num_blocks = -(-wanted // self.block_size)
        self.vocab_size = spec.vocab_size
        self.max_context = spec.max_position_embeddings
        library = build.library()
        if threads is not None:
            library.MsmsSetThreads(threads)
        _check_versions(bundle)
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device("CPU")
        self._weights = bundle.arena()
        # numpy's zeros are not touched yet, so blocks never used cost no memory
        self._kv = np.zeros(cache_shape(spec, self.num_blocks, self.block_size), bundle.kv_dtype)
        self._arena, self._cache = ms.Tensor.from_numpy(self._weights), ms.Tensor.from_numpy(self._kv)
        self._graph = _load_graph(bundle)

    def step(self, batch: Batch) -> np.ndarray:
        """Writes the tokens' keys and values into the cache; returns the wanted rows' logits, float32 [R, V].

        Raises KernelError when the batch contradicts itself or the cache.
        """
        check_batch(batch, self.vocab_size, self.num_blocks, self.block_size)
        if not len(batch.logit_rows):
            # an empty tensor has no memory to hand to a kernel: ask for one row and drop it
            self._run(batch, np.zeros(1, np.int32))
            return np.empty((0, self.vocab_size), np.float32)
        return self._run(batch, batch.logit_rows)

    def _run(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        inputs = [
            ms.Tensor.from_numpy(np.ascontiguousarray(array, np.int32))
            for array in (
                batch.token_ids,
                batch.positions,
                batch.slot_mapping,
                batch.seq_starts,
                batch.block_tables,
                rows,
            )
        ]
        try:
            return self._graph(*inputs, self._arena, self._cache).asnumpy()
        except RuntimeError as error:
            raise _kernel_error(error) from error


def _check_versions(bundle: Bundle) -> None:
    if bundle.info.kernel_abi != build.ABI:
        raise BundleError(
            f"{bundle.path}: kernel_abi {bundle.info.kernel_abi}, the kernels here are {build.ABI}; "
            "run `mindspeed-ms export --refresh` on the bundle"
        )


def _load_graph(bundle: Bundle) -> nn.GraphCell:
    path = write_runnable(bundle.mindir, bundle.program, build.library_path(), bundle.mindir_path)
    try:
        graph = nn.GraphCell(ms.load(str(path)))
    except (RuntimeError, ValueError) as error:
        # MindSpore reads MINDIRs of other versions when it can; a version is a reason only once loading failed.
        raise BundleError(
            f"{bundle.mindir_path}: made by MindSpore {bundle.info.mindspore}, {ms.__version__} cannot load it "
            f"({str(error).strip().splitlines()[0][:200]}); run `mindspeed-ms export --refresh` on the bundle"
        ) from error
    finally:
        path.unlink(missing_ok=True)
    # Without this every new number of tokens, sequences, blocks or rows would compile the graph again.
    graph.set_inputs(*dynamic_inputs(bundle.program))
    return graph


def _kernel_error(error: RuntimeError) -> KernelError:
    """The sentence behind a kernel's number. MindSpore refuses all later steps of the process, so this is final."""
    found = re.search(r"function\((\w+)\) is (\d+)", str(error))
    if found and int(found[2]) in CODES:
        return KernelError(f"{found[1]}: {CODES[int(found[2])]}; restart the process, MindSpore cannot run on")
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("-")]
    return KernelError(f"the graph failed: {' '.join(lines)[:300]}; restart the process, MindSpore cannot run on")
