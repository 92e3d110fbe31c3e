"""How well a model predicts held-out rows: the same rows at each evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from mindspore import Tensor, nn

from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.train.launch import launch


@dataclass(frozen=True)
class Evaluation:
    """loss: mean negative log-likelihood of `tokens`, in nats; perplexity: its exponential."""

    loss: float
    perplexity: float
    tokens: int
    seconds: float


class Evaluator:
    """Evaluates a network that returns (loss summed over tokens, tokens), with dropout and the like switched off.

    loader: of the held-out rows, from whose first epoch at most `batches` batches are taken.
    """

    def __init__(
        self,
        network: nn.Cell,
        loader: BucketLoader,
        columns: Sequence[str] = ("input_ids", "labels", "position_ids"),
        batches: int | None = None,
    ) -> None:
        self.network, self.loader, self.columns, self.batches = network, loader, tuple(columns), batches
        self._graph = _Forward(network)

    def __call__(self) -> Evaluation:
        """Raises DataError, DeviceLostError."""
        started = time.perf_counter()
        total, tokens = 0.0, 0.0
        self.loader.set_epoch(0)
        # A graph takes the mode that its Cells are in when it is compiled.
        self._graph.set_train(False)
        try:
            for batch in islice(self.loader, self.batches):
                loss, counted = launch(self._graph, *(batch[name] for name in self.columns))
                total += float(loss.asnumpy()[0])
                tokens += float(counted.asnumpy()[0])
        finally:
            self.loader.close()
            self._graph.set_train(True)
        mean = total / tokens if tokens else math.nan
        perplexity = math.exp(mean) if mean < 700 else math.inf if mean == mean else math.nan
        return Evaluation(mean, perplexity, int(tokens), time.perf_counter() - started)


class _Forward(nn.Cell):
    """A Cell of its own, so that its graphs are not those of the training step."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(*batch)
