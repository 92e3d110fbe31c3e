"""Training steps beside PyTorch on the CPU: same weights, data and maths, in turns, several processes of each.

`python benchmarks/train.py MODEL.gguf [--peer-python PYTHON] [--rounds 3] [--slow 20]`; the last line is one JSON
object. Ratios are ours over the peer's, of the best process of each side; the table above has the medians. PYTHON is an
interpreter with torch. `slow_share` is the share of `--slow` processes of ours whose best step takes over 1.4 times
the best of all.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from decode import measure

SIDES = ("ours", "eager", "compile")
STEPS = {"a": 12, "b": 6, "smollm2": 3}
LOSS_STEPS = 50


def side(name: str, peer_python: str, case: str, model: str, steps: int) -> dict:
    """One process of a side."""
    extra = ("--model", model, "--steps", str(steps))
    if name == "ours":
        return measure(sys.executable, "train_ours.py", case, *extra)
    return measure(peer_python, "train_torch.py", case, *extra, *(["--compile"] if name == "compile" else []))


def furthest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference between two loss curves."""
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def compare(case: str, args: argparse.Namespace) -> dict:
    """Rounds of one case, one process of each side after another; prints its table."""
    sides = SIDES if case != "smollm2" else SIDES[:2]
    runs: dict[str, list[dict]] = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name in sides:
            runs[name].append(side(name, args.peer_python, case, args.model, STEPS[case]))
    floor = min(
        measure(args.peer_python, "train_torch.py", case, "--model", args.model, "--floor")["floor_ms"] for _ in (1, 2)
    )
    print(f"{case}: the matrix products alone, in torch: {floor:.0f} ms")
    print(f"{'':10}{'best ms':>10}{'median':>10}{'worst':>10}{'peak MB':>10}{'over import':>13}")
    for name, rows in runs.items():
        times = [row["ms"] for row in rows]
        peak = min(row["peak_mb"] for row in rows)
        over = min(row["peak_mb"] - row["base_mb"] for row in rows)
        print(f"{name:10}{min(times):10.1f}{statistics.median(times):10.1f}{max(times):10.1f}{peak:10.0f}{over:13.0f}")
    print(f"  ours by operator, ms a step: {runs['ours'][0]['operators_ms']}", flush=True)
    best = {name: min(row["ms"] for row in rows) for name, rows in runs.items()}
    memory = {name: min(row["peak_mb"] for row in rows) for name, rows in runs.items()}
    figures = {f"{case}_ratio_{name}": best["ours"] / best[name] for name in sides[1:]}
    return {**figures, f"{case}_mem_ratio": memory["ours"] / memory["eager"], f"{case}_floor_ms": floor}


def slow_share(args: argparse.Namespace) -> float:
    """The share of slow processes among `args.slow` of ours."""
    times = sorted(side("ours", args.peer_python, "a", args.model, 8)["ms"] for _ in range(args.slow))
    print(f"{args.slow} processes of case a, best step of each, ms: {' '.join(f'{t:.0f}' for t in times)}")
    return sum(t > 1.4 * times[0] for t in times) / args.slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda path: str(Path(path).resolve()), help="SmolLM2's GGUF file")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--slow", type=int, default=20, help="processes for slow_share; 0 leaves it out")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    for case in args.cases:
        figures |= compare(case, args)
    curves = [side(name, args.peer_python, "a", args.model, LOSS_STEPS - 2)["losses"] for name in SIDES[:2]]
    figures["loss_difference"] = furthest(*curves)
    print(f"{LOSS_STEPS} steps of case a: the losses differ by at most {figures['loss_difference']:.1e}")
    if args.slow:
        figures["slow_share"] = slow_share(args)
    print(json.dumps({name: round(value, 7 if name == "loss_difference" else 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
