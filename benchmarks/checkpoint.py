"""What checkpoints cost: seconds of training a save, beside mindspore.save_checkpoint; bytes; seconds to restore.

`python benchmarks/checkpoint.py MODEL.gguf [--processes 3] [--plots FOLDER]`; the last line is one JSON object.
135M parameters with AdamW, 1.6 GB of state, real steps. A process makes blocks of the same number of steps in turns,
without saves and with one every `--every` steps; what a save costs is the difference of the blocks' wall times, with
the wait for the last save in it, by the number of saves. Ratios are of medians over all blocks of all processes;
`best_` ones are of the fastest blocks. Take them on an otherwise idle machine, on a disk: a memory file system is none.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from decode import measure


def cost(run: dict, pick: object) -> float:
    """Seconds a save of one process, of blocks picked by `pick`, a function of a list."""
    return (pick(run["save_s"]) - pick(run["plain_s"])) / run["saves"]  # type: ignore[operator]


def times(runs: list[dict]) -> dict[str, float]:
    """The figures of time, and of memory."""
    for run in runs:
        print(
            f"a step {run['step_s']:.2f} s; {run['saves']} saves a block cost {cost(run, statistics.median):.2f} s each"
            f" (fastest blocks {cost(run, min):.2f}), of which save() itself {statistics.median(run['blocked']):.3f}; "
            f"in the background {statistics.median(run['background']):.1f}; mindspore.save_checkpoint "
            f"{statistics.median(run['peer_save_s']):.2f} (fastest {min(run['peer_save_s']):.2f})",
            flush=True,
        )
        assert not run["base"][-1], "the save that is restored is a base"
    peer = statistics.median(second for run in runs for second in run["peer_save_s"])
    ours = [second for run in runs for second in run["loads"]["ours"]]
    theirs = [second for run in runs for second in run["loads"]["safetensors"]]
    return {
        "blocking_ratio": statistics.median(cost(run, statistics.median) for run in runs) / peer,
        "best_blocking_ratio": min(cost(run, min) for run in runs) / min(min(run["peer_save_s"]) for run in runs),
        "worst_blocking_ratio": max(cost(run, statistics.median) for run in runs) / peer,
        "slowdown_ratio": statistics.median(
            statistics.median(run["save_s"]) / statistics.median(run["plain_s"]) for run in runs
        ),
        "peak_rss_extra_mb": max(run["extra_mb"] for run in runs),
        "restore_ratio": statistics.median(ours) / statistics.median(theirs),
        "best_restore_ratio": min(ours) / min(theirs),
    }


def plot(folder: Path, runs: list[dict], sizes: dict) -> None:
    """Step times around saves, and sizes by distance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    timeline = runs[0]["timeline"]
    for name, color in (("plain", "tab:gray"), ("saving", "tab:blue")):
        left.plot(range(1, len(timeline[name]) + 1), timeline[name], ".-", color=color, label=name)
    for number in range(timeline["every"], len(timeline["saving"]), timeline["every"]):
        left.axvline(number, color="tab:blue", alpha=0.3)
    left.axhline(statistics.median(runs[0]["peer_save_s"]), color="tab:red", label="mindspore.save_checkpoint, alone")
    left.set(xlabel="step", ylabel="seconds", title="Steps of a block; lines are saves", ylim=(0, None))
    left.legend(loc="lower right")
    for name in ("tuning", "training"):
        right.plot(list(map(int, sizes[name])), list(sizes[name].values()), "o-", label=name)
    right.set(xlabel="steps since the base", ylabel="state / bytes written", title="Size of a save", ylim=(1, None))
    right.legend()
    figure.savefig(folder / "checkpoint-cost.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda path: str(Path(path).resolve()), help="SmolLM2's GGUF file")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--folder", default=".", help="where checkpoints are written meanwhile: about 8 GB")
    parser.add_argument("--plots", type=Path, help="write the plots of docs/checkpoint.md there")
    parser.add_argument("--steps", type=int, default=24, help="of a block")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    options = [f"--{name}={getattr(args, name)}" for name in ("steps", "every", "batch", "length")]
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
        f"batch [{args.batch}, {args.length}], a save every {args.every} steps, learning rate 1e-5, beta2 0.999; "
        f"dense: {'/'.join(sizes['tuning'])} steps after the base, 'training' with 6e-4 and 0.95"
    )
    if args.plots:
        plot(args.plots, runs, sizes)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
