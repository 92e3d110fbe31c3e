"""Mixed precision by MindSpore's levels, with our operators where its own lists name only MindSpore's Cells."""

import mindspore as ms
from mindspore import amp, nn

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.dense import Dense
from mindspeed_ms.ops.layer_norm import LayerNorm
from mindspeed_ms.ops.rms_norm import RMSNorm

LEVELS = ("O0", "O1", "O2", "O3")
_HALF = (Dense, nn.Dense)  # O1: matrix products alone are in float16
_SINGLE = (RMSNorm, LayerNorm)  # O2: all but these is


class SingleOutput(nn.Cell):
    """A Cell that computes in float16 between others that do not."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell.to_float(ms.float16)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return ms.ops.cast(self.cell(x), ms.float32)


def apply_amp(network: nn.Cell, level: str) -> nn.Cell:
    """The network at a level of `mindspore.amp.auto_mixed_precision`; its parameters stay float32 and keep their names.

    O0 changes nothing, O1 puts matrix products in float16, O2 everything but norms, O3 everything. On a
    CPU this rounds what an operator is given and gives; it computes in float32. Raises ConfigError.
    """
    if level not in LEVELS:
        raise ConfigError(f"amp: {level!r}: expected one of {', '.join(LEVELS)}")
    if level == "O1":
        _wrap(network)
    elif level == "O2":
        return amp.custom_mixed_precision(network, black_list=[*amp.get_black_list(), *_SINGLE])
    elif level == "O3":
        return amp.auto_mixed_precision(network, "O3")
    return network


def _wrap(cell: nn.Cell) -> None:
    for name, child in list(cell.name_cells().items()):
        if isinstance(child, _HALF) and name != "lm_head":  # whose weight the loss takes for itself
            cell._cells[name] = SingleOutput(child)
        elif not isinstance(child, SingleOutput):
            _wrap(child)
