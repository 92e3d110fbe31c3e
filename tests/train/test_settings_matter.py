"""Settings whose results are near each other are told apart by what they do inside."""

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model

from mindspeed_ms.train.optimizer import AdamW

BEYOND_HALF = 7e4  # float16 ends at 65504


def large_weight_of_a_product(weights):
    weights["model.layers.0.self_attn.v_proj.weight"][0, 0] = BEYOND_HALF


def large_stream_between_products(weights):
    weights["model.embed_tokens.weight"][:, 0] = BEYOND_HALF


def large_weight_of_a_norm(weights):
    weights["model.embed_tokens.weight"][:, 0] *= 1e-3  # so that the norm's output is small
    weights["model.layers.0.input_layernorm.weight"][0] = BEYOND_HALF


# MindSpore's levels: O1 puts matrix products in float16, O2 all but norms, O3 all.
FINITE = {
    "O0": (True, True, True),
    "O1": (False, True, True),
    "O2": (False, False, True),
    "O3": (False, False, False),
}


@pytest.mark.parametrize("level", FINITE)
def test_a_level_of_mixed_precision_puts_in_half_what_mindspore_says(level):
    import mindspore as ms

    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.precision import apply_amp

    spec = make_spec(num_hidden_layers=1)
    network = apply_amp(CausalLMLoss(our_model(spec, drawn_weights(spec))), level)
    network.set_train(False)
    inputs = [ms.Tensor(column) for column in make_batch(0, 1, 8).values()]
    assert {str(parameter.dtype) for parameter in network.get_parameters()} == {"Float32"}
    found = []
    for enlarge in (large_weight_of_a_product, large_stream_between_products, large_weight_of_a_norm):
        weights = drawn_weights(spec)
        enlarge(weights)
        for parameter in network.get_parameters():
            parameter.asnumpy()[...] = weights[parameter.name]
        found.append(bool(np.isfinite(network(*inputs)[0].asnumpy()[0])))
    assert tuple(found) == FINITE[level]


def test_weight_decay_is_for_matrices_whose_names_are_not_excepted():
    optimizer = AdamW(weight_decay=0.1, no_decay=("*embed*", "lm_head.*"))
    shapes = make_spec().parameter_shapes()
    spared = [name for name, shape in shapes.items() if not optimizer.decays(name, shape)]
    assert spared == [name for name in shapes if "norm" in name or name.startswith(("model.embed_tokens", "lm_head"))]
