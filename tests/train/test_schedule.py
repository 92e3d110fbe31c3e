"""Learning rates are those of Hugging Face's schedulers of the same names, step by step."""

import pytest
import torch
from transformers import get_scheduler
from transformers.optimization import get_wsd_schedule

from mindspeed_ms.config.train import ScheduleConfig
from mindspeed_ms.train.schedule import make_schedule

PEAK = 3e-4


def theirs(steps, make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def ours(steps, **settings):
    schedule = make_schedule(ScheduleConfig(**settings), PEAK, steps)
    return [schedule(step) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 1, 17])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"name": "constant"}, "constant_with_warmup"),
        ({"name": "linear"}, "linear"),
        ({"name": "cosine"}, "cosine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_rates_are_hugging_faces(settings, name, warmup):
    steps = 100
    expected = theirs(steps, lambda o: get_scheduler(name, o, num_warmup_steps=warmup, num_training_steps=steps))
    assert ours(steps, warmup_steps=warmup, **settings) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_a_cosine_with_a_floor_is_hugging_faces():
    expected = theirs(
        50,
        lambda o: get_scheduler("cosine_with_min_lr", o, 5, 50, scheduler_specific_kwargs={"min_lr_rate": 0.1}),
    )
    assert ours(50, name="cosine", warmup_steps=5, min_ratio=0.1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("shape", "decay"), [("linear", "linear"), ("cosine", "cosine"), ("sqrt", "1-sqrt")])
def test_warmup_stable_decay_is_hugging_faces(shape, decay):
    expected = theirs(
        60,
        lambda o: get_wsd_schedule(
            o, num_warmup_steps=5, num_stable_steps=35, num_decay_steps=20, decay_type=decay, min_lr_ratio=0.1
        ),
    )
    found = ours(60, name="wsd", warmup_steps=5, decay_steps=20, decay=shape, min_ratio=0.1)
    # Theirs begins the warmup at the floor of the decay; all of ours begin at 0.
    assert found[5:] == pytest.approx(expected[5:], rel=1e-12)
    assert found[:5] == pytest.approx([PEAK * step / 5 for step in range(5)])


def test_after_its_end_a_decay_stays_where_it_came_to():
    schedule = make_schedule(ScheduleConfig(name="linear", decay_steps=10, min_ratio=0.25), PEAK, 30)
    assert schedule(10) == schedule(29) == schedule(1000) == pytest.approx(PEAK / 4)


def test_without_a_length_wsd_decays_in_the_last_tenth():
    rates = ours(200, name="wsd")
    assert rates[180] == PEAK > rates[181]
    assert rates[199] == pytest.approx(PEAK / 20)
