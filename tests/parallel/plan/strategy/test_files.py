"""Strategy files: read back as written, refused when they are none or of another network."""

import dataclasses
import errno
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy import wire
from mindspeed_ms.parallel.plan.strategy.check import check, check_network
from mindspeed_ms.parallel.plan.strategy.graph import read_graph
from mindspeed_ms.parallel.plan.strategy.layout import Layout, checked
from mindspeed_ms.parallel.plan.strategy.make import StrategyFile, make_strategies
from mindspeed_ms.parallel.plan.strategy.read import from_json, from_protobuf, read_strategy
from mindspeed_ms.parallel.plan.strategy.stages import count_layers
from mindspeed_ms.parallel.plan.strategy.write import to_json, to_protobuf, write_strategies

SETTINGS = Settings(data=2, tensor=2, pipeline=2)


@pytest.fixture
def files(make_decoder):
    return make_strategies(make_decoder(), SETTINGS)[0]


def test_both_forms_say_what_was_written_and_protobuf_all_but_the_shapes(files, tmp_path):
    paths = write_strategies(files, tmp_path / "strategy")
    assert [path.name for path in paths] == ["stage_0.ckpt", "stage_0.json", "stage_1.ckpt", "stage_1.json"]
    for file, protobuf, json_ in zip(files, paths[::2], paths[1::2], strict=True):
        assert read_strategy(json_) == file
        bare = {name: dataclasses.replace(layout, shape=()) for name, layout in file.layouts.items()}
        assert read_strategy(protobuf) == dataclasses.replace(file, layouts=bare)


def test_the_json_has_mindspores_keys(files):
    content = json.loads(to_json(files[0]))
    assert set(content) == {"current_stage", "parallel_strategy_item", "parallel_layout_item"}
    gate = content["parallel_strategy_item"]["MatMul_layers.0.gate.weight"]
    assert gate == {"stage": 0, "parallel_strategy": [[2, 1], [2, 1]]}
    assert content["parallel_layout_item"]["layers.0.down.weight"] == {
        "dev_matrix": [2, 2],
        "tensor_map": [-1, 0],
        "tensor_shape": [16, 32],
        "field": 0,
        "opt_weight_shard_step": 0,
        "opt_weight_shard_size": 0,
    }


def test_a_file_of_the_same_network_is_accepted_and_of_its_optimizer_too(files, make_decoder):
    graph = make_decoder()
    check(files, graph)
    with_states, _ = make_strategies(graph, SETTINGS, states=("adam_m.", "adam_v."))
    assert "adam_v.head.weight" in with_states[1].layouts
    check(with_states, graph)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"layers": 4}, "parameter layers.2.norm.weight of net.mindir has no layout in any stage"),
        ({"layers": 1}, "operator Mul_layers.1.norm.weight is not in net.mindir: the file is for another network"),
        ({"inner": 48}, "parameter layers.0.gate.weight has the shape [32, 16], expected [48, 16]"),
        ({"hidden": 24}, "parameter embed.weight has the shape"),
    ],
)
def test_a_file_for_another_model_is_refused_naming_the_first_difference(files, make_decoder, other, says):
    with pytest.raises(ConfigError) as error:
        check(files, make_decoder(**other), "plan/strategy")
    assert str(error.value).startswith("plan/strategy: ") and "write the files again" in str(error.value)
    assert re.search(says.replace("[", r"\["), str(error.value))


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (((2, 1),), "has 1 strategies, expected 2"),
        (((2, 1, 1), (2, 1)), "splits input 0 as [2, 1, 1], expected 2 numbers"),
        (((2, 1), (3, 1)), "splits input 1 as [3, 1], expected divisors of its shape [32, 16]"),
    ],
)
def test_a_strategy_of_another_rank_or_that_does_not_divide_is_refused(files, make_decoder, strategy, says):
    bad = dataclasses.replace(files[0], operators={"MatMul_layers.0.gate.weight": strategy})
    with pytest.raises(ConfigError, match=re.escape("operator MatMul_layers.0.gate.weight " + says)):
        check([bad, files[1]], make_decoder())


def test_files_of_too_few_stages_or_of_two_meshes_are_refused(files, make_decoder):
    graph = make_decoder()
    with pytest.raises(ConfigError, match="parameter layers.1.norm.weight of net.mindir has no layout in any stage"):
        check(files[:1], graph)
    odd = {**files[1].layouts, "head.weight": Layout((2, 4), (0, -1), (64, 16))}
    with pytest.raises(ConfigError, match="the layouts are for 4, 8 devices"):
        check([files[0], dataclasses.replace(files[1], layouts=odd)], graph)
    few = {name: s for name, s in files[1].operators.items() if "head" not in name}
    with pytest.raises(ConfigError, match="operator Default/head.weight/MatMul-op0 of net.mindir has no strategy"):
        check([files[0], dataclasses.replace(files[1], operators=few)], graph)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"parallel_strategy_item": {"a": {"stage": 0}}}',
        '{"parallel_strategy_item": {"a": {"stage": 0, "parallel_strategy": [[0]]}}}',
        '{"parallel_strategy_item": {"a": {"stage": 0, "parallel_strategy": [["2"]]}}}',
        '{"parallel_layout_item": {"w": {"dev_matrix": [2]}}}',
        '{"parallel_strategy_item": {"a": {"stage": 0, "parallel_strategy": []},'
        '"b": {"stage": 1, "parallel_strategy": []}}}',
        "[" * 100_000,
    ],
)
def test_json_that_is_no_strategy_file_is_one_error_that_names_the_file(text):
    with pytest.raises(ConfigError, match=r"^s\.json: "):
        from_json(text.encode(), "s.json")


SAMPLE = to_protobuf(
    StrategyFile(1, {"MatMul_w": ((2, 1), (4, 1))}, {"w": Layout((2, 4), (0, -1), (), 4, -1), "b": Layout((8,), (-1,))})
)


@given(st.data())
def test_damaged_protobuf_is_refused_or_says_something_else_but_never_fails_otherwise(data):
    cut = bytearray(SAMPLE)
    at = data.draw(st.integers(0, len(cut) - 1))
    cut[at] = data.draw(st.integers(0, 255))
    try:
        from_protobuf(bytes(cut[: data.draw(st.integers(1, len(cut)))]), "s.ckpt")
    except ConfigError as error:
        assert str(error).startswith("s.ckpt: ")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_strategy(tmp_path / "stage_0.ckpt")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        read_strategy(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\x0a\x03abc", b"PK\x03\x04rest", b"\x3a\x00"])
def test_what_is_no_mindir_is_refused(data):
    with pytest.raises(ConfigError, match="net: "):
        read_graph(data, "net")


def test_open_shapes_and_unknown_values_are_refused(mindir):
    net = mindir()
    net.node("ReLU", "r/ReLU-op0", [net.input("x", -1, 16)], -1, 16)
    with pytest.raises(ConfigError, match="fixed batch and sequence length"):
        net.graph()
    net = mindir()
    net.node("ReLU", "r/ReLU-op0", ["nothing"], 4, 16)
    with pytest.raises(ConfigError, match="takes 'nothing', which nothing before it makes"):
        net.graph()


def test_a_graph_of_another_model_is_refused(make_decoder):
    layer = make_decoder()
    shape = read_model(
        {
            "model_type": "llama",
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 7,
            "num_attention_heads": 2,
            "vocab_size": 32,
        },
        "seven",
    )
    with pytest.raises(ConfigError, match=r"graph of another network than .*: it has \d+ layers, expected 7"):
        check_network(layer, shape)
    wide = dataclasses.replace(shape, layers=count_layers(layer), hidden=4096)
    with pytest.raises(ConfigError, match=r"its parameters are \d+ numbers, expected about \d{6,}"):
        check_network(layer, wide)


def test_a_matrix_of_more_devices_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="expected at most 1048576 devices"):
        checked(Layout((1 << 40, 1 << 40), (0, -1)), "x")


def test_a_negative_stage_is_refused():
    item = {"a": {"stage": -1, "parallel_strategy": [[1]]}}
    with pytest.raises(ConfigError, match="the stage is -1"):
        from_json(json.dumps({"parallel_strategy_item": item}).encode(), "x")


def test_a_message_of_endless_fields_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "_MOST_FIELDS", 1000)
    with pytest.raises(ConfigError, match="more than 1000 fields"):
        read_graph(b"\x08\x01" * 1001, "x")
    with pytest.raises(ConfigError, match="list of numbers of"):
        from_protobuf(wire.put_bytes(3, wire.put_bytes(2, wire.put_bytes(1, wire.put_bytes(1, b"\x01" * 10001)))), "x")


def test_a_damaged_operator_is_named(mindir):
    mindir = mindir()
    ids = mindir.input("ids", 2, 4)
    mindir.node("Reshape", "net/Reshape-op0", [ids, mindir.constant((3, 5))], 3, 5)
    with pytest.raises(ConfigError, match="Reshape-op0 has other inputs or shapes than a Reshape can have"):
        make_strategies(mindir.graph(), Settings(data=2, tensor=2))


def test_a_layer_that_is_left_out_is_told(mindir):
    mindir = mindir()
    ids = mindir.input("ids", 2, 4)
    mindir.parameter("layers.0.w", 8, 8)
    mindir.parameter("layers.99999.w", 8, 8)
    mindir.node("Cast", "net/Cast-op0", [ids], 2, 4)
    with pytest.raises(ConfigError, match="parameters of the layer 99999, but none of the layer 1"):
        count_layers(mindir.graph())


def test_a_full_disk_leaves_no_part_of_a_file(files, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match=r"stage_0\.ckpt: cannot be written \(No space left"):
        write_strategies(files, tmp_path)
    assert not list(tmp_path.iterdir())
