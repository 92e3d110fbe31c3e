"""What else a step may be asked for: state on disk, mixed precision, recomputation, other optimizers and bodies."""

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model

from mindspeed_ms.errors import ConfigError, TrainError

LR = 2e-3


@pytest.fixture(scope="module")
def spec():
    return make_spec(num_hidden_layers=1)


@pytest.fixture(scope="module")
def weights(spec):
    return drawn_weights(spec)


def make_step(spec, weights, optimizer=None, amp="O0", recompute=False, **options):
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.precision import apply_amp
    from mindspeed_ms.train.step import TrainStep

    model = our_model(spec, weights)
    if recompute:
        for layer in model.model.layers:
            layer.recompute()
    network = apply_amp(CausalLMLoss(model), amp)
    return TrainStep(network, optimizer or AdamW(eps=1e-4), LR, max_grad_norm=1.0, **options)


def run(step, steps):
    return [step(batch) for batch in steps], {name: value.copy() for name, value in step.tensors().items()}


STEPS = [make_batch(0), [make_batch(1), make_batch(2)], make_batch(3)]


@pytest.fixture(scope="module")
def plain(spec, weights):
    return run(make_step(spec, weights), STEPS)


def test_state_on_disk_changes_no_bit(spec, weights, plain, tmp_path, monkeypatch):
    from mindspeed_ms.train import offload

    monkeypatch.setattr(offload, "GROUP_BYTES", 20_000)  # several groups, some of one tensor
    step = make_step(spec, weights, offload=tmp_path / "state")
    results, tensors = run(step, STEPS)
    assert [(r.loss, r.grad_norm) for r in results] == [(r.loss, r.grad_norm) for r in plain[0]]
    assert len(list((tmp_path / "state").glob("*-m.state"))) > 3
    for name, value in plain[1].items():
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)
    other = make_step(spec, drawn_weights(spec, 5), offload=tmp_path / "other")
    other.load_tensors(tensors)
    for name, value in other.tensors().items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)


def test_state_that_finds_no_room_is_one_line(spec, weights, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainError, match=r"file/0000-m.state: optimizer state of .* GB cannot be put there"):
        make_step(spec, weights, offload=tmp_path / "file")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_levels_of_mixed_precision_round_and_train(spec, weights, plain, level):
    from mindspeed_ms.train.loss_scale import DynamicLossScale

    step = make_step(spec, weights, amp=level, loss_scale=DynamicLossScale(initial=1024.0))
    results, tensors = run(step, STEPS)
    for a, b in zip(results, plain[0], strict=True):
        assert a.loss != b.loss and a.loss == pytest.approx(b.loss, rel=3e-3)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=2e-2) and not a.skipped
    assert tensors.keys() == plain[1].keys()
    assert {value.dtype for value in tensors.values()} == {np.dtype(np.float32)}


def test_an_overflow_in_half_precision_lowers_the_scale_until_it_fits(spec, weights):
    from mindspeed_ms.train.loss_scale import DynamicLossScale

    step = make_step(spec, weights, amp="O3", loss_scale=DynamicLossScale(initial=2.0**24))
    results = [step(make_batch(1)) for _ in range(12)]
    skipped = [r.skipped for r in results]
    assert skipped[0] and not skipped[-1] and sorted(skipped, reverse=True) == skipped
    assert results[-1].loss_scale == 2.0 ** (24 - sum(skipped)) and step.skipped == sum(skipped)


def test_a_level_that_is_none_is_refused(spec, weights):
    with pytest.raises(ConfigError, match="amp: 'O4': expected one of O0, O1, O2, O3"):
        make_step(spec, weights, amp="O4")


def test_recomputed_layers_give_the_same_bits(spec, weights, plain):
    results, tensors = run(make_step(spec, weights, recompute=True), STEPS)
    assert [r.loss for r in results] == [r.loss for r in plain[0]]
    for name, value in plain[1].items():
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)


def test_reference_bodies_train_alike(spec, weights, plain, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_KERNELS", "reference")
    results, tensors = run(make_step(spec, weights), STEPS)
    np.testing.assert_allclose([r.loss for r in results], [r.loss for r in plain[0]], rtol=1e-5)
    for name, value in plain[1].items():
        np.testing.assert_allclose(tensors[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["lion", "sgd", "sgd with momentum", "adafactor"])
def test_other_optimizers_take_what_torch_would(spec, weights, name):
    """The operators are compared with PyTorch in tests/ops; here, that a step hands them the right things."""
    torch = pytest.importorskip("torch")
    from mindspeed_ms.train.optimizer import SGD, Adafactor, Lion

    ours = {
        "lion": Lion(weight_decay=0.1),
        "sgd": SGD(),
        "sgd with momentum": SGD(momentum=0.9, weight_decay=0.1),
        "adafactor": Adafactor(weight_decay=0.1),
    }[name]
    step = make_step(spec, weights, ours)
    before = {n: v.copy() for n, v in step.tensors().items()}
    result = step(make_batch(0))
    gradients = _gradients(spec, weights, make_batch(0))
    after = step.tensors()
    for parameter, gradient in gradients.items():
        p = torch.tensor(before[f"model.{parameter}"], dtype=torch.float64, requires_grad=True)
        p.grad = torch.from_numpy(gradient * min(1.0, 1.0 / (result.grad_norm + 1e-6)))
        decay = 0.1 if gradient.ndim == 2 else 0.0
        if name == "lion":
            with torch.no_grad():
                p.mul_(1 - LR * decay).sub_(LR * p.grad.sign())
        elif name == "adafactor":
            torch.optim.Adafactor([p], lr=LR, weight_decay=decay).step()
        else:
            momentum = ours.momentum
            torch.optim.SGD([p], lr=LR, momentum=momentum, weight_decay=decay if momentum else 0).step()
        difference = np.abs(after[f"model.{parameter}"] - p.detach().numpy())
        # where a gradient is all rounding its sign is chance
        limit = 1e-6 if name != "lion" else np.where(np.abs(gradient) < 1e-6, 3 * LR, 1e-6)
        assert (difference <= limit).all(), parameter


def _gradients(spec, weights, batch):
    from train_models import torch_loss, torch_model

    model = torch_model(spec, weights)
    loss, tokens = torch_loss(model, batch)
    (loss / tokens).backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters()}
