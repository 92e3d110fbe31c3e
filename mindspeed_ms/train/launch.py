"""Runs a compiled Cell: Ctrl-C stays what the program wants, and what a kernel refuses is one sentence."""

from typing import Any

from mindspore import nn

from mindspeed_ms.ops.aot import kernels_in_use
from mindspeed_ms.ops.native.build import library
from mindspeed_ms.ops.native.codes import kernel_error
from mindspeed_ms.ops.native.interrupt import keep_interrupt


def launch(graph: nn.Cell, *inputs: Any) -> Any:
    """Run a Cell of GRAPH_MODE. Raises DeviceLostError when a kernel refuses: MindSpore cannot run on after it."""
    try:
        if kernels_in_use() == "reference":
            return graph(*inputs)
        with keep_interrupt(library()):
            return graph(*inputs)
    except RuntimeError as error:
        raise kernel_error(error) from error
