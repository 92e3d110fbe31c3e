"""What else a step may be asked for: state on disk, mixed precision, recomputation, other optimizers and bodies."""

import numpy as np
import pytest
from train_models import drawn_weights
from train_steps import STEPS, make_step, run, same_tensors

from mindspeed_ms.errors import ConfigError, TrainError


def test_state_on_disk_changes_no_bit(shared, plain, tmp_path, monkeypatch):
    from mindspeed_ms.train import offload

    monkeypatch.setattr(offload, "GROUP_BYTES", 20_000)  # several groups, some of one tensor
    step = make_step(shared.spec, shared.weights, max_grad_norm=1.0, offload=tmp_path / "state")
    found = run(step, STEPS)
    assert [(r.loss, r.grad_norm) for r, _ in found] == [(r.loss, r.grad_norm) for r, _ in plain]
    assert len(list((tmp_path / "state").glob("*-m.state"))) > 3
    same_tensors(found[-1][1], plain[-1][1])
    other = make_step(shared.spec, drawn_weights(shared.spec, 5), offload=tmp_path / "other")
    other.load_tensors(found[-1][1])
    same_tensors(other.tensors(), found[-1][1])


def test_state_that_finds_no_room_is_one_line(shared, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainError, match=r"file/0000-m.state: optimizer state of .* GB cannot be put there"):
        make_step(shared.spec, shared.weights, offload=tmp_path / "file")


def rounded(result, exact):
    assert result.loss != exact.loss and result.loss == pytest.approx(exact.loss, rel=3e-3)
    assert result.grad_norm == pytest.approx(exact.grad_norm, rel=2e-2) and not result.skipped


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_levels_of_mixed_precision_round_and_train(shared, plain, level):
    """O3 is below, with an overflow; test_settings_matter.py tells the levels apart."""
    step = make_step(shared.spec, shared.weights, level, loss_scale=1024.0, max_grad_norm=1.0)
    ((result, tensors),) = run(step, STEPS[:1])
    rounded(result, plain[0][0])
    assert tensors.keys() == plain[0][1].keys()
    assert {value.dtype for value in tensors.values()} == {np.dtype(np.float32)}


def test_an_overflow_in_half_precision_lowers_the_scale_until_it_fits(shared, plain):
    from mindspeed_ms.train.loss_scale import DynamicLossScale

    step = make_step(shared.spec, shared.weights, "O3", loss_scale=DynamicLossScale(initial=2.0**24))
    results = []
    while not results or results[-1].skipped and len(results) < 20:
        results.append(step(STEPS[0]))
    skipped = len(results) - 1
    assert skipped and not results[-1].skipped and step.skipped == skipped
    assert results[-1].loss_scale == 2.0 ** (24 - skipped)
    rounded(results[-1], plain[0][0])


def test_a_level_that_is_none_is_refused(shared):
    with pytest.raises(ConfigError, match="amp: 'O4': expected one of O0, O1, O2, O3"):
        make_step(shared.spec, shared.weights, "O4")


def test_recomputed_layers_give_the_same_bits(shared, plain):
    found = run(make_step(shared.spec, shared.weights, recompute=True, max_grad_norm=1.0), STEPS[:2])
    assert [r.loss for r, _ in found] == [r.loss for r, _ in plain[:2]]
    same_tensors(found[1][1], plain[1][1])


def test_reference_bodies_train_alike(shared, plain, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_KERNELS", "reference")
    found = run(make_step(shared.spec, shared.weights, max_grad_norm=1.0), STEPS[:2])
    np.testing.assert_allclose([r.loss for r, _ in found], [r.loss for r, _ in plain[:2]], rtol=1e-5)
    for name, value in plain[1][1].items():
        np.testing.assert_allclose(found[1][1][name], value, atol=1e-5, err_msg=name)


class Drawn:
    """A small network with a matrix and a vector, an input, and PyTorch's gradients of both."""

    def __init__(self):
        import torch

        rng = np.random.default_rng(0)
        self.x, self.weight, self.bias = (
            rng.normal(0, 0.5, shape).astype(np.float32) for shape in ((7, 12), (8, 12), (8,))
        )
        tensors = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (self.weight, self.bias)]
        loss = torch.nn.functional.linear(torch.from_numpy(self.x).double(), *tensors).square().sum()
        self.gradients = [x.numpy() for x in torch.autograd.grad(loss, tensors)]

    def network(self):
        import mindspore as ms
        from mindspore import nn

        class Squares(nn.Cell):
            def __init__(self, weight, bias):
                super().__init__()
                self.fc = nn.Dense(*weight.shape[::-1], ms.Tensor(weight), ms.Tensor(bias))

            def construct(self, x):
                return self.fc(x).square().sum()

        ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
        return Squares(self.weight, self.bias)


@pytest.fixture(scope="module")
def drawn():
    pytest.importorskip("torch")
    return Drawn()


@pytest.mark.parametrize("name", ["lion", "sgd", "sgd with momentum", "adafactor"])
def test_other_optimizers_take_what_torch_would(drawn, name):
    """The operators are compared with PyTorch in tests/ops; here, that a step hands them the right things."""
    import torch

    from mindspeed_ms.train.optimizer import SGD, Adafactor, Lion
    from mindspeed_ms.train.step import TrainStep

    rate, clip = 2e-2, 1.0
    ours = {
        "lion": Lion(weight_decay=0.1),
        "sgd": SGD(),
        "sgd with momentum": SGD(momentum=0.9, weight_decay=0.1),
        "adafactor": Adafactor(weight_decay=0.1),
    }[name]
    step = TrainStep(drawn.network(), ours, rate, max_grad_norm=clip, columns=("x",))
    result = step({"x": drawn.x})
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in drawn.gradients))
    assert result.clipped and result.grad_norm == pytest.approx(norm, rel=1e-5)
    for key, gradient in zip(("weight", "bias"), drawn.gradients, strict=True):
        before = getattr(drawn, key)
        p = torch.tensor(before, dtype=torch.float64, requires_grad=True)
        p.grad = torch.from_numpy(gradient * clip / (norm + 1e-6))
        decay = 0.1 if gradient.ndim == 2 else 0.0
        if name == "lion":
            with torch.no_grad():
                p.mul_(1 - rate * decay).sub_(rate * p.grad.sign())
        elif name == "adafactor":
            torch.optim.Adafactor([p], lr=rate, weight_decay=decay).step()
        else:
            momentum = ours.momentum
            torch.optim.SGD([p], lr=rate, momentum=momentum, weight_decay=decay if momentum else 0).step()
        np.testing.assert_allclose(step.tensors()[f"model.fc.{key}"], p.detach().numpy(), atol=1e-6, err_msg=key)
