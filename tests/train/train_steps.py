"""Steps of the tiny Llama, and one compiled step that tests share, each from its beginning."""

import numpy as np
from train_models import drawn_weights, make_batch, make_spec, our_model

# An eps of the size of the smallest gradients: where they are all rounding, the sign that Adam takes is chance.
LR, DECAY, EPS = 2e-3, 0.1, 1e-4
# of one shape; the third step takes two micro-batches
STEPS = [make_batch(0), make_batch(3), [make_batch(1), make_batch(2)]]


def make_step(spec, weights, amp="O0", recompute=False, schedule=LR, **options):
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.precision import apply_amp
    from mindspeed_ms.train.step import TrainStep

    model = our_model(spec, weights)
    if recompute:
        for layer in model.model.layers:
            layer.recompute()
    optimizer = AdamW(betas=(0.9, 0.95), eps=EPS, weight_decay=DECAY)
    return TrainStep(apply_amp(CausalLMLoss(model), amp), optimizer, schedule, **options)


def run(step, steps):
    """What each step answered, and all tensors after it."""
    return [(step(batch), {name: value.copy() for name, value in step.tensors().items()}) for batch in steps]


class SharedStep:
    """A step that is compiled once; what a test may set is an input of its graphs."""

    def __init__(self):
        self.spec = make_spec(num_hidden_layers=1)
        self.weights = drawn_weights(self.spec)
        self.step = make_step(self.spec, self.weights)
        self.begin = {name: value.copy() for name, value in self.step.tensors().items()}

    def fresh(self, schedule=LR, max_grad_norm=None, loss_scale=None):
        """The step as it was made, with other settings."""
        step = self.step
        step.schedule = schedule if callable(schedule) else lambda made: schedule
        step.max_grad_norm, step.loss_scale = max_grad_norm, loss_scale
        step.load_tensors(self.begin)
        step.load_state_dict({"step": 0, "applied": 0, "skipped": 0})
        return step


def same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
