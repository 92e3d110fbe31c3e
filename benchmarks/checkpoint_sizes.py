"""One process of benchmarks/checkpoint.py: how much smaller than the state a save is, by what was trained, and how far.

`python benchmarks/checkpoint_sizes.py MODEL.gguf FOLDER [options]`; the last line is one JSON object.
"""

import argparse
import json
import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
from checkpoint_steps import Training

from mindspeed_ms.checkpoint.store import CheckpointStore

RATES = {"tuning": (1e-5, 0.999), "training": (6e-4, 0.95)}  # learning rate, beta2


def ratio(folder: Path, first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """Raw bytes over written bytes of a save after another; what comes back is compared bit by bit."""
    shutil.rmtree(folder, ignore_errors=True)
    with CheckpointStore(folder) as store:
        store.save(1, first, {})
        store.wait()
        store.save(2, second, {})
        saved = store.wait()[0]
        found = store.load(2)
        for name, array in second.items():
            assert found.tensors[name].tobytes() == array.tobytes(), name
    shutil.rmtree(folder)
    return saved.raw_bytes / saved.bytes


def copied(training: Training) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in training.step.tensors().items()}


def dense(args: argparse.Namespace, folder: Path, rate: float, beta2: float) -> dict[int, float]:
    """The ratio by the number of steps between base and delta."""
    training = Training(argparse.Namespace(**{**vars(args), "rate": rate, "beta2": beta2}))
    for _ in range(args.warm):
        training.one()
    base, made, found = copied(training), 0, {}
    for distance in args.distances:
        while made < distance:
            training.one()
            made += 1
        found[distance] = ratio(folder, base, training.step.tensors())
        print(json.dumps({"rate": rate, "beta2": beta2, "distance": distance, "ratio": found[distance]}), flush=True)
    return found


def sparse(args: argparse.Namespace, folder: Path) -> float:
    """Of every matrix, and of its moments, 5 % of the rows are those of ten steps later; a vector is not changed."""
    training = Training(args)
    for _ in range(args.warm):
        training.one()
    base = copied(training)
    for _ in range(10):
        training.one()
    later, rng = {name: np.array(array) for name, array in base.items()}, np.random.default_rng(5)
    rows: dict[str, np.ndarray] = {}
    for name, array in training.step.tensors().items():
        if array.ndim == 2:
            matrix = name.removeprefix("model.").removeprefix("optimizer.m.").removeprefix("optimizer.v.")
            count = array.shape[0]
            chosen = rows.setdefault(matrix, rng.choice(count, count // 20, replace=False))
            later[name][chosen] = array[chosen]
    return ratio(folder, base, later)


def frozen(args: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """The whole state after ten steps of the last of 30 layers alone; and of LoRA's adapters alone."""
    from mindspeed_ms.train.lora import LoraConfig, apply_lora

    def last_layer(model: ms.nn.Cell) -> None:
        for name, parameter in model.parameters_and_names():
            parameter.requires_grad = ".29." in name

    found = []
    for prepare in (last_layer, lambda model: apply_lora(model, LoraConfig(rank=8))):
        training = Training(args, prepare)
        training.one()
        base = copied(training)
        for _ in range(10):
            training.one()
        found.append(ratio(folder, base, training.step.tensors()))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="for checkpoints; removed at the end")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--warm", type=int, default=10, help="steps before the base")
    parser.add_argument("--distances", type=int, nargs="+", default=[10, 40, 100])
    args = parser.parse_args()
    args.rate, args.beta2, args.text = 1e-5, 0.999, ""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    result: dict = {name: dense(args, args.folder, *numbers) for name, numbers in RATES.items()}
    result["sparse5"] = sparse(args, args.folder)
    result["frozen"], result["lora"] = frozen(args, args.folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
