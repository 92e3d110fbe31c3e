"""What buckets, packed rows and the native kernels bring to training on real text: one table, a process a row.

`python benchmarks/train_rows.py [--folder FOLDER] [--tokens 60000]`; needs the extra `data`. The corpus (Tang and Song
poems, benchmarks/data_corpora.py) and its sets stay in FOLDER. Every row of the table trains the same 4 x 256 Llama
from the same weights on the same documents, 2048 places a batch; `padded` puts the documents of `buckets`, in their
order, into rows as long as the longest. The last line is one JSON object: tokens (without padding) a second, peak
memory in MB over all graphs, and the perplexity of held-out poems; `loss_difference` is between equal rows, short and
padded.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PLACES, LEARNING_RATE, HELD_OUT = 2048, 1e-3, 1000
ROWS = {
    "all off": ("padded", "reference"),
    "native kernels": ("padded", "native"),
    "native, buckets": ("buckets", "native"),
    "native, packed": ("packed", "native"),
}
Columns = dict[str, np.ndarray]


def prepare(folder: Path) -> None:
    """The tokenizer and the three sets, unless they are there."""
    from data_corpora import fetch

    poems = fetch(folder)["poems"].read_text(encoding="utf-8").splitlines(keepends=True)
    parts = {"train": poems[: 20 * HELD_OUT], "held-out": poems[-HELD_OUT:]}
    for name, lines in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    tokenizer = folder / "poems-tokenizer"
    if not tokenizer.exists():
        run("data", "tokenizer", folder / "train.jsonl", "--out", tokenizer, "--vocab-size", 4096)
    sets = {"buckets": ("train", "bucket"), "packed": ("train", "pack"), "held-out": ("held-out", "bucket")}
    for name, (text, mode) in sets.items():
        run(
            *("data", "prepare", folder / f"{text}.jsonl", "--out", folder / f"set-{name}"),
            *("--tokenizer", tokenizer, "--mode", mode, "--max-length", 512),
        )


def run(*command: object) -> None:
    """One command of the package, quietly."""
    words = [sys.executable, "-m", "mindspeed_ms.cli.main", *map(str, command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def batches(folder: Path, rows: str) -> Iterator[tuple[Columns, int]]:
    """Columns of each batch and its tokens without padding."""
    from mindspeed_ms.data.columns import labels, position_ids
    from mindspeed_ms.data.loader import BucketLoader

    name = "packed" if rows == "packed" else "buckets"
    columns = ("input_ids", "labels", "position_ids", "document_ends")
    loader = BucketLoader(folder / f"set-{name}", tokens_per_batch=PLACES, columns=columns, tensors=False, seed=3)
    if rows != "padded":
        yield from ((dict(batch), batch.tokens) for batch in loader)
        return
    longest = max(bucket.length for bucket in loader.manifest.buckets)
    documents: list[np.ndarray] = []
    for batch in loader:
        ends = batch["document_ends"][:, -1]
        documents += [ids[:end].copy() for ids, end in zip(batch["input_ids"], ends, strict=True) if end]
        while len(documents) >= PLACES // longest:
            now, documents = documents[: PLACES // longest], documents[PLACES // longest :]
            ids = np.zeros((len(now), longest), np.int32)
            for row, document in zip(ids, now, strict=True):
                row[: len(document)] = document
            stop = np.array([[len(document)] for document in now], np.int32)
            yield (
                {"input_ids": ids, "labels": labels(ids, stop), "position_ids": position_ids(stop, longest)},
                int(stop.sum()),
            )


def make_network() -> tuple:
    """(network, vocabulary) of the weights that every row begins with."""
    import mindspore as ms

    from mindspeed_ms.config.decoder import DecoderSpec
    from mindspeed_ms.models import build_model
    from mindspeed_ms.train.initialize import initialize
    from mindspeed_ms.train.loss import CausalLMLoss

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    spec = DecoderSpec(
        model_type="llama",
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
    )
    model = build_model(spec)
    initialize(model, seed=1, std=0.02)
    return CausalLMLoss(model)


def one(folder: Path, name: str, budget: int) -> dict:
    """Train until `budget` tokens are learnt; compiling counts for memory, not for time."""
    from mindspeed_ms.data.loader import BucketLoader
    from mindspeed_ms.train.evaluate import Evaluator
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    rows, _ = ROWS[name]
    network = make_network()
    step = TrainStep(network, AdamW(weight_decay=0.1), LEARNING_RATE, max_grad_norm=1.0)
    seen = timed = steps = 0
    seconds = 0.0
    for columns, tokens in batches(folder, rows):
        started = time.perf_counter()
        result = step(columns)
        if not result.compiled:
            seconds += time.perf_counter() - started
            timed += tokens
        seen += tokens
        steps += 1
        if seen >= budget:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    columns = ("input_ids", "labels", "position_ids")
    held_out = BucketLoader(folder / "set-held-out", tokens_per_batch=PLACES, columns=columns, seed=0)
    perplexity = Evaluator(network, held_out)().perplexity
    return {
        "tokens_per_second": round(timed / seconds),
        "peak_mb": round(peak),
        "perplexity": round(perplexity, 1),
        "steps": steps,
        "graphs": len(step.compilations),
    }


def equal_batches(folder: Path) -> float:
    """The largest difference of losses between a batch of each bucket and the same rows padded to the longest."""
    from mindspeed_ms.data.loader import BucketLoader
    from mindspeed_ms.train.optimizer import SGD
    from mindspeed_ms.train.step import TrainStep

    step = TrainStep(make_network(), SGD(), 0.0)
    columns = ("input_ids", "labels", "position_ids")
    loader = BucketLoader(folder / "set-buckets", tokens_per_batch=PLACES, columns=columns, tensors=False)
    longest = max(bucket.length for bucket in loader.manifest.buckets)
    largest, seen = 0.0, set()
    for batch in loader:
        if batch.length in seen or len(seen) == len(loader.manifest.buckets):
            continue
        seen.add(batch.length)
        wide = [(0, 0), (0, longest - batch.length)]
        fill = {"input_ids": 0, "labels": -100, "position_ids": 0}
        padded = {name: np.pad(batch[name], wide, constant_values=value) for name, value in fill.items()}
        largest = max(largest, abs(step(dict(batch)).loss - step(padded).loss))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("bench-corpora"))
    parser.add_argument("--tokens", type=int, default=60_000, help="learnt by every row of the table")
    parser.add_argument("--one", choices=[*ROWS, "equal"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        result = equal_batches(args.folder) if args.one == "equal" else one(args.folder, args.one, args.tokens)
        print(json.dumps(result))
        return
    prepare(args.folder)
    figures: dict = {}
    for name in [*ROWS, "equal"]:
        kernels = ROWS.get(name, ("", "native"))[1]
        env = {**os.environ, "MINDSPEED_MS_KERNELS": kernels}
        command = [sys.executable, __file__, "--folder", str(args.folder), "--tokens", str(args.tokens), "--one", name]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:20}{figures[name]}", flush=True)
    figures["loss_difference"] = figures.pop("equal")
    assert math.isfinite(figures["loss_difference"])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
