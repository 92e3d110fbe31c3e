"""A step that pauses between micro-batches goes on to the same bits, and all that a commit holds has a part in them."""

from dataclasses import replace

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model
from train_steps import EPS, make_step, same_tensors

from mindspeed_ms.errors import ConfigError, TrainError
from mindspeed_ms.train.accumulate import Paused
from mindspeed_ms.train.build import vary_dropout
from mindspeed_ms.train.lora import LoraConfig, apply_lora
from mindspeed_ms.train.loss import CausalLMLoss
from mindspeed_ms.train.loss_scale import DynamicLossScale
from mindspeed_ms.train.optimizer import AdamW
from mindspeed_ms.train.precision import apply_amp
from mindspeed_ms.train.step import TrainStep

STEPS = [[make_batch(3 * number + part) for part in range(3)] for number in range(4)]


def adapters(seed=0):
    """A step with all that there is: adapters, dropout, float16, a scale that changes, a rate that changes."""
    spec = make_spec(num_hidden_layers=1)
    model = our_model(spec, drawn_weights(spec))
    apply_lora(model, LoraConfig(rank=2, alpha=8, dropout=0.4, targets=["q_proj", "v_proj"]), seed=seed)
    network = apply_amp(CausalLMLoss(model), "O2")
    scale = DynamicLossScale(initial=2.0**10, window=2)
    step = TrainStep(network, AdamW(eps=EPS), lambda made: 1e-2 * (made + 1), max_grad_norm=1.0, loss_scale=scale)
    vary_dropout(step, model, 3)
    return step


def pausing(after):
    """Says once that it is time, before micro-batch `after`."""
    asked = iter(range(1, 100))
    return lambda: next(asked) == after


def copy(step):
    return {name: value.copy() for name, value in step.tensors().items()}, step.state_dict()


def made(result):
    """What a step answers, without what the clock decides."""
    return replace(result, seconds=0.0, compiled=())


def go(step, steps):
    return [made(step(batches)) for batches in steps]


def pause(step, batches, after):
    step.pause = pausing(after)
    with pytest.raises(Paused) as paused:
        step(batches)
    step.pause = lambda: False
    assert paused.value.done == step.pending == after
    return copy(step)


def load(step, tensors, state):
    step.load_tensors(tensors)
    step.load_state_dict(state)
    return step


@pytest.fixture(scope="module")
def step():
    return adapters()


@pytest.fixture(scope="module")
def begin(step):
    """A copy of the step's beginning, and what it answers and holds after all steps."""
    saved = copy(step)
    return saved, go(step, STEPS), copy(step)


@pytest.mark.parametrize("after", [1, 2])
def test_a_step_that_has_paused_goes_on_to_the_same_bits(step, begin, after):
    start, answers, end = begin
    load(step, *start)
    found = go(step, STEPS[:2])
    middle = pause(step, STEPS[2], after)
    # other values everywhere, as in a process that has just begun
    load(step, *start)
    go(step, STEPS[3:])
    load(step, *middle)
    found += go(step, STEPS[2:])
    assert found == answers
    same_tensors(step.tensors(), end[0])
    assert step.state_dict() == end[1]


def test_without_a_process_in_between_it_goes_on_as_well_and_may_pause_again(step, begin):
    start, answers, end = begin
    load(step, *start)
    step.pause = lambda: True
    for number in (1, 2):
        with pytest.raises(Paused):
            step(STEPS[0])
        assert step.pending == number
    found = [made(step(STEPS[0]))]
    step.pause = lambda: False
    assert found + go(step, STEPS[1:]) == answers
    same_tensors(step.tensors(), end[0])


@pytest.mark.parametrize("offload", [False, True])
def test_a_new_step_takes_over_what_another_has_summed_up(shared, tmp_path, offload):
    options = {"offload": tmp_path / "first"} if offload else {}
    whole = make_step(shared.spec, shared.weights, **options)
    answers = go(whole, STEPS[:2])
    load(whole, *copy(make_step(shared.spec, shared.weights)))
    go(whole, STEPS[:1])
    tensors, state = pause(whole, STEPS[1], 2)
    assert {f"gradient.{name}" for name in whole.trained} | {"totals"} < tensors.keys()
    if offload:
        options = {"offload": tmp_path / "second"}
    other = load(make_step(shared.spec, drawn_weights(shared.spec, seed=9), **options), tensors, state)
    assert go(other, STEPS[1:2]) == answers[1:]
    assert "totals" not in other.tensors()


# What decides the next loss, and how it would be without its part in the commit.
PARTS = {
    "weights": lambda tensors, state: [tensors[name].fill(0.01) for name in tensors if "lora_B" in name],
    "frozen weights": lambda tensors, state: tensors["model.lm_head.weight"].fill(0),
    "first moments": lambda tensors, state: [x.fill(0) for name, x in tensors.items() if name.startswith(FIRST)],
    "second moments": lambda tensors, state: [x.fill(1) for name, x in tensors.items() if name.startswith(SECOND)],
    "gradients": lambda tensors, state: [x.fill(0) for name, x in tensors.items() if name.startswith("gradient.")],
    "totals": lambda tensors, state: tensors["totals"].fill(0),
    "dropout seed": lambda tensors, state: tensors["model.dropout_seed"].fill(9),
    "micro-batches done": lambda tensors, state: state.update(pending=1),
    "steps": lambda tensors, state: state.update(step=0),
    "updates": lambda tensors, state: state.update(applied=0),
    "loss scale": lambda tensors, state: state["loss_scale"].update(value=1.0),
    "steps at this scale": lambda tensors, state: state["loss_scale"].update(good=1 - state["loss_scale"]["good"]),
}
FIRST, SECOND = "optimizer.m.", "optimizer.v."


@pytest.mark.parametrize("part", PARTS)
def test_each_part_of_a_commit_decides_what_comes(step, begin, part):
    start, answers, _ = begin
    load(step, *start)
    go(step, STEPS[:2])
    tensors, state = pause(step, STEPS[2], 2)
    PARTS[part](tensors, state)
    load(step, tensors, state)
    assert go(step, STEPS[2:]) != answers[2:]


def test_sums_and_their_number_come_together(step, begin):
    start = begin[0]
    load(step, *start)
    tensors, state = pause(step, STEPS[0], 2)
    whole = {name: value for name, value in tensors.items() if not name.startswith(("gradient.", "totals"))}
    with pytest.raises(TrainError, match="pending: 2 micro-batches, but the checkpoint does not hold sums"):
        load(step, whole, state)
    with pytest.raises(TrainError, match="pending: 0 micro-batches, but the checkpoint holds sums"):
        load(step, tensors, {**state, "pending": 0})
    with pytest.raises(TrainError, match="pending: -1 in the checkpoint, expected a whole number from 0"):
        load(step, tensors, {**state, "pending": -1})
    load(step, tensors, state)
    with pytest.raises(ConfigError, match="batch: 2 micro-batches, but 2 of this step are done already"):
        step(STEPS[0][:2])
    del tensors["totals"]
    with pytest.raises(TrainError, match="gradient.* is in the checkpoint only"):
        step.load_tensors(tensors)


def test_what_a_micro_batch_died_of_leaves_no_sums_to_go_on_from(step, begin):
    start, answers, _ = begin
    load(step, *start)
    with pytest.raises(ConfigError, match="no column"):
        step([*STEPS[0][:2], {}])
    assert step.pending == 0
    load(step, *start)
    assert go(step, STEPS[:1]) == answers[:1]


def test_values_are_loaded_into_the_memory_that_is_there(step, begin):
    """So that a large state is there once, not twice."""
    tensors, state = begin[2]
    room = step.room(tensors)
    assert room.keys() == tensors.keys()
    for name, array in room.items():
        array[...] = tensors[name]
    load(step, room, state)
    same_tensors(step.tensors(), tensors)
    for name, array in step.tensors().items():
        assert np.may_share_memory(array, room[name]), name
