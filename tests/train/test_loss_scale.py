"""The dynamic loss scale follows PyTorch's GradScaler."""

import pytest
import torch

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.train.loss_scale import DynamicLossScale


def test_it_grows_and_backs_off_as_torchs_update_scale_does():
    finite = torch.rand(400, generator=torch.Generator().manual_seed(1)) > 0.15
    scale, tracker = torch.tensor([4096.0]), torch.tensor([0], dtype=torch.int32)
    ours = DynamicLossScale(initial=4096, factor=2, window=5)
    for good in finite.tolist():
        torch._amp_update_scale_(scale, tracker, torch.tensor([0.0 if good else 1.0]), 2.0, 0.5, 5)
        scale.clamp_(1.0, 2.0**24)
        ours.update(good)
        assert ours.value == scale.item()


def test_it_stays_within_its_bounds():
    scale = DynamicLossScale(initial=2, window=1)
    for _ in range(100):
        scale.update(False)
    assert scale.value == 1
    for _ in range(100):
        scale.update(True)
    assert scale.value == 2.0**24


def test_it_goes_on_from_what_it_was():
    first, second = DynamicLossScale(window=3), DynamicLossScale(window=3)
    for finite in (True, False, True, True):
        first.update(finite)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        scale.update(True)
    assert first.value == second.value == 65536.0


@pytest.mark.parametrize("settings", [{"initial": 0}, {"initial": 2.0**30}, {"factor": 1}, {"window": 0}])
def test_what_makes_no_scale_is_refused(settings):
    with pytest.raises(ConfigError, match=f"loss scale: {next(iter(settings))} is"):
        DynamicLossScale(**settings)


@pytest.mark.parametrize("state", [{}, {"value": 0.0, "good": 0}, {"value": 8.0, "good": 1000}, {"value": "x"}])
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises(ConfigError, match="saved"):
        DynamicLossScale().load_state_dict(state)
