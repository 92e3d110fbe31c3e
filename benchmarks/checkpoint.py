"""What checkpoints cost: seconds of training a save, beside mindspore.save_checkpoint; bytes; seconds to restore.

`python benchmarks/checkpoint.py MODEL.gguf [--processes 2] [--plots FOLDER]`; the last line is one JSON object.
135M parameters with AdamW, 1.6 GB of state, real steps. A process makes pairs of blocks of steps, one without a save
and one with, in the order A B B A; what a save costs is the difference of a pair's wall times, with the wait at the end
for a save that is still at work. `blocking_ratio` is the median over all pairs of all processes by the median of the
peer, beside its quartiles. Where a pair's steps differ by more than a save costs, the sum of what medians of steps say
tells more: `parts_ratio`. On an otherwise idle machine, and on a disk: a folder in memory is none.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from checkpoint_parts import SAVE_AFTER, parts
from decode import measure


def times(runs: list[dict]) -> dict[str, float]:
    """The figures of time, and of memory."""
    pairs = [pair for run in runs for pair in zip(run["plain"], run["saving"], strict=True)]
    shares = [saving["seconds"] / plain["seconds"] for plain, saving in pairs]
    costs = [saving["seconds"] - plain["seconds"] for plain, saving in pairs]
    peer = statistics.median(second for run in runs for second in run["peer_save_s"])
    summed = [parts(run) for run in runs]
    low, middle, high = statistics.quantiles(costs, n=4, method="inclusive")
    print(f"{len(pairs)} pairs, seconds a save: {' '.join(f'{pair:.2f}' for pair in sorted(costs))}")
    for part in summed:
        print("of medians of steps: " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in part.items()))
    saved = [row["saved"] for run in runs for row in run["saving"]]
    print(
        f"save() itself {statistics.median(one['blocked'] for one in saved):.3f} s, in the background "
        f"{statistics.median(one['seconds'] for one in saved):.1f} s; mindspore.save_checkpoint {peer:.2f} s",
        flush=True,
    )
    assert not runs[0]["saving"][0]["saved"]["base"], "the saves that are timed are differences to a base"
    ours = [second for run in runs for second in run["loads"]["ours"]]
    theirs = [second for run in runs for second in run["loads"]["safetensors"]]
    return {
        "blocking_ratio": middle / peer,
        "blocking_low_quartile": low / peer,
        "blocking_high_quartile": high / peer,
        "parts_ratio": statistics.median(sum(part.values()) for part in summed) / peer,
        "slowdown_ratio": statistics.median(shares),
        "peak_rss_extra_mb": max(run["extra_mb"] for run in runs),
        "restore_ratio": statistics.median(ours) / statistics.median(theirs),
        "restore_ratio_first": runs[0]["loads"]["ours"][0] / runs[0]["loads"]["safetensors"][0],
    }


def plot(folder: Path, runs: list[dict], sizes: dict) -> None:
    """Step times around saves, and sizes by distance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for name, color, label in (("plain", "tab:gray", "without a save"), ("saving", "tab:blue", "with one")):
        blocks = [row["steps"] for run in runs for row in run[name]]
        steps = [statistics.median(column) for column in zip(*blocks, strict=True)]
        left.plot(range(1, len(steps) + 1), steps, ".-", color=color, label=label)
    left.axvline(SAVE_AFTER, color="tab:blue", alpha=0.3)
    left.axhline(statistics.median(runs[0]["peer_save_s"]), color="tab:red", label="mindspore.save_checkpoint, alone")
    left.set(
        xlabel="step", ylabel="seconds", title=f"Steps of a block, medians; save after {SAVE_AFTER}", ylim=(0, None)
    )
    left.legend(loc="lower right")
    for name in ("tuning", "training"):
        right.plot(list(map(int, sizes[name])), list(sizes[name].values()), "o-", label=name)
    right.set(xlabel="steps since the base", ylabel="state / bytes written", title="Size of a save", ylim=(1, None))
    right.legend()
    figure.savefig(folder / "checkpoint-cost.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda path: str(Path(path).resolve()), help="SmolLM2's GGUF file")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", default=".", help="where checkpoints are written meanwhile: about 8 GB")
    parser.add_argument("--plots", type=Path, help="write the plots of docs/checkpoint.md there")
    parser.add_argument("--steps", type=int, default=60, help="of a block")
    parser.add_argument("--pairs", type=int, default=3, help="of blocks, a process")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    options = [f"--{name}={getattr(args, name)}" for name in ("steps", "pairs", "batch", "length")]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        sizes = measure(sys.executable, "checkpoint_sizes.py", args.model, f"{folder}/sizes")
        print(f"sizes: {sizes}", flush=True)
        runs = [
            measure(sys.executable, "checkpoint_steps.py", args.model, f"{folder}/{number}", *options)
            for number in range(args.processes)
        ]
    figures: dict = times(runs)
    figures["size_ratio_dense"] = min(sizes["tuning"].values())
    figures["size_ratio_dense_training"] = min(sizes["training"].values())
    figures["size_ratio_frozen"] = min(sizes["frozen"], sizes["lora"])
    figures["size_ratio_sparse5"] = sizes["sparse5"]
    figures = {name: round(value, 3) for name, value in figures.items()}
    figures["settings"] = (
        f"batch [{args.batch}, {args.length}], a save every {args.steps} steps, learning rate 1e-5, beta2 0.999; "
        f"dense: {'/'.join(sizes['tuning'])} steps after the base, 'training' with 6e-4 and 0.95"
    )
    if args.plots:
        plot(args.plots, runs, sizes)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
