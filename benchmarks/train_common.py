"""What both sides of benchmarks/train.py share: the cases, their weights and batches. Imports no framework."""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.weights import open_model

LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
TUNING_RATE = 1e-5  # of the model that is trained already


@dataclass(frozen=True)
class Case:
    """Layers x width and the batch; the weights are drawn, or a model's."""

    layers: int
    width: int
    batch: int
    length: int
    heads: int = 0
    inner: int = 0


CASES = {
    "a": Case(4, 256, 8, 256, heads=4, inner=688),
    "b": Case(8, 512, 4, 512, heads=8, inner=1376),
    "smollm2": Case(30, 576, 4, 256),
}


def arguments(description: str | None) -> argparse.Namespace:
    """What a side is told: the case, the model behind smollm2, steps to time."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--model", help="a GGUF file, for smollm2")
    parser.add_argument("--steps", type=int, default=8, help="timed ones, after two that are not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile; the other side has no such choice")
    parser.add_argument("--floor", action="store_true", help="only the matrix products of a step; torch's side")
    parser.add_argument("--graph-kernel", action="store_true", help="MindSpore's fusion; needs pip install decorator")
    return parser.parse_args()


def load(name: str, model: str | None) -> tuple[DecoderSpec, Callable[[str], np.ndarray], float]:
    """The specification, a function from a parameter's name to its float32 weights, and the learning rate."""
    case = CASES[name]
    if name == "smollm2":
        source = open_model(model)

        def stored(parameter: str) -> np.ndarray:
            value = source.get(parameter)
            return np.ascontiguousarray(value if isinstance(value, np.ndarray) else value.dequantize(), np.float32)

        return source.spec, stored, TUNING_RATE
    spec = DecoderSpec(
        model_type="llama",
        vocab_size=4096,
        hidden_size=case.width,
        intermediate_size=case.inner,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.heads,
        head_dim=case.width // case.heads,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    shapes = spec.parameter_shapes()
    order = {parameter: number for number, parameter in enumerate(shapes)}

    def drawn(parameter: str) -> np.ndarray:
        if "norm" in parameter:
            return np.ones(shapes[parameter], np.float32)
        rng = np.random.default_rng((7, order[parameter]))
        return (0.02 * rng.standard_normal(shapes[parameter])).astype(np.float32)

    return spec, drawn, LEARNING_RATE


def batches(name: str, spec: DecoderSpec, model: str | None, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(input_ids, labels) int32 [batch, length]: drawn ids, or this project's own pages in smollm2's tokens."""
    case = CASES[name]
    size = case.batch * case.length + 1
    if name == "smollm2":
        pages = sorted((Path(__file__).resolve().parent.parent / "docs").glob("*.md"))
        text = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
        tokenizer = Tokenizer.from_buffer(open_model(model).tokenizer.tokenizer_json)
        ids = np.array(tokenizer.encode(text).ids, np.int32)
    else:
        # Each token follows from the one before, most of the time, so that there is something to learn.
        rng = np.random.default_rng(11)
        ids = rng.integers(0, spec.vocab_size, 50 * size).astype(np.int32)
        follows = rng.permutation(spec.vocab_size).astype(np.int32)
        for i in np.flatnonzero(rng.random(len(ids) - 1) < 0.7):
            ids[i + 1] = follows[ids[i]]
    shape = (case.batch, case.length)
    starts = [i * (size - 1) % (len(ids) - size) for i in range(count)]
    return [(ids[s : s + size - 1].reshape(shape), ids[s + 1 : s + size].reshape(shape)) for s in starts]


def time_steps(step: Callable[[int], float], steps: int) -> dict:
    """Losses and milliseconds of `steps` steps after two that are not timed, and the process's peak memory."""
    losses = [step(0), step(1)]
    spent = []
    for number in range(2, 2 + steps):
        start = time.perf_counter()
        losses.append(step(number))
        spent.append(1e3 * (time.perf_counter() - start))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": min(spent), "median_ms": statistics.median(spent), "peak_mb": peak, "losses": losses}


def finish(result: dict, base_mb: float) -> None:
    """Print the last line: one JSON object."""
    print(json.dumps({**result, "base_mb": base_mb}))


def resident_mb() -> float:
    """Resident memory of this process now."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
