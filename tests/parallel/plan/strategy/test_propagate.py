"""The splits of graphs put together by hand: Megatron's column and row splits, and what cannot be carried on."""

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.propagate import propagate
from mindspeed_ms.parallel.plan.strategy.spread import DATA, TENSOR, Mesh


def test_an_inner_layer_is_split_by_columns_then_by_rows_and_the_table_by_its_rows(make_decoder):
    splits = propagate(make_decoder(layers=1), Mesh(data=2, tensor=2))
    assert splits.weights["embed.weight"] == ((TENSOR,), ())
    assert splits.weights["layers.0.gate.weight"] == splits.weights["layers.0.up.weight"] == ((TENSOR,), ())
    assert splits.weights["layers.0.down.weight"] == ((), (TENSOR,))
    assert splits.weights["layers.0.norm.weight"] == ((),)
    assert splits.weights["head.weight"] == ((TENSOR,), ())
    down = splits.operators["Default/layers.0.down.weight/MatMul-op0"]
    assert down.sums == (TENSOR,) and down.outputs == (((DATA,), ()),)
    assert splits.redistributions == () and splits.kept_whole == ()


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(data=4), Mesh(tensor=4), Mesh(data=2, tensor=2)])
def test_every_strategy_uses_no_more_devices_than_there_are_and_divides_every_shape(make_decoder, mesh):
    graph = make_decoder()
    splits = propagate(graph, mesh)
    assert set(splits.operators) == set(graph.split_operators)
    for name, split in splits.operators.items():
        shapes = [graph.shape(value) for value in graph.tensors(graph.split_operators[name])]
        for spread, shape in zip(split.inputs, shapes, strict=True):
            used = [axis for axes in spread for axis in axes]
            assert len(used) == len(set(used))
            assert all(size % mesh.size(axes) == 0 for size, axes in zip(shape, spread, strict=True))


def test_a_weight_whose_columns_do_not_divide_is_kept_whole(make_decoder):
    splits = propagate(make_decoder(layers=1, inner=30, vocab=63), Mesh(tensor=4))
    assert splits.weights["layers.0.gate.weight"] == ((), ())
    assert splits.weights["embed.weight"] == ((), ())
    # its input is whole then, so this one is split by columns, which the residual cannot take: whole too
    assert splits.weights["layers.0.down.weight"] == ((), ())
    assert splits.kept_whole == ("Default/layers.0.down.weight/MatMul-op0",) and not splits.redistributions


def test_heads_that_a_reshape_would_tear_apart_leave_their_weight_whole(mindir, linear):
    net = mindir()
    y = linear(net, net.input("x", 8, 16), "q.weight", 8, 16, 24)
    net.node("Reshape", "heads/Reshape-op0", [y, net.constant((8, 3, 8))], 8, 3, 8)
    assert propagate(net.graph(), Mesh(tensor=2)).weights["q.weight"] == ((), ())
    assert propagate(net.graph(), Mesh(tensor=3)).weights["q.weight"] == ((TENSOR,), ())


def test_a_softmax_over_split_logits_is_a_listed_redistribution(mindir, linear):
    net = mindir()
    y = linear(net, net.input("x", 8, 16), "head.weight", 8, 16, 32)
    net.node("LogSoftmax", "loss/LogSoftmax-op0", [y, net.constant(-1)], 8, 32)
    splits = propagate(net.graph(), Mesh(data=2, tensor=2))
    (move,) = splits.redistributions
    assert move.have == ((DATA,), (TENSOR,)) and move.want == ((DATA, TENSOR), ()) and not move.local
    assert splits.weights["head.weight"] == ((TENSOR,), ())


def test_one_weight_that_two_operators_would_split_otherwise_is_kept_whole(mindir, linear):
    net = mindir()
    x = net.input("x", 8, 16)
    y = linear(net, x, "a.weight", 8, 16, 16)
    flags = [net.constant(False), net.constant(True)]
    net.node("MatMul", "again/MatMul-op0", [y, "a.weight/Load-op0", *flags], 8, 16)
    splits = propagate(net.graph(), Mesh(tensor=2))
    assert splits.weights["a.weight"] == ((), ())


def test_an_operator_without_a_rule_is_taken_whole_and_named(mindir):
    net = mindir()
    net.node("Strange", "s/Strange-op0", [net.input("x", 8, 16)], 3, 5)
    splits = propagate(net.graph(), Mesh(data=2))
    assert splits.unknown == ("Strange",)
    assert [move.want for move in splits.redistributions] == [((), ())]


def test_custom_operators_are_refused_with_what_to_do(mindir):
    net = mindir()
    net.node("Custom", "rms/Custom-op0", [net.input("x", 8, 16)], 8, 16)
    with pytest.raises(
        ConfigError, match="Default/rms/Custom-op0 is a Custom operator.*MINDSPEED_MS_KERNELS=reference"
    ):
        propagate(net.graph(), Mesh())


def test_a_batch_that_the_mesh_does_not_divide_is_refused_with_what_would(make_decoder):
    with pytest.raises(ConfigError, match="net.mindir: input ids has the batch 4.*multiple of 3"):
        propagate(make_decoder(), Mesh(data=3))
    with pytest.raises(ConfigError, match="sequence length 8.*multiple of 16"):
        propagate(make_decoder(), Mesh(context=16))


def test_experts_are_refused(make_decoder):
    with pytest.raises(ConfigError, match="expert: 2"):
        make_strategies(make_decoder(), Settings(data=2, expert=2))
