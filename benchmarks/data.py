"""The data path: padding of each arrangement, tokenizing beside Hugging Face datasets, the loader beside MindDataset.

`python benchmarks/data.py [--folder FOLDER] [--processes 3]`; needs the extra `data`, and `pip install datasets
transformers`. The corpora (benchmarks/data_corpora.py) stay in FOLDER. The last line is one JSON object.
Padding is a share of all places in rows; tokenize_ratio is Hugging Face's time over ours, of the minima.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
SEED_BOUNDARIES = [128, 256, 512, 1024, 2048]
ARRANGEMENTS = {
    "seed_boundaries": {"boundaries": SEED_BOUNDARIES},
    "dp5": {"buckets": 5},
    "joined5": {"buckets": 5, "join": True},
    "pack": {"mode": "pack"},
}
WORKERS = os.cpu_count() or 1


def padding(paths: dict[str, Path], tokenizer: Path) -> dict[str, dict[str, float]]:
    """Padding of each arrangement, by corpus and of all together, from the plans that sets are written by."""
    from mindspeed_ms.config.data import PrepareConfig
    from mindspeed_ms.data.plan import make_plan

    found: dict[str, dict[str, float]] = {}
    for name, inputs in {**{name: [path] for name, path in paths.items()}, "together": list(paths.values())}.items():
        found[name] = {}
        with tempfile.TemporaryDirectory() as work:
            segments = tokenize(Path(work), inputs, tokenizer)
            for arrangement, settings in ARRANGEMENTS.items():
                folder = Path(work) / arrangement
                folder.mkdir()
                config = PrepareConfig.parse({"arrange": settings})
                plan = make_plan(folder, segments, config, len(inputs), lambda done, total: None)
                places = sum(bucket.rows * bucket.length for bucket in plan.buckets)
                tokens = sum(bucket.tokens for bucket in plan.buckets)
                shares = {arrangement: 1 - tokens / places}
                if arrangement == "dp5":
                    # Its last bucket is as long as the longest document, split at 2048 tokens as by all others.
                    shares["to_max"] = 1 - tokens / (plan.rows * plan.buckets[-1].length)
                found[name] |= shares
                print(f"{name:<10}{[bucket.length for bucket in plan.buckets]!s:<30}{shares}", flush=True)
    return found


def tokenize(work: Path, paths: list[Path], tokenizer: Path) -> list:
    """Segments on disk of the files: read, cleaned, hashed, tokenized, written."""
    from mindspeed_ms.config.data import PrepareConfig
    from mindspeed_ms.data import prepare as p

    config = PrepareConfig()
    opened = p.open_tokenizer(tokenizer)
    sources = p.find_sources([str(path) for path in paths], config.read, None)
    names = [source.name for source in sources]
    return p.tokenize(
        work, sources, names, config, lambda: p.make_pool(opened, config, sources, WORKERS), lambda *_: None
    )


def tokenize_ours(paths: list[Path], tokenizer: Path) -> float:
    """Seconds from the files to segments on disk, starting the workers included."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        tokenize(Path(work), paths, tokenizer)
        return time.perf_counter() - begin


def tokenize_peer(paths: list[Path], tokenizer: Path) -> float:
    """Seconds of `datasets.map` alone, on texts that are loaded already; with what it writes to its cache."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        kinds = [("json" if path.suffix == ".jsonl" else "text", str(path)) for path in paths]
        loaded = [datasets.load_dataset(kind, data_files=path, split="train", cache_dir=cache) for kind, path in kinds]
        texts = datasets.concatenate_datasets([part.select_columns(["text"]) for part in loaded])

        def encode(batch):
            return fast(batch["text"], return_attention_mask=False, return_token_type_ids=False)

        begin = time.perf_counter()
        texts.map(encode, batched=True, num_proc=WORKERS, remove_columns=["text"])
        return time.perf_counter() - begin


def in_turns(folder: Path, processes: int) -> dict[str, list[float]]:
    """Seconds of both sides, a fresh process each, A B A B."""
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(processes):
        for role in seconds:
            command = [sys.executable, __file__, "--folder", str(folder), "--role", role]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds[role].append(float(done.stdout.split()[-1]))
            print(f"tokenize {role}: {seconds[role][-1]:.2f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/mindspeed-ms/benchmarks")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--role", choices=["ours", "peer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    from data_corpora import fetch

    files = fetch(options.folder)
    tokenizer = files.pop("tokenizer")
    if options.role:
        measure = tokenize_ours if options.role == "ours" else tokenize_peer
        print(measure(list(files.values()), tokenizer))
        return
    shares = padding(files, tokenizer)
    seconds = in_turns(options.folder, options.processes)
    import data_loader

    loader = data_loader.measure(processes=options.processes)
    size = sum(path.stat().st_size for path in files.values()) / 1e6
    best = {role: min(times) for role, times in seconds.items()}
    middle = {role: statistics.median(times) for role, times in seconds.items()}
    print(
        f"tokenize MB/s, best and median: ours {size / best['ours']:.2f}, {size / middle['ours']:.2f}; "
        f"datasets.map {size / best['peer']:.2f}, {size / middle['peer']:.2f}"
    )
    result = {f"padding_{name}": round(share, 4) for name, share in shares["together"].items()}
    result |= {"by_corpus": {name: {k: round(v, 4) for k, v in found.items()} for name, found in shares.items()}}
    result |= loader
    result |= {
        "tokenize_mb_s": round(size / best["ours"], 2),
        "tokenize_ratio": round(best["peer"] / best["ours"], 2),
        "tokenize_ratio_median": round(middle["peer"] / middle["ours"], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
