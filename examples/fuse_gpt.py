"""Three changes to a training script of a network that is not ours, and what each of them gains.

    python examples/fuse_gpt.py SET

SET is a folder that `mindspeed-ms data prepare` made. The script trains the network of gpt_network.py four times on the
same rows, each time in a process of its own: as it was, with BucketLoader, with TrainStep as well, and with fuse too.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import mindspore as ms
import numpy as np
from gpt_network import GPT
from mindspore import Tensor, nn

from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.train.fuse import fuse
from mindspeed_ms.train.optimizer import AdamW
from mindspeed_ms.train.step import TrainStep

STAGES = {
    "plain": "as it was: rows padded to the longest, nn.TrainOneStepCell",
    "buckets": "+ BucketLoader",
    "step": "+ TrainStep",
    "fuse": "+ fuse",
}
COLUMNS = ("input_ids", "labels")
PASSES = 4  # the first one compiles
Batch = tuple[Tensor, Tensor]


def batches(loader: BucketLoader, count: int, context: int, padded: bool) -> list[Batch]:
    """The first batches of an epoch; `padded` as a script without buckets has them: all of the longest row's length."""
    found = []
    for batch in loader:
        columns = [batch[name].asnumpy() for name in COLUMNS]
        if padded:
            wider = ((0, 0), (0, context - batch.length))
            pad_id = loader.manifest.tokenizer.pad_id
            columns = [np.pad(x, wider, constant_values=fill) for x, fill in zip(columns, (pad_id, -100), strict=True)]
        found.append(tuple(Tensor(column) for column in columns))
        if len(found) == count:
            break
    return found


def run(stage: str, options: argparse.Namespace) -> dict[str, float]:
    """Train on the same batches some times over, and measure."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(0)
    # 1. The loader, in the place of a GeneratorDataset
    loader = BucketLoader(options.set, tokens_per_batch=options.tokens_per_batch, columns=COLUMNS, seed=0)
    context = max(bucket.length for bucket in loader.manifest.buckets if bucket.rows)
    network = GPT(loader.manifest.tokenizer.vocab_size, options.hidden, options.layers, options.heads, context)
    data = batches(loader, options.steps, context, padded=stage == "plain")
    if stage == "fuse":
        # 2. The network's Cells, in place; an example of its inputs lets its own Cells be looked into
        print(fuse(network, *data[0]), file=sys.stderr)
    if stage in ("step", "fuse"):
        # 3. The step, in the place of nn.TrainOneStepCell and nn.Adam
        step = TrainStep(network, AdamW(weight_decay=0.0), options.learning_rate, columns=COLUMNS)
        losses, seconds = measure(data, lambda batch: step(batch).loss)
    else:
        old_step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), options.learning_rate))
        old_step.set_train(True)
        losses, seconds = measure(data, lambda batch: float(old_step(*batch).asnumpy()))
    learnt = sum(int((labels.asnumpy() != -100).sum()) for _, labels in data)
    return {
        "tokens_per_second": learnt / seconds,
        "step_ms": 1000 * seconds / len(data),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": float(np.mean(losses)),
    }


def measure(data: list[Batch], step: Callable[[Batch], float]) -> tuple[list[float], float]:
    """The losses of the last of some passes over the batches, and the seconds of the fastest but the first."""
    seconds = []
    for _ in range(PASSES):
        begin = time.perf_counter()
        losses = [step(batch) for batch in data]
        seconds.append(time.perf_counter() - begin)
    return losses, min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="What BucketLoader, TrainStep and fuse gain.")
    parser.add_argument("set", help="folder of a prepared set")
    parser.add_argument("--steps", type=int, default=16, help="batches of a pass")
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--stage", choices=STAGES, help="only this one, with its figures as JSON")
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(run(options.stage, options)))
        return
    print(f"{'':60} {'tokens/s':>9} {'ms a step':>10} {'peak MB':>8} {'loss':>8}")
    for stage, title in STAGES.items():
        command = [sys.executable, *sys.argv, "--stage", stage]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        figures = f"{row['tokens_per_second']:9.0f} {row['step_ms']:10.1f} {row['peak_mb']:8.0f} {row['loss']:8.4f}"
        print(f"{title:60} {figures}", flush=True)


if __name__ == "__main__":
    main()
