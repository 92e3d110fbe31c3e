"""One process of benchmarks/checkpoint.py: blocks of training steps with and without saves, and MindSpore's own save.

`python benchmarks/checkpoint_steps.py MODEL.gguf FOLDER [options]`; the last line is one JSON object.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from train_common import CLIP, DECAY, EPS, resident_mb

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.models import build_model
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.optimizer import AdamW
from mindspeed_ms.train.step import TrainStep
from mindspeed_ms.weights import open_model


def peak_mb() -> float:
    """The largest resident memory that this process has had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


class Training:
    """SmolLM2-135M with AdamW on this project's own pages, another batch each step."""

    def __init__(self, args: argparse.Namespace, prepare: Callable[[ms.nn.Cell], object] = lambda model: None) -> None:
        source = open_model(args.model)
        model = build_model(source.spec)
        for name, parameter in model.parameters_and_names():
            value = source.get(name)
            array = value if isinstance(value, np.ndarray) else value.dequantize()
            parameter.set_data(ms.Tensor(np.ascontiguousarray(array, np.float32)))
        prepare(model)
        optimizer = AdamW(betas=(0.9, args.beta2), eps=EPS, weight_decay=DECAY)
        self.step = TrainStep(CausalLMLoss(model), optimizer, args.rate, max_grad_norm=CLIP)
        pages = sorted((Path(__file__).resolve().parent.parent / "docs").glob("*.md"))
        text = args.text or "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
        self.ids = np.array(Tokenizer.from_buffer(source.tokenizer.tokenizer_json).encode(text).ids, np.int32)
        self.shape, self.number = (args.batch, args.length), 0
        self.positions = np.tile(np.arange(args.length, dtype=np.int32), (args.batch, 1))

    def one(self) -> float:
        size = self.shape[0] * self.shape[1]
        start = self.number * size % (len(self.ids) - size - 1)
        self.number += 1
        ids, labels = (self.ids[s : s + size].reshape(self.shape) for s in (start, start + 1))
        return self.step((ids, labels, self.positions)).loss

    def save(self, store: CheckpointStore) -> None:
        step, trained = self.step, {f"model.{name}" for name in self.step.trained}
        tensors = step.tensors()
        late = {name for name in tensors if name in trained or name.startswith("optimizer.")}
        store.save(step.step, tensors, step.state_dict(), finite=trained, late=late)


def block(training: Training, store: CheckpointStore | None, args: argparse.Namespace) -> dict:
    """Wall seconds of a block; the wait for what a save has not done by its end is a part of it."""
    saved, steps = [], []
    started = time.perf_counter()
    for number in range(1, args.steps + 1):
        begun = time.perf_counter()
        training.one()
        if store and number % args.every == 0 and number < args.steps:
            training.save(store)
        if store:
            saved += store.poll()
        steps.append(time.perf_counter() - begun)
    if store:
        waiting = time.perf_counter()
        saved += store.wait()
        waiting = time.perf_counter() - waiting
    seconds = time.perf_counter() - started
    row = {"seconds": seconds, "with": store is not None, "steps": steps}
    if store:
        row |= {
            "saves": len(saved),
            "wait": waiting,
            "blocked": [s.blocked for s in saved],
            "background": [s.seconds for s in saved],
            "bytes": [s.bytes for s in saved],
            "base": [s.base for s in saved],
            "raw": saved[0].raw_bytes,
        }
    print(json.dumps(row), flush=True)
    return row


def peer_save(training: Training, folder: Path) -> float:
    """Seconds of mindspore.save_checkpoint of the same state."""
    state = [{"name": name, "data": ms.Tensor.from_numpy(array)} for name, array in training.step.tensors().items()]
    path = folder / "peer.ckpt"
    started = time.perf_counter()
    ms.save_checkpoint(state, str(path))
    seconds = time.perf_counter() - started
    path.chmod(0o600)
    path.unlink()
    return seconds


def restore(training: Training, store: CheckpointStore, folder: Path, times: int) -> dict:
    """Seconds to load the newest commit, a delta, and a safetensors file of the same state: in turns, and bit-exact."""
    tensors = training.step.tensors()
    step = store.steps()[-1]
    path = folder / "peer.safetensors"
    ours, peer = [], []
    found = store.load(step)
    save_file({name: np.array(found.tensors[name]) for name in found.tensors}, path)
    del found
    into = {name: np.empty_like(array) for name, array in tensors.items()}
    for _ in range(times):
        started = time.perf_counter()
        loaded = load_file(path)
        peer.append(time.perf_counter() - started)
        started = time.perf_counter()
        store.load(step, into=into)
        ours.append(time.perf_counter() - started)
        for name, array in loaded.items():
            assert array.tobytes() == into[name].tobytes(), name
        del loaded
    path.unlink()
    return {"ours": ours, "safetensors": peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="for checkpoints; removed at the end")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=24, help="of a block")
    parser.add_argument("--every", type=int, default=10, help="steps between two saves of a block")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each kind")
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--text", default="")
    parser.add_argument("--restores", type=int, default=5)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    training = Training(args)
    for _ in range(3):
        training.one()
    rows = [block(training, None, args)]
    before = peak_mb()
    with CheckpointStore(args.folder / "store", keep=2) as store:
        training.save(store)
        first = store.wait()[0]
        rows.append(block(training, store, args))
        extra = peak_mb() - before
        peer = [peer_save(training, args.folder)]
        for _ in range(args.rounds - 1):
            rows += [block(training, None, args), block(training, store, args)]
            peer.append(peer_save(training, args.folder))
        loads = restore(training, store, args.folder, args.restores)
    shutil.rmtree(args.folder)
    with_saves = [row for row in rows if row["with"]]
    plain = [row["seconds"] for row in rows if not row["with"]]
    result: dict = {"peer_save_s": peer, "first_s": first.seconds, "first_bytes": first.bytes, "plain_s": plain}
    result |= {"save_s": [row["seconds"] for row in with_saves], "saves": with_saves[0]["saves"], "loads": loads}
    for name in ("blocked", "background", "bytes", "base"):
        result[name] = [value for row in with_saves for value in row[name]]
    result |= {"raw_bytes": with_saves[0]["raw"], "extra_mb": extra, "resident_mb": resident_mb()}
    result["step_s"] = statistics.median(plain) / args.steps
    result["timeline"] = {"plain": rows[0]["steps"], "saving": with_saves[0]["steps"], "every": args.every}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
