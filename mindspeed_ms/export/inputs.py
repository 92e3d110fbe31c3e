"""What stands for a graph's inputs while it is compiled. Not in graph.py, so that a service loads no Cell of ours."""

import mindspore as ms

from mindspeed_ms.export.program import Program


def dynamic_inputs(program: Program) -> list[ms.Tensor]:
    """Tensors without data that stand for the graph's inputs when it is compiled, for any number of tokens."""
    return [ms.Tensor(shape=list(shape), dtype=getattr(ms, dtype)) for dtype, shape in program.inputs.values()]
