"""Kernels beside PyTorch and NumPy: the same arrays, in turns, minimum over repetitions and processes.

`python benchmarks/ops.py [--processes 3] [--threads 2]`; the last line is one JSON object. Ratios are peer time over
ours. Quantized linears and the embedding, which have no such peer, are shown as shares of this machine's measured
memory bandwidth and int8 ceilings.
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
HIDDEN, INNER, TOKENS, HEADS, KV_HEADS, DIM, CONTEXT = 576, 1536, 512, 9, 3, 64, 512


def timed(runs: dict, repeat: int = 15) -> dict[str, float]:
    """Minimum seconds of each function, called in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeat):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def one_process(threads: int) -> dict[str, float]:
    """All measurements once; the caller takes minima and medians over processes."""
    os.environ["MINDSPEED_MS_THREADS"] = str(threads)
    sys.path.insert(0, str(ROOT / "tests" / "ops"))
    import numpy as np
    import torch
    from ops_harness import Native

    from mindspeed_ms.ops.native.pack import pack
    from mindspeed_ms.ops.native.quant import quantize_rtn

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(5)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        native = Native(Path(folder))

        def compare(name, entry, inputs, attrs, torch_run, numpy_run=None):
            run, _ = native.prepared(entry, inputs, attrs)
            runs = {"ours": run, "torch": torch_run, **({"numpy": numpy_run} if numpy_run else {})}
            seconds = timed(runs)
            result[f"{name}_us"] = seconds["ours"] * 1e6
            for peer in runs.keys() - {"ours"}:
                result[f"{name}_vs_{peer}"] = seconds[peer] / seconds["ours"]

        x, w = normal(TOKENS, HIDDEN), normal(HIDDEN)
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        compare(
            "rms_norm", "RmsNorm", [x, w], {"eps": 1e-5},
            lambda: torch.nn.functional.rms_norm(tx, (HIDDEN,), tw, 1e-5),
            lambda: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
        )  # fmt: skip

        heads, table = normal(TOKENS, HEADS, DIM), normal(TOKENS, DIM)
        th = torch.from_numpy(heads)
        cos, sin = (np.tile(part, 2)[:, None] for part in np.split(table, 2, 1))
        tcos, tsin = torch.from_numpy(cos), torch.from_numpy(sin)
        half = DIM // 2
        compare(
            "rope", "Rope", [heads, table], {},
            lambda: th * tcos + torch.cat((-th[..., half:], th[..., :half]), -1) * tsin,
            lambda: heads * cos + np.concatenate((-heads[..., half:], heads[..., :half]), -1) * sin,
        )  # fmt: skip

        gate, up = normal(TOKENS, INNER), normal(TOKENS, INNER)
        tg, tu = torch.from_numpy(gate), torch.from_numpy(up)
        compare(
            "swiglu", "Swiglu", [gate, up], {},
            lambda: torch.nn.functional.silu(tg) * tu,
            lambda: gate / (1 + np.exp(-gate)) * up,
        )  # fmt: skip

        q, k, v = normal(1, CONTEXT, HEADS, DIM), normal(1, CONTEXT, KV_HEADS, DIM), normal(1, CONTEXT, KV_HEADS, DIM)
        tq, tk, tv = (torch.from_numpy(a).transpose(1, 2).contiguous() for a in (q, k, v))
        mask = np.triu(np.full((CONTEXT, CONTEXT), -np.inf, np.float32), 1)

        def numpy_attention():
            group = HEADS // KV_HEADS
            keys, values = (np.repeat(a[0].transpose(1, 0, 2), group, 0) for a in (k, v))
            scores = q[0].transpose(1, 0, 2) @ keys.transpose(0, 2, 1) * DIM**-0.5 + mask
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            return scores / scores.sum(-1, keepdims=True) @ values

        compare(
            "attention", "Attention", [q, k, v], {"scale": DIM**-0.5},
            lambda: torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, is_causal=True, enable_gqa=True),
            numpy_attention,
        )  # fmt: skip

        for rows, out, inner in (
            (1, INNER, HIDDEN),
            (16, INNER, HIDDEN),
            (TOKENS, INNER, HIDDEN),
            (TOKENS, HIDDEN, INNER),
        ):
            a, weight = normal(rows, inner), normal(out, inner) * 0.05
            ta, tweight = torch.from_numpy(a), torch.from_numpy(weight)
            arena, layout = pack({"w": weight})
            compare(
                f"linear_f32_{rows}x{inner}x{out}", "Linear", [a, arena],
                {"weight": layout.matrices["w"].as_list(), "bias": -1},
                lambda ta=ta, tweight=tweight: torch.nn.functional.linear(ta, tweight),
            )  # fmt: skip

        # 250 MB of weights, far more than any cache keeps: what decoding a large model sees
        ceiling = ceilings(torch, threads)
        result.update(ceiling)
        for name, scheme in {"w4a8": (4, 32, True), "w8a8": (8, 0, False)}.items():
            weight = normal(4096, 1024) * 0.05
            packed = quantize_rtn(weight, *scheme)
            arena, layout = pack({f"w{i}": packed for i in range(96 if name == "w4a8" else 64)})
            one_row, many = normal(1, 1024), normal(TOKENS, 1024)
            calls = [
                native.prepared("Linear", [one_row, arena], {"weight": [*desc.as_list()[:6], 1], "bias": -1})[0]
                for desc in layout.matrices.values()
            ]
            seconds = timed({"ours": lambda calls=calls: [call() for call in calls]}, 7)["ours"]
            result[f"{name}_bandwidth_share"] = arena.nbytes / seconds / 1e9 / ceiling["read_gb_s"]
            run, _ = native.prepared(
                "Linear",
                [many, arena],
                {"weight": [*next(iter(layout.matrices.values())).as_list()[:6], 1], "bias": -1},
            )
            operations = 2 * TOKENS * 4096 * 1024
            result[f"{name}_int8_share"] = operations / timed({"ours": run})["ours"] / 1e9 / ceiling["int8_gop_s"]

        table_rows = quantize_rtn(normal(49152, HIDDEN), 8, 32, False)
        arena, layout = pack({"e": table_rows})
        ids = rng.integers(0, 49152, TOKENS).astype(np.int32)
        attrs = {"weight": [*next(iter(layout.matrices.values())).as_list()[:6], 1]}
        run, _ = native.prepared("Embedding", [ids, arena], attrs)
        seconds = timed({"ours": run})["ours"]
        result["embedding_us"] = seconds * 1e6
        result["embedding_bandwidth_share"] = TOKENS * HIDDEN * (1 + 4) / seconds / 1e9 / ceiling["read_gb_s"]
    return result


CEILING = r"""
#include <immintrin.h>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
using Clock = std::chrono::steady_clock;
static double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
template <class F> static double On(int threads, F f) {
  double best = 1e9;
  for (int r = 0; r < 10; ++r) {
    const double begin = Now();
    std::vector<std::thread> all;
    for (int t = 1; t < threads; ++t) all.emplace_back([&, t] { f(t); });
    f(0);
    for (auto &t : all) t.join();
    best = std::min(best, Now() - begin);
  }
  return best;
}
volatile int sink;
extern "C" double ReadGbS(int threads) {
  const size_t each = size_t{64} << 20;
  auto *p = static_cast<uint8_t *>(std::aligned_alloc(64, each * threads));
  std::memset(p, 1, each * threads);
  const double seconds = On(threads, [&](int t) {
    __m512i sum[4] = {};
    for (const uint8_t *q = p + each * t, *end = q + each; q < end; q += 256)
      for (int i = 0; i < 4; ++i) sum[i] = _mm512_add_epi8(sum[i], _mm512_load_si512(q + i * 64));
    sink = _mm512_reduce_add_epi32(_mm512_add_epi8(_mm512_add_epi8(sum[0], sum[1]), _mm512_add_epi8(sum[2], sum[3])));
  });
  std::free(p);
  return each * threads / seconds / 1e9;
}
extern "C" double Int8GopS(int threads) {
  const int rounds = 2000000;
  const double seconds = On(threads, [&](int) {
    __m512i acc[12] = {}, w = _mm512_set1_epi8(3);
    alignas(64) int32_t a[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (int n = 0; n < rounds; ++n) {
      for (int i = 0; i < 12; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], w, _mm512_set1_epi32(a[i]));
      asm volatile("" : : "m"(a));
    }
    int s = 0;
    for (auto &v : acc) s += _mm512_reduce_add_epi32(v);
    sink = s;
  });
  return 128.0 * 12 * rounds * threads / seconds / 1e9;
}
"""


def ceilings(torch, threads: int) -> dict[str, float]:
    """Memory read bandwidth and int8 VNNI throughput of this machine, by a small program of our own."""
    import ctypes

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "ceiling.cc", Path(folder) / "ceiling.so"
        source.write_text(CEILING)
        subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-O3",
                "-march=native",
                "-shared",
                "-fPIC",
                str(source),
                "-o",
                str(library),
                "-lpthread",
            ],
            check=True,
        )
        lib = ctypes.CDLL(str(library))
        lib.ReadGbS.restype = lib.Int8GopS.restype = ctypes.c_double
        return {"read_gb_s": lib.ReadGbS(threads), "int8_gop_s": lib.Int8GopS(threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_process(args.threads)))
        return
    runs = []
    for i in range(args.processes):
        command = [sys.executable, __file__, "--one", "--threads", str(args.threads)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"process {i + 1} of {args.processes} done", flush=True)
    print(f"{'':28}{'best':>10}{'median':>10}{'worst':>10}")
    summary = {}
    for name in runs[0]:
        values = sorted((run[name] for run in runs), reverse=not name.endswith("_us"))
        summary[name] = round(statistics.median(values), 3)
        print(f"{name:28}{values[0]:10.2f}{summary[name]:10.2f}{values[-1]:10.2f}")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
