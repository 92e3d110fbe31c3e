"""The graph of a plain network as MINDIR, without its weights: what a plan's strategy files are made from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.graph.api import _cell_graph_executor

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.models import build_model
from mindspeed_ms.ops.aot import VARIABLE


def network_graph(spec: DecoderSpec, batch: int, seq: int) -> bytes:
    """The network of a spec on ids and positions [batch, seq] int32 -> logits, as the bytes of a MINDIR.

    Its operators are MindSpore's own (the reference bodies, which run on any device), since a custom operator takes
    its split from no file. No weight is made: `mindspore.export` would write them all. Takes 1 s for 2 layers and
    a minute for 80, and does not depend on the sizes.
    """
    ms.set_context(mode=ms.GRAPH_MODE)
    with _reference_bodies():
        model = build_model(spec)
    model.set_train(False)
    ids, positions = (Tensor(np.zeros((batch, seq), np.int32)) for _ in range(2))
    graph, _ = _cell_graph_executor.compile(model, ids, positions, phase="export.mindir", do_convert=False)
    data: bytes = _cell_graph_executor._get_func_graph_proto(model, graph, "mind_ir")
    return data


@contextmanager
def _reference_bodies() -> Iterator[None]:
    """Has the operators that are built within take their reference bodies."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "reference"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
