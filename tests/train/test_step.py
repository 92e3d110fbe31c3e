"""A training step is PyTorch's, whatever the micro-batches or the loss scale."""

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model, torch_loss, torch_model
from train_steps import DECAY, EPS, LR, make_step, same_tensors

from mindspeed_ms.errors import ConfigError, TrainError

torch = pytest.importorskip("torch")


def torch_steps(spec, weights, steps, clip):
    """(losses, gradient norms, weights) of PyTorch in float64; a step is a list of batches."""
    model = torch_model(spec, weights)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS)
    losses, norms = [], []
    for batches in steps:
        optimizer.zero_grad()
        sums = [torch_loss(model, batch) for batch in batches]
        loss = sum(s[0] for s in sums) / sum(s[1] for s in sums)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, {name: p.detach().numpy() for name, p in model.named_parameters()}


def check(step, steps, wanted):
    losses, norms, weights = wanted
    results = [step(batches if len(batches) > 1 else batches[0]) for batches in steps]
    np.testing.assert_allclose([r.loss for r in results], losses, rtol=1e-5)
    np.testing.assert_allclose([r.grad_norm for r in results], norms, rtol=1e-4)
    got = step.tensors()
    for name, value in weights.items():
        assert np.abs(got[f"model.{name}"] - value).max() <= 5e-6, name
    return results


def packed_documents_are_pytorchs(step, spec, weights):
    steps = [[make_batch(seed)] for seed in range(4)]
    results = check(step, steps, torch_steps(spec, weights, steps, 0.5))
    assert [r.clipped for r in results] == [r.grad_norm > 0.5 for r in results]
    assert [r.step for r in results] == [1, 2, 3, 4] and not any(r.skipped for r in results)


def test_steps_of_packed_documents_are_pytorchs(shared):
    packed_documents_are_pytorchs(shared.fresh(max_grad_norm=0.5), shared.spec, shared.weights)


def test_steps_of_tied_embeddings_are_pytorchs():
    spec = make_spec(num_hidden_layers=2, tie_word_embeddings=True)
    weights = drawn_weights(spec)
    packed_documents_are_pytorchs(make_step(spec, weights, max_grad_norm=0.5), spec, weights)


def test_micro_batches_of_any_shape_weigh_by_their_tokens(shared):
    steps = [[make_batch(1), make_batch(2, 2, 16), make_batch(3)], [make_batch(4), make_batch(5)], [make_batch(6)]]
    check(shared.fresh(max_grad_norm=1.0), steps, torch_steps(shared.spec, shared.weights, steps, 1.0))


def test_a_loss_scale_changes_nothing_but_rounding(shared):
    batches = make_batch(1), make_batch(2)
    found = []
    for scale in (None, 1024.0):
        step = shared.fresh(loss_scale=scale)
        found.append([step(batch) for batch in batches])
    for a, b in zip(*found, strict=True):
        assert (a.loss_scale, b.loss_scale) == (1.0, 1024.0)
        assert a.loss == b.loss and a.grad_norm == pytest.approx(b.grad_norm, rel=1e-6)


def test_a_step_that_is_not_finite_changes_no_bit_and_lowers_the_scale(shared):
    from mindspeed_ms.train.loss_scale import DynamicLossScale

    step = shared.fresh()
    step(make_batch(1)), step(make_batch(2))
    never_skipped = {name: value.copy() for name, value in step.tensors().items()}
    step = shared.fresh(loss_scale=DynamicLossScale(initial=2.0**20))
    step(make_batch(1))
    # what overflows is the scaled loss alone
    step.loss_scale.value = 3e38
    before = {name: value.copy() for name, value in step.tensors().items()}
    result = step(make_batch(1))
    assert result.skipped and step.skipped == 1 and np.isfinite(result.loss)
    same_tensors(step.tensors(), before)
    assert step.loss_scale.value == 1.5e38
    step.loss_scale.value = 1.0
    # the skipped step left no trace in the bias corrections either
    assert not step(make_batch(2)).skipped
    for name, value in never_skipped.items():
        np.testing.assert_allclose(step.tensors()[name], value, atol=1e-6, err_msg=name)


def test_a_batch_without_a_token_to_learn_is_skipped(shared):
    batch = make_batch(1)
    batch["labels"][:] = -100
    result = shared.fresh()(batch)
    assert result.skipped and result.tokens == 0 and np.isnan(result.loss)


def test_saved_state_goes_on_to_the_last_bit(shared):
    rates = lambda step: LR * (step + 1)  # noqa: E731
    one = shared.fresh(rates)
    for seed in range(4):
        one(make_batch(seed))
    wanted = {name: value.copy() for name, value in one.tensors().items()}
    first = shared.fresh(rates)
    first(make_batch(0)), first(make_batch(1))
    tensors, state = {k: v.copy() for k, v in first.tensors().items()}, first.state_dict()
    second = make_step(shared.spec, drawn_weights(shared.spec, seed=9), schedule=rates)
    second.load_tensors(tensors)
    second.load_state_dict(state)
    results = [second(make_batch(2)), second(make_batch(3))]
    assert [(r.step, r.learning_rate) for r in results] == [(3, 3 * LR), (4, 4 * LR)]
    same_tensors(second.tensors(), wanted)


def test_tensors_of_another_model_are_refused(shared):
    step = shared.fresh()
    tensors = dict(step.tensors())
    name, value = next(iter(tensors.items()))
    with pytest.raises(TrainError, match=f"{name}: shape "):
        step.load_tensors({**tensors, name: value[:-1]})
    with pytest.raises(TrainError, match="model.more: is in the checkpoint only"):
        step.load_tensors({**tensors, "model.more": value})
    del tensors[name]
    with pytest.raises(TrainError, match=f"{name}: is not in the checkpoint"):
        step.load_tensors(tensors)


def test_a_mode_without_graphs_is_refused(shared):
    import mindspore as ms

    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    network = CausalLMLoss(our_model(shared.spec, shared.weights))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        with pytest.raises(ConfigError, match="mode: a step is one graph"):
            TrainStep(network, AdamW(), LR)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def test_what_makes_no_step_is_refused(shared):
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import SGD, AdamW
    from mindspeed_ms.train.step import TrainStep

    with pytest.raises(ConfigError, match="max_grad_norm: 0: expected"):
        make_step(shared.spec, shared.weights, max_grad_norm=0)
    with pytest.raises(ConfigError, match="betas: 1: expected"):
        AdamW(betas=(1, 0.9))
    with pytest.raises(ConfigError, match="nesterov: true: expected a momentum above 0"):
        SGD(nesterov=True)
    frozen = our_model(shared.spec, shared.weights)
    for parameter in frozen.get_parameters():
        parameter.requires_grad = False
    with pytest.raises(ConfigError, match="none of its parameters requires a gradient"):
        TrainStep(CausalLMLoss(frozen), AdamW(), LR)
    with pytest.raises(
        ConfigError, match="batch: no column 'labels', expected input_ids, labels, position_ids; it has input_ids"
    ):
        shared.fresh()({"input_ids": np.zeros((1, 4), np.int32)})
    with pytest.raises(ConfigError, match="batch: an empty list"):
        shared.fresh()([])
