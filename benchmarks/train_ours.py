"""One process of ours: the same steps as train_torch.py, on MindSpore's CPU back end in graph mode.

`python benchmarks/train_ours.py CASE [--graph-kernel]`; the last line is one JSON object.
"""

import mindspore as ms
from train_common import BETAS, CLIP, DECAY, EPS, arguments, batches, finish, load, resident_mb, time_steps

from mindspeed_ms.models import build_model
from mindspeed_ms.ops.native.build import op_times
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.optimizer import AdamW
from mindspeed_ms.train.step import TrainStep


def main() -> None:
    args = arguments(__doc__)
    base = resident_mb()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    if args.graph_kernel:
        ms.set_context(enable_graph_kernel=True)
    spec, weights, rate = load(args.case, args.model)
    model = build_model(spec)
    for name, parameter in model.parameters_and_names():
        parameter.set_data(ms.Tensor(weights(name)))
    optimizer = AdamW(betas=BETAS, eps=EPS, weight_decay=DECAY)
    step = TrainStep(CausalLMLoss(model), optimizer, rate, max_grad_norm=CLIP)
    positions = None
    data = []
    for ids, labels in batches(args.case, spec, args.model, args.steps + 2):
        if positions is None:
            positions = (0 * ids + range(ids.shape[1])).astype("int32")
        data.append((ids, labels, positions))
    before: dict = {}

    def one(number: int) -> float:
        if number == 2:
            before.update(op_times())
        return step(data[number]).loss

    result = time_steps(one, args.steps)
    spent = {name: (s - before.get(name, (0, 0))[0]) * 1e3 / args.steps for name, (s, _) in op_times().items()}
    result["operators_ms"] = {name: round(ms, 2) for name, ms in sorted(spent.items(), key=lambda kv: -kv[1]) if ms > 0}
    finish(result, base)


if __name__ == "__main__":
    main()
