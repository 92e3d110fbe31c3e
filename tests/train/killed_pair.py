"""Started by msrun in two processes: each trains on its own batches, and goes on from the newest commit of both."""

import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore.communication import GlobalComm, get_rank, init
from train_models import drawn_weights, make_batch, make_spec, our_model

STEPS = 12


def main(out: str) -> None:
    from mindspeed_ms.checkpoint.ranks import shard
    from mindspeed_ms.checkpoint.store import CheckpointStore
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    init()
    rank, folder = get_rank(), Path(out)
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()))
    spec = make_spec(num_hidden_layers=1)
    network = CausalLMLoss(our_model(spec, drawn_weights(spec)))
    group = GlobalComm.WORLD_COMM_GROUP
    step = TrainStep(network, AdamW(eps=1e-4), lambda made: 1e-3 * (made + 1), max_grad_norm=0.5, group=group)
    with CheckpointStore(folder / "checkpoints", rank=rank, world=2, timeout=120) as store:
        found = store.load()
        if found is not None:
            # Each rank saves a half of what both have, and reads both halves.
            step.load_tensors(found.tensors)
            step.load_state_dict(found.state["step"])
        while step.step < STEPS:
            result = step([make_batch(4 * step.step + 2 * part + rank) for part in range(2)])
            with open(folder / f"rank{rank}.txt", "a") as file:
                file.write(f"{result.step} {result.loss.hex()}\n")
            if step.step % 2 == 0:
                tensors = step.tensors()
                mine = shard({name: array.nbytes for name, array in tensors.items()}, rank, 2)
                store.save(step.step, {name: tensors[name] for name in mine}, {"step": step.state_dict()})
        store.wait()
    np.savez(folder / f"rank{rank}.npz", **step.tensors())


if __name__ == "__main__":
    main(sys.argv[1])
