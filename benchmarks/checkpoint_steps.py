"""One process of benchmarks/checkpoint.py: blocks of training steps with and without saves, and MindSpore's own save.

`python benchmarks/checkpoint_steps.py MODEL.gguf FOLDER [options]`; the last line is one JSON object.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import mindspore as ms
import numpy as np
from checkpoint_parts import SAVE_AFTER
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from train_common import CLIP, DECAY, EPS

from mindspeed_ms.checkpoint.store import CheckpointStore, Saved
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
    """Steps and their seconds; with a store a save after the third step, and at the end the wait for it, if any."""
    steps: list[float] = []
    saved: list[Saved] = []
    done = 0
    for number in range(1, args.steps + 1):
        begun = time.perf_counter()
        training.one()
        if store and number == SAVE_AFTER:
            training.save(store)
        if store and (new := store.poll()):
            saved += new
            done = number
        steps.append(time.perf_counter() - begun)
    waiting = time.perf_counter()
    if store:
        saved += store.wait()
    waiting = time.perf_counter() - waiting
    row: dict = {"seconds": sum(steps) + waiting, "steps": steps, "wait": waiting, "done": done or args.steps}
    if store:
        row["saved"] = asdict(saved[0])
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
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60, help="of a block")
    parser.add_argument("--pairs", type=int, default=3, help="of blocks, one without a save and one with")
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
    plain, saving, peer = [block(training, None, args)], [], []
    before = peak_mb()
    with CheckpointStore(args.folder / "store", keep=2) as store:
        training.save(store)
        first = store.wait()[0]
        saving.append(block(training, store, args))
        extra = peak_mb() - before
        for number in range(1, args.pairs):  # A B B A A B ...
            peer.append(peer_save(training, args.folder))
            if number % 2:
                saving.append(block(training, store, args))
            plain.append(block(training, None, args))
            if not number % 2:
                saving.append(block(training, store, args))
        peer.append(peer_save(training, args.folder))
        loads = restore(training, store, args.folder, args.restores)
    shutil.rmtree(args.folder)
    result = {"plain": plain, "saving": saving, "peer_save_s": peer, "loads": loads, "extra_mb": extra}
    print(json.dumps({**result, "first": asdict(first)}))


if __name__ == "__main__":
    main()
