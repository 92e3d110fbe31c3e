"""Optimizer state in files instead of memory: mapped in for its part of the update, given back right after it.

The update runs over groups of tensors, one graph each, so that resident memory holds one group's state at a time. What
is written stays in the system's page cache as long as there is room, and goes to the disk when there is not.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.graph import Control
from mindspeed_ms.train.launch import launch
from mindspeed_ms.train.optimizer import Optimizer, Shape

GROUP_BYTES = 64 << 20  # of parameters that are updated at a time


class GroupUpdate(nn.Cell):
    """(numbers, control, gradients, *states) -> [1]: the optimizer's operator over some of the parameters."""

    def __init__(self, update: nn.Cell, weights: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.update, self.weights = update, weights

    def construct(
        self, numbers: Tensor, control: Tensor, gradients: tuple[Tensor, ...], *states: tuple[Tensor, ...]
    ) -> Tensor:
        return self.update(self.weights, *states, gradients, numbers, control)


class StateFile:
    """Float32 tensors of zeros in a new file, mapped; `views` are arrays over it. Raises TrainError."""

    def __init__(self, path: Path, shapes: Sequence[Shape]) -> None:
        sizes = [int(np.prod(shape)) for shape in shapes]
        starts = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb+") as file:
                # written out now: a full disk is an error here, not the end of the process at a later store
                for left in range(int(starts[-1]) * 4, 0, -(1 << 24)):
                    file.write(bytes(min(left, 1 << 24)))
                file.flush()
                self._map = mmap.mmap(file.fileno(), int(starts[-1]) * 4)
        except OSError as error:
            raise TrainError(
                f"{path}: optimizer state of {int(starts[-1]) * 4 / 1e9:.2f} GB cannot be put there "
                f"({error.strerror}); free some space or train without offload_optimizer"
            ) from None
        whole = np.frombuffer(self._map, np.float32)
        self.views = [
            whole[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, sizes, shapes, strict=False)
        ]

    def release(self) -> None:
        """Give the memory back; the content stays in the file."""
        self._map.madvise(mmap.MADV_DONTNEED)


class OffloadedUpdate:
    """The update of a step whose optimizer state lives in `folder`; `states` are the views, one list a kind."""

    def __init__(self, optimizer: Optimizer, weights: ParameterTuple, decay: Sequence[bool], folder: Path) -> None:
        self.control = Control(len(weights))
        self.states: dict[str, list[np.ndarray]] = {kind: [] for kind in optimizer.kinds}
        self._groups: list[tuple[slice, GroupUpdate, list[tuple[Tensor, ...]], list[StateFile]]] = []
        for number, part in enumerate(_groups(weights)):
            cell = GroupUpdate(optimizer.update(list(decay[part])), ParameterTuple(list(weights[part])))
            files, tensors = [], []
            for kind in optimizer.kinds:
                shapes = [optimizer.state_shape(kind, w.shape) for w in weights[part]]
                files.append(StateFile(folder / f"{number:04d}-{kind}.state", shapes))
                self.states[kind] += files[-1].views
                tensors.append(tuple(Tensor.from_numpy(view) for view in files[-1].views))
            self._groups.append((part, cell, tensors, files))

    def __call__(
        self, loss: Tensor, tokens: Tensor, gradients: Any, numbers: Tensor, scale: Tensor, clip: Tensor
    ) -> Any:
        """(report, squares), as Update."""
        gradients = tuple(gradients)
        report, squares, control = launch(self.control, loss, tokens, ms.mutable(gradients), scale, clip)
        for part, cell, tensors, files in self._groups:
            states = [ms.mutable(kind) for kind in tensors] or [()]
            launch(cell, numbers, control, ms.mutable(gradients[part]), *states).asnumpy()
            for file in files:
                file.release()
        return report, squares

    def release(self) -> None:
        """Give back what memory a reader or a writer of the state has mapped in."""
        for _, _, _, files in self._groups:
            for file in files:
                file.release()


def _groups(weights: Sequence[Parameter]) -> list[slice]:
    """Neighbours that together keep to GROUP_BYTES, or one tensor that is larger by itself."""
    parts, begin, used = [], 0, 0
    for i, weight in enumerate(weights):
        if i > begin and used + 4 * weight.size > GROUP_BYTES:
            parts.append(slice(begin, i))
            begin, used = i, 0
        used += 4 * weight.size
    return [*parts, slice(begin, len(weights))]
