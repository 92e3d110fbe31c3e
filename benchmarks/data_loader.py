"""How fast batches come, beside MindDataset on the same files, and how long a training step waits for them.

`python benchmarks/data_loader.py [--processes 3] [--rows 50000]`; the last line is one JSON object. Rows have 512
tokens. Both sides shuffle them and give MindSpore tensors of the same columns, in turns within each process; a process
counts by its best turn, because other work on the machine only ever slows. The training step is that of a small network
in graph mode; what it learns does not matter, only that it takes the time of a step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LENGTH, TOKENS_PER_BATCH, TURNS = 512, 32768, 4
STEP_TOKENS, STEPS, HIDDEN, LAYERS = 4096, 50, 128, 2


def make_set(folder: Path, rows: int) -> None:
    """A set of `rows` rows in four shards, as MindRecord files and as blocks."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "data")]
    import data_sets

    data_sets.make_set(folder, {LENGTH: rows}, shards=4, mindrecord=True)


def minddataset(folder: Path, manifest, batch: int) -> Iterator[dict]:
    """The set's files through MindDataset, shuffled."""
    import mindspore.dataset

    files = [str(folder / shard.mindrecord.path) for shard in manifest.buckets[0].shards]
    rows = mindspore.dataset.MindDataset(files, columns_list=manifest.columns, shuffle=True, num_parallel_workers=2)
    return rows.batch(batch, drop_remainder=True).create_dict_iterator(num_epochs=1)


def rows_per_second(batches: Iterable, count: Callable) -> float:
    """Rows of all batches by `count`, over the time from the first call to the last."""
    begin, rows = time.perf_counter(), 0
    for batch in batches:
        rows += count(batch)
    return rows / (time.perf_counter() - begin)


def make_step(vocab_size: int):
    """A Cell that trains on input ids as their own labels and returns the loss."""
    import mindspore
    from mindspore import nn, ops

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            layers = [nn.Embedding(vocab_size, HIDDEN)]
            for _ in range(LAYERS):
                layers += [nn.Dense(HIDDEN, 4 * HIDDEN), nn.ReLU(), nn.Dense(4 * HIDDEN, HIDDEN)]
            self.layers = nn.SequentialCell([*layers, nn.Dense(HIDDEN, vocab_size)])

        def construct(self, ids):
            return ops.cross_entropy(self.layers(ids).reshape(-1, vocab_size), ids.reshape(-1))

    class Step(nn.Cell):
        def __init__(self, network):
            super().__init__(auto_prefix=False)
            parameters = network.trainable_params()
            self.optimizer = nn.AdamWeightDecay(parameters, 1e-3)
            self.gradient = mindspore.value_and_grad(network, None, parameters)

        def construct(self, ids):
            loss, gradients = self.gradient(ids)
            self.optimizer(gradients)
            return loss

    return Step(Network())


def train(step, batches: Iterator) -> tuple[float, float]:
    """Run STEPS steps; the share of the time that they waited for a batch, and the seconds of one step."""
    step(next(batches)["input_ids"]).asnumpy()  # compiles, and starts what makes batches
    waited, begin = 0.0, time.perf_counter()
    for _ in range(STEPS):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(batch["input_ids"]).asnumpy()
    seconds = time.perf_counter() - begin
    return waited / seconds, seconds / STEPS


def one_process(folder: Path) -> dict[str, float]:
    """All measurements once."""
    sys.path.insert(0, str(ROOT))
    import mindspore

    from mindspeed_ms.data.loader import BucketLoader

    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    loader = BucketLoader(folder, tokens_per_batch=TOKENS_PER_BATCH)  # reads all files, which are then cached
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(rows_per_second(loader, lambda batch: batch.rows))  # without those that fill the last batch
        peer = minddataset(folder, loader.manifest, TOKENS_PER_BATCH // LENGTH)
        theirs.append(rows_per_second(peer, lambda batch: batch["input_ids"].shape[0]))

    step = make_step(loader.manifest.tokenizer.vocab_size)
    feeder = BucketLoader(folder, tokens_per_batch=STEP_TOKENS, verify=False)
    wait_share, step_seconds = train(step, iter(feeder))
    their_share, _ = train(step, minddataset(folder, loader.manifest, STEP_TOKENS // LENGTH))
    return {
        "samples_per_s": max(ours),
        "minddataset_samples_per_s": max(theirs),
        "wait_share": wait_share,
        "minddataset_wait_share": their_share,
        "step_ms": 1000 * step_seconds,
    }


def measure(processes: int = 3, rows: int = 50000) -> dict[str, float]:
    """Medians over processes, and the least and the most of each."""
    with tempfile.TemporaryDirectory() as folder:
        make_set(Path(folder), rows)
        runs = []
        for _ in range(processes):
            command = [sys.executable, __file__, "--one", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(runs[-1]), flush=True)
    result = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        result |= {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return {name: round(value, 5) for name, value in result.items()}


def main() -> None:
    """Parse the command line and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50000)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps(one_process(options.one) if options.one else measure(options.processes, options.rows)))


if __name__ == "__main__":
    main()
