"""A skipped step says where it went bad, and a bad value anywhere leaves every bit as it was."""

from contextlib import contextmanager

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model
from train_runs import make_data, read_lines, settings

from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.run import train


@pytest.fixture(scope="module")
def step():
    """One step, and so one compilation, for all tests; each puts back what it changed."""
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    spec = make_spec()
    return TrainStep(CausalLMLoss(our_model(spec, drawn_weights(spec))), AdamW(), 1e-3)


@contextmanager
def changed(step, name, change):
    value = step.tensors()[f"model.{name}"]
    before = value.copy()
    change(value)
    try:
        yield
    finally:
        value[...] = before


def why(step, batch):
    """The reason of a step that is skipped, which changes nothing."""
    from mindspeed_ms.train.guard import where_bad

    before = {name: value.copy() for name, value in step.tensors().items()}
    result = step(batch)
    assert result.skipped and step.applied == 0
    for name, value in step.tensors().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    batches = batch if isinstance(batch, list) else [batch]
    return [where_bad(step, result, one) for one in batches]


def test_a_weight_that_is_not_a_number_is_named(step):
    def spoil(value):
        value[3, 4] = np.nan

    with changed(step, "model.layers.1.mlp.up_proj.weight", spoil):
        assert why(step, make_batch(0)) == ["weight model.layers.1.mlp.up_proj.weight is not finite"]


# Every weight is finite and the layers before give what they gave, so the first that is bad is known.
EXPLODING = {
    "model.layers.0.self_attn.v_proj.weight": "model.layers.0",
    "model.layers.1.self_attn.v_proj.weight": "model.layers.1",
    "model.norm.weight": "model.norm",
    "lm_head.weight": "lm_head",
}


@pytest.mark.parametrize("name", EXPLODING)
def test_the_first_layer_whose_output_overflows_is_named(step, name):
    def enlarge(value):
        value[...] = np.sign(value) * np.float32(3e38)

    with changed(step, name, enlarge):
        (found,) = why(step, make_batch(0))
    assert found.startswith(f"the output of {EXPLODING[name]} is not finite (largest magnitude before it ")
    assert float(found.split()[-1].rstrip(")")) < 100


def test_where_the_loss_is_finite_a_gradient_is_named(step):
    step.loss_scale = 3e38
    try:
        (found,) = why(step, make_batch(0))
    finally:
        step.loss_scale = None
    bad = [name for name, square in zip(step.trained, step.squares, strict=True) if not np.isfinite(square)]
    assert found == f"the gradient of {bad[-1]} is not finite ({len(bad)} of {len(step.trained)} gradients are not)"


def test_a_batch_without_a_label_is_no_failure_of_a_layer(step):
    batch = make_batch(0)
    batch["labels"][:] = -100
    assert why(step, batch) == ["no token to learn in the batch"]


def test_of_several_micro_batches_the_one_that_went_bad_is_looked_into(step):
    def enlarge(value):
        value[:, 7] = 3e38

    def only_token_5(value):
        value[:, 7] = np.arange(len(value)) == 5

    good, bad = make_batch(0), make_batch(1)
    good["input_ids"][good["input_ids"] == 5] = 6
    bad["input_ids"][0, 0] = 5
    name = "model.layers.0.self_attn.v_proj.weight"
    with changed(step, "model.embed_tokens.weight", only_token_5), changed(step, name, enlarge):
        assert why(step, bad)[0].startswith("the output of model.layers.0 is not finite")
        found = next(text for text in why(step, [good, bad]) if text)  # as the loop takes it
    assert found.startswith("the output of model.layers.0 is not finite")


def test_a_bad_number_in_the_data_of_a_users_network_skips_the_step():
    """The data sets hold token ids alone; a network of the user's own may take floats."""
    import mindspore as ms
    from mindspore import nn

    from mindspeed_ms.train.guard import where_bad
    from mindspeed_ms.train.optimizer import SGD
    from mindspeed_ms.train.step import TrainStep

    class Regression(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(4, 2, has_bias=False)

        def construct(self, x):
            return self.fc(x).mean()

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    step = TrainStep(Regression(), SGD(), 0.5, columns=("x",))
    before = step.tensors()["model.fc.weight"].copy()
    bad = {"x": np.full((3, 4), np.nan, np.float32)}
    result = step(bad)
    assert result.skipped and where_bad(step, result, bad).startswith("the gradient of fc.weight is not finite")
    np.testing.assert_array_equal(step.tensors()["model.fc.weight"], before)
    assert not step({"x": np.ones((3, 4), np.float32)}).skipped
    # the mean of two outputs, each a sum of its weights: every weight's gradient is a half
    np.testing.assert_allclose(step.tensors()["model.fc.weight"], before - 0.25, atol=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def exploding(data, out, rate):
    values = settings(data, out, optimizer__learning_rate=rate, guard={"max_skipped": 2})
    with pytest.raises(TrainError) as error:
        train(TrainConfig.parse(values))
    return str(error.value)


def test_an_explosion_is_told_with_its_step_its_layer_and_the_rows_that_it_met(data, tmp_path):
    error = exploding(data, tmp_path / "run", 1e10)
    assert error.startswith("2 steps in a row, from step 2 on, were not finite: the output of model.layers.0 is not")
    skips = read_lines(tmp_path / "run", "skip")
    assert [skip["step"] for skip in skips] == [2, 3]
    loader = BucketLoader(data / "set", batch_size=4, seed=3, tensors=False)
    rows = [[int(row) for row in batch.ids] for _, batch in zip(range(3), loader, strict=False)]
    loader.close()
    assert [skip["samples"] for skip in skips] == [[{"length": 16, "rows": ids}] for ids in rows[1:]]


def test_a_network_that_an_explosion_has_killed_ends_the_run(data, tmp_path):
    error = exploding(data, tmp_path / "run", 1e4)
    assert "no gradient has reached any weight from step 2 on (loss " in error
