"""Started by msrun in two processes: each trains on its own batches, together they make one process's steps."""

import sys

import mindspore as ms
import numpy as np
from mindspore.communication import GlobalComm, get_rank, init
from train_models import drawn_weights, make_batch, make_spec, our_model


def main(out: str) -> None:
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    init()
    rank = get_rank()
    spec = make_spec(num_hidden_layers=1)
    network = CausalLMLoss(our_model(spec, drawn_weights(spec)))
    step = TrainStep(network, AdamW(eps=1e-4), 2e-3, max_grad_norm=0.5, group=GlobalComm.WORLD_COMM_GROUP)
    losses = [step(make_batch(2 * number + rank)).loss for number in range(3)]
    batches = [make_batch(10 + rank), make_batch(12 + rank)]
    losses.append(step(batches).loss)
    np.savez(f"{out}/rank{rank}.npz", losses=losses, **step.tensors())


if __name__ == "__main__":
    main(sys.argv[1])
