"""The runner of CPU bundles: ragged batches of any shape, nothing padded, weights and cache handed in uncopied."""

import ctypes
import math
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.graph.api import _cell_graph_executor, _real_phase

from mindspeed_ms.errors import BundleError, ConfigError
from mindspeed_ms.export.inputs import dynamic_inputs
from mindspeed_ms.export.mindir import write_runnable
from mindspeed_ms.export.program import cache_shape
from mindspeed_ms.export.reader import Bundle
from mindspeed_ms.ops.native import build
from mindspeed_ms.ops.native.codes import kernel_error
from mindspeed_ms.ops.native.interrupt import keep_interrupt
from mindspeed_ms.serving.engine.batch import Batch
from mindspeed_ms.serving.engine.checks import check_batch

_MOST_THREADS = 1024


class RaggedRunner:
    """Runs a bundle's graph; the paged cache and the weights are buffers it owns.

    kv_tokens: positions the cache holds, rounded up to whole blocks (None: one sequence of the model's full length);
    memory is taken only as blocks are first written. threads: of the kernels (None: as the library decides).
    Raises BundleError when the graph is not the one the bundle describes, BuildError without a kernel library.
    """

    def __init__(self, bundle: Bundle, *, kv_tokens: int | None = 8192, threads: int | None = None) -> None:
        spec = bundle.spec
        wanted = spec.max_position_embeddings if kv_tokens is None else kv_tokens
        _check_range("kv_tokens", wanted, 2**31 - bundle.block_size)  # slots are int32
        if threads is not None:
            _check_range("threads", threads, _MOST_THREADS)
        self.block_size = bundle.block_size
        self.num_blocks = -(-wanted // self.block_size)
        self.vocab_size = spec.vocab_size
        self.max_context = spec.max_position_embeddings
        self._library = build.library()
        if threads is not None:
            self._library.MsmsSetThreads(threads)
        _check_versions(bundle)
        ms.set_context(mode=ms.GRAPH_MODE)
        # Once something has run in this process, MindSpore refuses even to hear the same again.
        if ms.get_context("device_target") != "CPU":
            ms.set_device("CPU")
        self._weights = bundle.arena()
        # numpy's zeros are not touched yet, so blocks never used cost no memory
        self._kv = _zeros(cache_shape(spec, self.num_blocks, self.block_size), bundle.kv_dtype)
        self._arena, self._cache = ms.Tensor.from_numpy(self._weights), ms.Tensor.from_numpy(self._kv)
        self._table_width = min(self.num_blocks, -(-self.max_context // self.block_size))
        # Inferring shapes costs a dynamic graph 0.5 ms a step. One sequence's next token, the shape where that
        # counts, has a graph of its own; every other batch, whatever its shape, runs on the dynamic one.
        general, single = _load_graphs(bundle, 2)
        general.set_inputs(*dynamic_inputs(bundle.program))
        first = self._tensors(_decode_one(self._table_width))
        self._any, self._one = (_Compiled(graph, first, self._library) for graph in (general, single))

    def step(self, batch: Batch) -> np.ndarray:
        """Writes the tokens' keys and values into the cache; returns the wanted rows' logits, float32 [R, V].

        Raises KernelError when the batch contradicts itself or the cache, DeviceLostError when no later step can run.
        """
        check_batch(batch, self.vocab_size, self.num_blocks, self.block_size)
        if not len(batch.logit_rows):
            # an empty tensor has no memory to hand to a kernel: ask for one row and drop it
            self._run(batch, np.zeros(1, np.int32))
            return np.empty((0, self.vocab_size), np.float32)
        return self._run(batch, batch.logit_rows)

    def _run(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        graph, tables = self._any, batch.block_tables
        if len(batch.token_ids) == len(tables) == len(rows) == 1 and tables.shape[1] <= self._table_width:
            graph, table = self._one, np.full((1, self._table_width), -1, np.int32)
            table[:, : tables.shape[1]] = tables
            batch = replace(batch, block_tables=table)
        try:
            with keep_interrupt(self._library):
                return graph(self._tensors(replace(batch, logit_rows=rows))).asnumpy()
        except RuntimeError as error:
            raise kernel_error(error) from error

    def _tensors(self, batch: Batch) -> tuple[ms.Tensor, ...]:
        """The graph's inputs in its order; nothing is copied."""
        arrays = [batch.token_ids, batch.positions, batch.slot_mapping]
        arrays += [batch.seq_starts, batch.block_tables, batch.logit_rows]
        small = (ms.Tensor.from_numpy(np.ascontiguousarray(array, np.int32)) for array in arrays)
        return (*small, self._arena, self._cache)


class _Compiled:
    """A graph compiled, by running it once, for the shapes of `inputs` or for those it was set to."""

    def __init__(self, graph: nn.GraphCell, inputs: tuple[ms.Tensor, ...], library: ctypes.CDLL) -> None:
        try:
            with keep_interrupt(library):
                graph(*inputs)
        except RuntimeError as error:
            raise kernel_error(error) from error
        self._graph, self._phase = graph, _real_phase(graph.phase, graph)

    def __call__(self, inputs: tuple[ms.Tensor, ...]) -> ms.Tensor:
        # The Cell's own call spends 0.3 ms on finding out, each time, that this graph is compiled.
        return _cell_graph_executor._graph_executor(inputs, self._phase)


def _decode_one(table_width: int) -> Batch:
    """Token 0 at position 0 of block 0, which is rewritten before anyone reads it."""
    zero, table = np.zeros(1, np.int32), np.full((1, table_width), -1, np.int32)
    table[0, 0] = 0
    return Batch(zero, zero, zero, np.array([0, 1], np.int32), table, zero)


def _check_range(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name}: {str(value)[:80]}: expected a whole number from 1 to {most}, or None")


def _zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    try:
        return np.zeros(shape, dtype)
    except (MemoryError, ValueError):  # ValueError: more than an address can name
        need = math.prod(shape) * np.dtype(dtype).itemsize / 1e9
        raise ConfigError(
            f"kv_tokens: a cache of {need:.0f} GB: expected one that fits this machine; give fewer"
        ) from None


def _check_versions(bundle: Bundle) -> None:
    if bundle.info.kernel_abi != build.ABI:
        raise BundleError(
            f"{bundle.path}: kernel_abi {bundle.info.kernel_abi}, the kernels here are {build.ABI}; "
            "run `mindspeed-ms export --refresh` on the bundle"
        )


def _load_graphs(bundle: Bundle, count: int) -> list[nn.GraphCell]:
    """The bundle's graph, believed once and loaded `count` times, for each may be compiled for other shapes."""
    path = write_runnable(bundle.mindir, bundle.program, build.library_path(), bundle.mindir_path)
    try:
        return [nn.GraphCell(ms.load(str(path))) for _ in range(count)]
    except (RuntimeError, ValueError) as error:
        # MindSpore reads MINDIRs of other versions when it can; a version is a reason only once loading failed.
        raise BundleError(
            f"{bundle.mindir_path}: made by MindSpore {bundle.info.mindspore}, {ms.__version__} cannot load it "
            f"({str(error).strip().splitlines()[0][:200]}); run `mindspeed-ms export --refresh` on the bundle"
        ) from error
    finally:
        path.unlink(missing_ok=True)
