"""A decoder program as a MindSpore Cell of custom operators only, and its export to a MINDIR without any path in it."""

import tempfile
from pathlib import Path

import mindspore as ms
from mindspore import nn

from mindspeed_ms.export.inputs import dynamic_inputs
from mindspeed_ms.export.mindir import parse_model, serialize, set_library
from mindspeed_ms.export.program import PLACEHOLDER, Program
from mindspeed_ms.ops.aot import aot_op
from mindspeed_ms.ops.native.build import library
from mindspeed_ms.ops.native.interrupt import keep_interrupt


class RaggedDecoder(nn.Cell):
    """token_ids[T], positions[T], slots[T], seq_starts[S+1], block_tables[S, M], rows[R] int32, arena[A] uint8,
    cache[L, B, 2, Hkv, D16*bs] -> logits [R, V] float32; the cache is written in place."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        operators = [
            aot_op(
                step.entry,
                # MindSpore remembers an operator's types by its name, once a process: both kinds of cache, or the
                # second model of a process is refused.
                [(name, "f32|f16" if name == "cache" else dtype) for name, _, dtype in step.inputs],
                [("y", "f32")],
                step.attrs,
                side_effect=step.side_effect,
                name=step.entry,  # which readers of a bundle expect
            )
            for step in program.steps
        ]
        self.embedding, self.rope_table, *layers, self.lm_head = operators
        self.attention, self.mlp = layers[0::2], layers[1::2]
        self.num_layers = len(self.mlp)

    def construct(self, token_ids, positions, slots, seq_starts, block_tables, rows, arena, cache):  # type: ignore[no-untyped-def]
        x = self.embedding(token_ids, arena)
        table = self.rope_table(positions, arena)
        for index in range(self.num_layers):
            x = self.attention[index](x, table, arena, cache, positions, slots, seq_starts, block_tables)
            x = self.mlp[index](x, arena)
        return self.lm_head(x, rows, arena)


def export_mindir(program: Program) -> bytes:
    """The MINDIR of a program, naming the kernel library by a placeholder. Raises BuildError without a library."""
    ms.set_context(mode=ms.GRAPH_MODE)
    network = RaggedDecoder(program)
    inputs = dynamic_inputs(program)
    network.set_inputs(*inputs)
    with tempfile.TemporaryDirectory(prefix="mindspeed-ms-") as folder:
        path = Path(folder) / "graph.mindir"
        with keep_interrupt(library()):
            ms.export(network, *inputs, file_name=str(path), file_format="MINDIR")
        model = parse_model(path.read_bytes(), path)
    set_library(model, PLACEHOLDER)
    return serialize(model)
