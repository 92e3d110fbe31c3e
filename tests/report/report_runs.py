"""Folders of runs with numbers that a test knows, in the lines that a run writes."""

import json
import math
import random

BEGIN = 1.8e9
CONFIG = {"run": {"steps": 200, "seed": 1}, "optimizer": {"name": "adamw"}, "step": {"max_grad_norm": 1.0}}


def write_lines(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def start(**config):
    environment = {"mindspore": "2.10.0", "processor": "a processor", "cores": 2}
    model = {"architecture": "llama", "parameters": 3_200_000}
    return {"kind": "start", "step": 0, "time": BEGIN, "environment": environment, "model": model, "config": config}


def step(number, loss=2.0, **fields):
    """Half a second of which a tenth is waiting, 512 places of which 400 are tokens."""
    values = {
        "loss": loss,
        "tokens": 380,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "clipped": False,
        "skipped": False,
        "loss_scale": 1.0,
        "step_seconds": 0.4,
        "wait_seconds": 0.1,
        "length": 64,
        "rows": 8,
        "data_tokens": 400,
        "places": 512,
        "tokens_per_second": 800.0,
        "epoch": 0,
        "rss_bytes": 1 << 30,
    }
    return {"kind": "step", "step": number, "time": BEGIN + number, **values, **fields}


def whole_run(steps=200, seed=0, speed=1.0, offset=0.0, samples=("Once upon a time",)):
    """All kinds of lines, with curves as a real run's."""
    drawn = random.Random(seed)
    lines = [start(**CONFIG, data={"train": "sets/poems"})]
    time, compiled = BEGIN, set()
    for number in range(1, steps + 1):
        length = drawn.choice([64, 64, 128, 256])
        first = length not in compiled
        compiled.add(length)
        seconds = length / 640 / speed * drawn.uniform(0.95, 1.2) + (3.0 if first else 0.0)
        if first:
            why = f"first batch of [8, {length}]"
            lines.append({"kind": "compile", "step": number, "time": time, "graph": "step", "shapes": [[8, length]]})
            lines[-1] |= {"reason": why, "seconds": 3.0}
        norm = 0.3 + 4 * math.exp(-number / 20) + abs(drawn.gauss(0, 0.2))
        skipped = number == steps // 2
        loss = offset + 3 + 5 * math.exp(-5 * number / steps) + drawn.gauss(0, 0.15)
        time += seconds + 0.01
        fields = {
            "time": time,
            "grad_norm": "NaN" if skipped else norm,
            "learning_rate": 1e-3 * min(1, number / 20) * (0.5 + 0.5 * math.cos(math.pi * number / steps)),
            "clipped": norm > 1,
            "skipped": skipped,
            "step_seconds": seconds,
            "wait_seconds": 0.01,
            "length": length,
            "data_tokens": int(8 * length * 0.8),
            "places": 8 * length,
            "tokens_per_second": 8 * length * 0.8 / (seconds + 0.01),
            "rss_bytes": (1 << 30) + (400 << 20) * min(1, number / 30),
        }
        lines.append(step(number, "NaN" if skipped else loss, **fields))
        if skipped:
            lines.append({"kind": "skip", "step": number, "time": time, "reason": "at model.layers.1.mlp"})
            lines[-1]["samples"] = [{"length": 64, "rows": [17, 4]}, {"length": 128, "rows": [9]}]
        if number % max(steps // 8, 1) == 0:
            spent = {"Attention": [1.2, 400], "Dense": [4.0, 2000], "LinearCrossEntropy": [1.5, 50], "AdamW": [0.4, 25]}
            lines.append({"kind": "operators", "step": number, "time": time, "operators": spent})
            time += 1.0
            held_out = loss + 0.1
            lines.append({"kind": "eval", "step": number, "time": time, "loss": held_out, "seconds": 1.0})
            lines[-1] |= {"perplexity": math.exp(held_out), "tokens": 5000}
            time += 0.2
            saved = {"of": number, "seconds": 0.2, "blocked": 0.01, "bytes": 40 << 20, "raw_bytes": 60 << 20}
            lines.append({"kind": "checkpoint", "step": number, "time": time, **saved})
            for prompt in samples:
                lines.append({"kind": "sample", "step": number, "time": time, "prompt": prompt, "text": " there was."})
                lines[-1] |= {"tokens": 4, "seconds": 0.1}
    lines.append({"kind": "end", "step": steps, "time": time, "reason": "complete", "seconds": time - BEGIN})
    return lines
