"""Decoding and prefill of SmolLM2 beside llama.cpp on the same GGUF file, in turns, several processes of each.

`python benchmarks/decode.py MODEL.gguf [--peer-python PYTHON] [--rounds 5]`; the last line is one JSON object: ratios
are ours over the peer's from the best process of each side (both as good as they can be on a noisy machine), with the
medians in the table above it. PYTHON is an interpreter with llama-cpp-python, built with
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"; ours runs the INT4 bundle through its MINDIR.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RATES = ("decode_b1", "decode_b16", "prefill512")
COSTS = ("first_token_s", "peak_mb", "over_import_mb")


def measure(python: str, script: str, *arguments: str) -> dict:
    """Run one process and return what its last line says."""
    paths = (str(HERE.parent), os.environ.get("PYTHONPATH"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [python, str(HERE / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def q4_0(python: str, model: str, threads: tuple[str, str]) -> dict[str, float]:
    """The peer's best rates on the model rounded once more, to the form that it repacks for this processor."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "q4_0.gguf")
        measure(python, "decode_llama_cpp.py", model, "--requantize", file)
        runs = [
            measure(python, "decode_llama_cpp.py", file, *threads, "--flash", flash) for flash in ("0", "1", "0", "1")
        ]
    return {name: round(max(run[name] for run in runs), 1) for name in RATES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file; both sides read it")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--q4_0", action="store_true", help="also measure the peer on the model's Q4_0 form")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="say how each step's time divides")
    args = parser.parse_args()
    threads = ("--threads", str(args.threads))
    extra = ("--profile",) if args.profile else ()
    ours: list[dict] = []
    peers: dict[int, list[dict]] = {0: [], 1: []}
    for turn in range(args.rounds):
        ours.append(measure(sys.executable, "decode_ours.py", args.model, *threads, *extra))
        # llama.cpp with and without flash attention; each figure takes the better of the two
        for flash in peers:
            command = ("decode_llama_cpp.py", args.model, *threads, "--flash", str(flash))
            peers[flash].append(measure(args.peer_python, *command))
        print(f"round {turn + 1}")
        for side, run in {"ours": ours[-1], **{f"llama.cpp, flash {k}": v[-1] for k, v in peers.items()}}.items():
            print(f"  {side:20}" + "".join(f"{name:>12} {run[name]:6.1f}" for name in RATES), flush=True)

    repacked = q4_0(args.peer_python, args.model, threads) if args.q4_0 else {}
    best, median, worst = max, statistics.median, min
    table = {name: {} for name in (*RATES, *COSTS)}
    for name in RATES:
        table[name]["ours"] = [f(run[name] for run in ours) for f in (best, median, worst)]
        flash = max(peers, key=lambda flash, name=name: best(run[name] for run in peers[flash]))
        table[name]["peer"] = [f(run[name] for run in peers[flash]) for f in (best, median, worst)]
        table[name]["flash"] = flash
    for name in COSTS:
        table[name]["ours"] = [f(run[name] for run in ours) for f in (min, median, max)]
        table[name]["peer"] = [f(run[name] for run in peers[0] + peers[1]) for f in (min, median, max)]
    columns = ("ours: best", "median", "worst", "llama.cpp: best", "median", "worst", "ratio", "of medians")
    print(f"{'':16}" + "".join(f"{column:>16}" for column in columns))
    for name, row in table.items():
        a, b = row["ours"], row["peer"]
        figures = "".join(f"{value:16.1f}" for value in (*a, *b)) + f"{a[0] / b[0]:16.2f}{a[1] / b[1]:16.2f}"
        print(f"{name:16}{figures}" + {0: "  flash off", 1: "  flash on"}.get(row.get("flash"), ""))
    print(f"ours: {args.threads} threads, steps of up to 512 tokens, f16 cache, dynamic MINDIR")
    print(f"llama.cpp: {peers[0][0]['settings']}; {peers[0][0]['system']}")
    if args.profile:
        for name in ("decode_b1", "decode_b16"):
            parts = {part: min(run["profile"][name][part] for run in ours) for part in ours[0]["profile"][name]}
            print(f"{name}, ms a step: {parts}")
    summary = {f"{name}_ratio": round(table[name]["ours"][0] / table[name]["peer"][0], 3) for name in RATES}
    summary |= {
        "first_token_s": round(table["first_token_s"]["ours"][1], 2),
        "ours": {name: round(table[name]["ours"][0], 1) for name in RATES},
        "peer": {name: round(table[name]["peer"][0], 1) for name in RATES},
        "rss_over_import_mb": round(table["over_import_mb"]["ours"][1], 1),
        "peer_rss_mb": round(table["peak_mb"]["peer"][1], 1),
        "peer_rss_over_import_mb": round(table["over_import_mb"]["peer"][1], 1),
    }
    if repacked:
        summary["peer_q4_0"] = repacked
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
