"""Pipeline stages: every operator and parameter in the one that its layer says."""

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.stages import find_stages, layer_of


def stage_of(graph, settings):
    return {name: sorted(found) for name, found in find_stages(graph, settings).parameters.items()}


def test_layers_go_to_stages_evenly_the_embedding_first_and_the_head_last(make_decoder):
    found = stage_of(make_decoder(layers=4), Settings(pipeline=2))
    assert found["embed.weight"] == [0] and found["head.weight"] == [1]
    assert [found[f"layers.{layer}.gate.weight"] for layer in range(4)] == [[0], [0], [1], [1]]


def test_uneven_and_interleaved_layers(make_decoder):
    found = stage_of(make_decoder(layers=4), Settings(pipeline=2, layers=(3, 1)))
    assert [found[f"layers.{layer}.down.weight"] for layer in range(4)] == [[0], [0], [0], [1]]
    found = stage_of(make_decoder(layers=4), Settings(pipeline=2, virtual=2))
    assert [found[f"layers.{layer}.down.weight"] for layer in range(4)] == [[0], [1], [0], [1]]


def test_every_operator_and_parameter_is_in_a_file_and_operators_with_weights_in_one(make_decoder):
    graph = make_decoder(layers=4)
    files, _ = make_strategies(graph, Settings(pipeline=4))
    names = [name for file in files for name in file.operators]
    assert set(graph.split_operators) <= set(names)
    assert sorted(name for file in files for name in file.layouts) == sorted(graph.parameters)
    for file in files:
        assert {layer_of(name) for name in file.layouts} <= {file.stage, None}
        assert f"MatMul_layers.{file.stage}.up.weight" in file.operators


def test_layers_that_are_not_those_of_the_graph_are_refused(make_decoder):
    with pytest.raises(ConfigError, match="3 parts do not divide the 4 layers of net.mindir; take one of 1, 2, 4"):
        find_stages(make_decoder(layers=4), Settings(pipeline=3))
    with pytest.raises(ConfigError, match=r"layers: \[3, 2\], expected 2 numbers with the sum 4"):
        find_stages(make_decoder(layers=4), Settings(pipeline=2, layers=(3, 2)))
