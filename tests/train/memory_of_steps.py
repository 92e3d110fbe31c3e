"""Started by test_peak_memory.py: makes steps of a model and prints what memory they took, in bytes, as JSON."""

import json
import sys

import numpy as np
from train_models import make_spec, our_model

import mindspeed_ms.train.offload
from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.optimizer import AdamW
from mindspeed_ms.train.step import TrainStep


def status(key: str) -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(key)).split()[1]) * 1024


def main(changes: str, rows: str, length: str, recompute: str, offload: str, saves: str) -> None:
    spec = make_spec(**json.loads(changes))
    draw = np.random.default_rng(0).standard_normal
    model = our_model(spec, {name: 0.02 * draw(shape, np.float32) for name, shape in spec.parameter_shapes().items()})
    if recompute == "recompute":
        for layer in model.model.layers:
            layer.recompute()
    mindspeed_ms.train.offload.GROUP_BYTES = 4 << 20
    step = TrainStep(CausalLMLoss(model), AdamW(), 1e-3, offload=offload or None)
    shape = int(rows), int(length)
    ids = np.random.default_rng(1).integers(0, spec.vocab_size, shape).astype(np.int32)
    places = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    before = status("VmRSS")
    for _ in range(2):
        assert not step({"input_ids": ids, "labels": ids, "position_ids": places}).skipped
    if saves:
        with CheckpointStore(saves) as store:
            for _ in range(3):  # the second and the third as differences
                store.save(step.step, step.tensors(), {})
                assert not step({"input_ids": ids, "labels": ids, "position_ids": places}).skipped
    print(json.dumps({"peak": status("VmHWM"), "before": before, "after": status("VmRSS")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
