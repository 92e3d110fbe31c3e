"""The native operators inside MindSpore: dynamic shapes, agreement with the reference bodies, MINDIR, exceptions."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from ops_blocks import EPS, Layer
from ops_oracle import close, ragged

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, nn  # noqa: E402

from mindspeed_ms.ops.attention import Attention  # noqa: E402
from mindspeed_ms.ops.attention_block import AttentionBlock, AttentionShape, AttentionWeights  # noqa: E402
from mindspeed_ms.ops.embedding import Embedding  # noqa: E402
from mindspeed_ms.ops.linear import Linear  # noqa: E402
from mindspeed_ms.ops.lm_head import HeadWeights, LmHead  # noqa: E402
from mindspeed_ms.ops.mlp_block import MlpBlock, MlpWeights  # noqa: E402
from mindspeed_ms.ops.native.pack import pack  # noqa: E402
from mindspeed_ms.ops.native.quant import quantize_rtn  # noqa: E402
from mindspeed_ms.ops.paged_attention import PagedAttention  # noqa: E402
from mindspeed_ms.ops.rms_norm import RMSNorm  # noqa: E402
from mindspeed_ms.ops.rotary import RotaryEmbedding, RotaryTable  # noqa: E402
from mindspeed_ms.ops.swiglu import SwiGLU  # noqa: E402

pytestmark = pytest.mark.usefixtures("graph_mode")
ROOT = Path(__file__).parents[2]
F32, F16, I32, U8 = ms.float32, ms.float16, ms.int32, ms.uint8
INDEX = [(I32, None), (I32, None), (I32, None), (I32, None, None)]  # positions, slots, seq_starts, block_tables
FORMS = [(None, False), ((8, 0, False), True), ((4, 32, True), True)]


def tensors(arrays):
    return [Tensor.from_numpy(np.ascontiguousarray(x)) for x in arrays]


def signature(*inputs):
    return [Tensor(shape=list(shape), dtype=dtype) for dtype, *shape in inputs]


def dynamic(cell, *inputs):
    cell.set_inputs(*signature(*inputs))
    return lambda *arrays: cell(*tensors(arrays)).asnumpy()


@pytest.fixture
def rng():
    return np.random.default_rng(4)


@pytest.fixture
def both(monkeypatch):
    """Builds a cell twice, with its native and with its reference body."""

    def build(make, *inputs):
        bodies = []
        for word in ("native", "reference"):
            monkeypatch.setenv("MINDSPEED_MS_KERNELS", word)
            bodies.append(dynamic(make(), *inputs))
        return bodies

    return build


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_norm_activation_and_rotation(rng, both):
    def norm():
        cell = RMSNorm(40, EPS)
        cell.weight.set_data(Tensor(np.linspace(0.5, 2, 40, dtype=np.float32)))
        return cell

    arena, layout = pack({"f": 10000.0 ** -np.linspace(0, 1, 20).astype(np.float32)})
    cells = [
        (both(norm, (F32, None, 40)), lambda t: [normal(rng, t, 40)]),
        (both(SwiGLU, (F32, None, None), (F32, None, None)), lambda t: [normal(rng, t, 9), normal(rng, t, 9)]),
        (
            both(RotaryEmbedding, (F32, None, 3, 40), (F32, None, 40)),
            lambda t: [normal(rng, t, 3, 40), normal(rng, t, 40)],
        ),
        (
            both(lambda: RotaryTable(layout.vectors["f"][0], 40, arena), (I32, None), (U8, None)),
            lambda t: [rng.integers(0, 90, t).astype(np.int32), arena],
        ),
    ]
    for (native, reference), inputs in cells:
        for t in (1, 7, 3):
            arrays = inputs(t)
            close(native(*arrays), reference(*arrays))


def test_attention(rng, both):
    native, reference = both(lambda: Attention(0.2), *[(F32, None, None, n, 40) for n in (6, 2, 2)])
    for b, t, s in ((1, 1, 9), (2, 5, 5)):
        arrays = normal(rng, b, t, 6, 40), normal(rng, b, s, 2, 40), normal(rng, b, s, 2, 40)
        close(native(*arrays), reference(*arrays))


@pytest.mark.parametrize("half", [False, True], ids=["f32", "f16"])
def test_paged_attention(rng, both, half):
    dtype = np.float16 if half else np.float32
    cache_type = (F16 if half else F32, 2, None, 2, 2, 48 * 16)
    shapes = [(F32, None, n, 40) for n in (6, 2, 2)]
    native, reference = both(lambda: PagedAttention(1, 0.2, 2, 40), *shapes, cache_type, *INDEX)
    for new in ([1], [4, 0, 17]):
        batch = ragged([0] * len(new), new, 16, rng)
        arrays = [normal(rng, sum(new), n, 40) for n in (6, 2, 2)]
        caches = [np.zeros((2, batch.blocks, 2, 2, 48 * 16), dtype) for _ in "nr"]
        close(native(*arrays, caches[0], *batch.index), reference(*arrays, caches[1], *batch.index))
        np.testing.assert_array_equal(*caches)
        assert caches[0].any(), "written in place, into the caller's memory"


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
def test_attention_block(rng, both, scheme, integer):
    layer = Layer(rng, 64, 48, 4, 2, 32, scheme, integer, biased=True, qk_norm=True)
    a, arena = layer.attention_attrs(), layer.arena
    shape = AttentionShape(1, EPS, layer.scale, 4, 2, 32)
    weights = AttentionWeights(a["norm"], a["wq"], a["wk"], a["wv"], a["wo"], a["biases"], a["qk_norm"])
    native, reference = both(
        lambda: AttentionBlock(shape, weights, arena),
        (F32, None, 64), (F32, None, 32), (U8, None), (F32, 2, None, 2, 2, 32 * 16), *INDEX,
    )  # fmt: skip
    for past, new in (([0], [1]), ([9, 0], [1, 20])):
        batch, x, table, _, _, cache = layer.step(rng, past, new)
        expected = reference(x, table, arena, cache.copy(), *batch.index)
        close(native(x, table, arena, cache, *batch.index), expected, 2e-3 if integer else 1e-5)


@pytest.mark.parametrize(("scheme", "integer"), FORMS)
def test_mlp_block(rng, both, scheme, integer):
    layer = Layer(rng, 64, 48, 4, 2, 32, scheme, integer, biased=True)
    m, arena = layer.mlp_attrs(), layer.arena
    weights = MlpWeights(m["norm"], m["gate"], m["up"], m["down"], m["biases"])
    native, reference = both(lambda: MlpBlock(EPS, weights, arena), (F32, None, 64), (U8, None))
    for t in (1, 20):
        x = normal(rng, t, 64)
        close(native(x, arena), reference(x, arena), 2e-3 if integer else 1e-5)


def test_linear_embedding_and_head(rng, both):
    arena, layout = pack(
        {"w": quantize_rtn(normal(rng, 50, 64), 4, 64, False), "b": normal(rng, 50), "n": normal(rng, 64)}, act=1
    )
    weight, at = layout.matrices["w"].as_list(), layout.vectors
    x_type, arena_type, head = (F32, None, 64), (U8, None), HeadWeights(at["n"][0], weight, at["b"][0])
    linear = both(lambda: Linear(weight, at["b"][0], arena), x_type, arena_type)
    embedding = both(lambda: Embedding(weight, arena), (I32, None), arena_type)
    lm_head = both(lambda: LmHead(EPS, head, arena), x_type, (I32, None), arena_type)
    for t in (1, 20):
        x, ids, rows = normal(rng, t, 64), rng.integers(0, 50, t).astype(np.int32), np.array([t - 1, 0], np.int32)
        close(linear[0](x, arena), linear[1](x, arena))
        close(embedding[0](ids, arena), embedding[1](ids, arena), 1e-6)
        close(lm_head[0](x, rows, arena), lm_head[1](x, rows, arena), 2e-3)


class Step(nn.Cell):
    """A whole decoder step of one layer, as a bundle's graph has it."""

    def __init__(self, layer):
        super().__init__()
        a, m = layer.attention_attrs(), layer.mlp_attrs()
        self.embedding = Embedding(a["wq"])
        self.table = RotaryTable(layer.layout.vectors["f"][0], layer.dim)
        shape = AttentionShape(1, EPS, layer.scale, layer.heads, layer.kv_heads, layer.dim)
        self.attention = AttentionBlock(shape, AttentionWeights(a["norm"], a["wq"], a["wk"], a["wv"], a["wo"]))
        self.mlp = MlpBlock(EPS, MlpWeights(m["norm"], m["gate"], m["up"], m["down"]))
        self.head = LmHead(EPS, HeadWeights(a["norm"], a["wq"]))

    def construct(self, ids, positions, slots, seq_starts, block_tables, rows, arena, cache):
        x = self.embedding(ids, arena)
        x = self.attention(x, self.table(positions, arena), arena, cache, positions, slots, seq_starts, block_tables)
        return self.head(self.mlp(x, arena), rows, arena)


STEP = [(I32, None), *INDEX, (I32, None), (U8, None), (F32, 2, None, 2, 2, 32 * 16)]


@pytest.fixture
def step(rng, monkeypatch):
    """(cell, layer, run-on-a-fresh-cache): a graph with prompts and single tokens of several sequences."""
    monkeypatch.setenv("MINDSPEED_MS_KERNELS", "native")
    layer = Layer(rng, 64, 48, 4, 2, 32, (4, 32, True), True)
    layer.arena, layer.layout = pack(
        {**layer.w, **layer.n, "f": (10000.0 ** (-np.arange(0, 32, 2) / 32)).astype(np.float32)}, act=1
    )
    return Step(layer), layer


def generate(graph, layer, rng):
    """Two prompts and some tokens after them, on one cache: the logits of each step."""
    cache, tables = np.zeros((2, 12, 2, 2, 32 * 16), np.float32), rng.permutation(12).reshape(2, 6).astype(np.int32)
    ids, done, out = rng.integers(0, 128, (2, 60)).astype(np.int32), [0, 0], []
    keep = tensors([layer.arena, cache])
    for new in ([20, 3], [1, 9], [1, 1], [0, 1]):
        positions = [np.arange(d, d + n, dtype=np.int32) for d, n in zip(done, new, strict=True)]
        slots = [tables[i][p // 16] * 16 + p % 16 for i, p in enumerate(positions)]
        tokens = [ids[i][p] for i, p in enumerate(positions)]
        starts = np.cumsum([0, *new]).astype(np.int32)
        arrays = [
            *map(np.concatenate, (tokens, positions, slots)),
            starts,
            tables,
            np.arange(starts[-1], dtype=np.int32),
        ]
        out.append(graph(*tensors(arrays), *keep).asnumpy())
        done = [d + n for d, n in zip(done, new, strict=True)]
    return out


def test_a_mindir_gives_what_the_cell_gives(step, tmp_path):
    cell, layer = step
    cell.set_inputs(*signature(*STEP))
    direct = generate(cell, layer, np.random.default_rng(8))
    path = str(tmp_path / "step.mindir")
    ms.export(cell, *signature(*STEP), file_name=path, file_format="MINDIR")
    loaded = generate(nn.GraphCell(ms.load(path)), layer, np.random.default_rng(8))
    for a, b in zip(loaded, direct, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(x) for x in direct] == [23, 10, 2, 1]


def in_new_process(code, **env):
    """Runs a script of its own, where a crash would not take the tests along; its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-800:]}"
    return done.stdout.strip().splitlines()[-1]


REFUSED = """
    import mindspore as ms, numpy as np
    from mindspeed_ms.ops.embedding import Embedding
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    cell, arena = Embedding([0, 16, 16, 0, 0, 0, 0]), ms.Tensor(np.zeros(1024, np.uint8))
    assert cell(ms.Tensor([0, 15], ms.int32), arena).shape == (2, 16)
    try:
        cell(ms.Tensor([0, 16], ms.int32), arena).asnumpy()
    except RuntimeError as error:
        print(" ".join(str(error).split()))
"""


def test_a_refusal_is_an_exception_that_names_function_and_code():
    """In a process of its own: after it MindSpore runs no further graph, so a server checks its batches first."""
    assert "function(Embedding) is 5" in in_new_process(REFUSED)


WRONG_RANKS = """
    import mindspore as ms, numpy as np
    from mindspeed_ms.ops.attention import Attention
    from mindspeed_ms.ops.embedding import Embedding
    from mindspeed_ms.ops.linear import Linear
    from mindspeed_ms.ops.rotary import RotaryTable
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    arena = ms.Tensor(np.zeros(8192, np.uint8))
    weight = [0, 16, 16, 0, 0, 0, 0]
    scalar, vector = ms.Tensor(3, ms.int32), ms.Tensor(np.ones(16, np.float32))
    calls = [
        (Embedding(weight), (scalar, arena)),
        (RotaryTable(0, 32), (scalar, arena)),
        (Linear(weight), (ms.Tensor(1.0, ms.float32), arena)),
        (Linear(weight), (vector, arena)),
        (Attention(1.0), (vector, vector, vector)),
    ]
    refused = 0
    for cell, inputs in calls:
        try:
            cell(*inputs).asnumpy()
        except (RuntimeError, ValueError, TypeError):
            refused += 1
    print("refused", refused, "of", len(calls))
"""


def test_inputs_of_the_wrong_rank_are_exceptions():
    assert in_new_process(WRONG_RANKS) == "refused 5 of 5"


ASK_ISA = """
    import ctypes
    from mindspeed_ms.ops.native.build import library_path
    library = ctypes.CDLL(str(library_path()))
    library.MsmsIsa.restype = ctypes.c_char_p
    print(library.MsmsIsa().decode(), library.MsmsThreads())
"""


def test_the_environment_chooses_instruction_set_and_threads(native):
    for isa in ("portable", "avx2", "avx512"):
        before = native.isa()
        available = native.set_isa(isa)
        native.set_isa(before)
        if available:
            assert in_new_process(ASK_ISA, MINDSPEED_MS_ISA=isa, MINDSPEED_MS_THREADS="3") == f"{isa} 3"
