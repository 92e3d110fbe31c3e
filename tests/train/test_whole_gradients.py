"""The gradients that a step takes are the slopes of the loss, and those that nobody needs are not computed."""

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model

CHANGE = 0.01  # of the loss, forward and back: far above its rounding, far below where it bends


def test_each_kind_of_weight_has_the_slope_of_the_evaluated_loss():
    """Attention, gated layer, norms, embedding and head; evaluation takes another operator than training."""
    import mindspore as ms

    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import SGD
    from mindspeed_ms.train.step import TrainStep

    spec, batch, rate = make_spec(), make_batch(0), 100.0
    weights = drawn_weights(spec)
    trained, network = our_model(spec, weights), CausalLMLoss(our_model(spec, weights))
    TrainStep(CausalLMLoss(trained), SGD(), rate)(batch)
    gradients = {p.name: (weights[p.name].astype(np.float64) - p.asnumpy()) / rate for p in trained.get_parameters()}
    network.set_train(False)
    inputs = [ms.Tensor(column) for column in batch.values()]

    def loss():
        total, tokens = network(*inputs)
        return float(total.asnumpy()[0]) / float(tokens.asnumpy()[0])

    rng = np.random.default_rng(0)
    for parameter in network.get_parameters():
        value, gradient = parameter.asnumpy(), gradients[parameter.name]
        noise = rng.standard_normal(gradient.shape)
        for along in (gradient, gradient / np.linalg.norm(gradient) + noise / np.linalg.norm(noise)):
            direction = along / np.linalg.norm(along)
            expected = float((gradient * direction).sum())
            size = CHANGE / expected
            ends = []
            for sign in (1, -1):
                value[...] = weights[parameter.name] + sign * size * direction
                ends.append(loss())
            value[...] = weights[parameter.name]
            assert (ends[0] - ends[1]) / (2 * size) == pytest.approx(expected, rel=3e-3), parameter.name


def test_gradients_of_frozen_weights_are_not_computed():
    from mindspeed_ms.ops.native.build import op_times
    from mindspeed_ms.train.lora import LoraConfig, apply_lora
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import SGD
    from mindspeed_ms.train.step import TrainStep

    spec = make_spec()
    model = our_model(spec, drawn_weights(spec))
    layers = len(apply_lora(model, LoraConfig(rank=2, targets=["q_proj", "up_proj"])).wrapped)
    network = CausalLMLoss(model)
    step = TrainStep(network, SGD(), 1e-3)
    step(make_batch(0))
    before = op_times()
    step(make_batch(0))
    calls = {name: count - before.get(name, (0.0, 0))[1] for name, (_, count) in op_times().items()}
    assert layers == 4 and calls["DenseGradWeight"] == 2 * layers  # A and B of each, no weight of the model
    assert calls["Dense"] == 7 * spec.num_hidden_layers + 2 * layers
    assert calls["LinearCrossEntropyGradInput"] == 1 and not calls.get("LinearCrossEntropyGrad")
    for name in ("TokenEmbeddingGrad", "DenseGradBias"):
        assert not calls.get(name), name
