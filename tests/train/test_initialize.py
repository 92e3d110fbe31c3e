"""Weights to begin with come of the name and the seed alone."""

import numpy as np
import pytest

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.train.initialize import initial_value, initialize

SPEC = DecoderSpec(
    model_type="qwen2", vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=1, num_key_value_heads=1, head_dim=32, qkv_bias=True,
)  # fmt: skip


def test_matrices_are_normal_norms_one_and_biases_zero():
    matrix = initial_value("model.layers.0.mlp.up_proj.weight", (500, 400), seed=0)
    assert matrix.dtype == np.float32
    assert matrix.std() == pytest.approx(0.02, rel=0.01) and abs(matrix.mean()) < 3e-4
    # the fourth moment of a normal distribution is three times the square of the second
    assert (matrix.astype(np.float64) ** 4).mean() == pytest.approx(3 * 0.02**4, rel=0.05)
    assert (initial_value("model.norm.weight", (7,), 0) == 1).all()
    assert (initial_value("model.layers.0.self_attn.q_proj.bias", (7,), 0) == 0).all()
    assert initial_value("a", (500, 400), 0, std=0.1).std() == pytest.approx(0.1, rel=0.01)


def test_another_name_or_seed_gives_independent_values():
    first = initial_value("a", (100, 100), 0).ravel()
    for other in (initial_value("b", (100, 100), 0), initial_value("a", (100, 100), 1)):
        assert abs(np.corrcoef(first, other.ravel())[0, 1]) < 0.05


def test_a_network_is_filled_by_name_whatever_else_it_holds():
    from mindspeed_ms.models import build_model

    models = [build_model(SPEC), build_model(SPEC.model_copy(update={"num_hidden_layers": 1}))]
    for model in models:
        initialize(model, seed=3)
    large, small = ({n: p.asnumpy() for n, p in model.parameters_and_names()} for model in models)
    assert set(large) == set(SPEC.parameter_shapes())
    assert all(np.array_equal(large[name], small[name]) for name in small)
    assert (large["model.layers.1.self_attn.k_proj.bias"] == 0).all()
