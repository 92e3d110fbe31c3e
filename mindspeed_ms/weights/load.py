"""A plain model Cell with the weights of a source in it."""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.models import build_model
from mindspeed_ms.ops.native.quant import QuantTensor
from mindspeed_ms.weights import open_model
from mindspeed_ms.weights.source import ModelSource


def load_model(source: ModelSource | str | Path) -> nn.Cell:
    """Build the network of `source` (opened, or a path) with its weights in float32, quantized ones dequantized.

    The Cell maps token ids [B, T] int32 to logits [B, T, V] float32. Raises WeightsError.
    """
    if not isinstance(source, ModelSource):
        source = open_model(source)
    model = build_model(source.spec)
    parameters: dict[str, Parameter] = dict(model.parameters_and_names())
    names = source.names()
    disputed = sorted(set(parameters) ^ set(names))
    if disputed:
        raise WeightsError(f"{source.path}: the network and the file disagree on {disputed[0]!r}")
    for name in names:  # one tensor at a time: never two copies of the model
        value = source.get(name)
        array = value.dequantize() if isinstance(value, QuantTensor) else value
        parameters[name].set_data(Tensor(np.ascontiguousarray(array, np.float32), ms.float32))
    model.set_train(False)
    return model
