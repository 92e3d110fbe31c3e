"""Real networks exported by MindSpore, and their strategy files read by MindSpore's own tools."""

import os
from pathlib import Path

import numpy as np
import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.check import check
from mindspeed_ms.parallel.plan.strategy.graph import read_graph
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.write import write_strategies

ms = pytest.importorskip("mindspore")

QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
QWEN2_TIED = {**QWEN3, "model_type": "qwen2", "tie_word_embeddings": True}
BATCH, SEQ = 4, 8


def specs():
    from mindspeed_ms.models import spec_from_hf

    return spec_from_hf(QWEN3), spec_from_hf(QWEN2_TIED)


@pytest.fixture(scope="module")
def exported():
    from mindspeed_ms.export.network import network_graph

    return [network_graph(spec, BATCH, SEQ) for spec in specs()]


@pytest.fixture(scope="module")
def graphs(exported):
    return [read_graph(data, "network") for data in exported]


def test_names_kinds_and_shapes_are_those_that_mindspores_own_reader_finds(exported, graphs):
    pb = pytest.importorskip("mindspore.train.mind_ir_pb2")
    for data, graph, spec in zip(exported, graphs, specs(), strict=True):
        model = pb.ModelProto.FromString(data)
        kinds = {primitive.name: primitive.op_type for primitive in model.primitives}
        expected = {}
        for node in model.graph.node:
            if node.op_type != "Constant":
                shapes = [tuple(t.dims) for a in node.attribute if a.name == "shape" for t in a.tensors]
                expected[node.domain] = kinds[node.op_type.removeprefix("REF::")], shapes
        found = {o.name: (o.kind, list(o.shapes)) for o in graph.operators if o.kind != "MakeTuple"}
        assert found == {name: said for name, said in expected.items() if said[0] != "MakeTuple"}
        assert {name: p.shape for name, p in graph.parameters.items()} == spec.parameter_shapes()


def test_operator_names_are_mindspores_full_names_with_scope():
    """MindSpore's other format of a graph (anf_ir) has a field of that very name."""
    from mindspore.graph.api import _cell_graph_executor as executor

    from mindspeed_ms.models import build_model

    anf = pytest.importorskip("mindspore.train.anf_ir_pb2")
    ms.set_context(mode=ms.GRAPH_MODE)
    model = build_model(specs()[0].model_copy(update={"num_hidden_layers": 1}))
    ids = ms.Tensor(np.zeros((BATCH, SEQ), np.int32))
    number, _ = executor.compile(model, ids, ids, phase="export.mindir", do_convert=False)
    said = anf.ModelProto.FromString(executor._get_func_graph_proto(model, number, "anf_ir"))
    graph = read_graph(executor._get_func_graph_proto(model, number, "mind_ir"), "network")
    assert {operator.name for operator in graph.operators} == {node.full_name for node in said.graph.node}


@pytest.mark.parametrize(
    "settings", [Settings(data=2, tensor=2), Settings(data=4), Settings(tensor=2, pipeline=2), Settings(data=2, zero=3)]
)
def test_every_operator_has_a_strategy_that_fits_and_nothing_is_moved(graphs, settings):
    for graph in graphs:
        files, splits = make_strategies(graph, settings)
        check(files, graph)
        assert set(graph.split_operators) <= {name for file in files for name in file.operators}
        assert splits.redistributions == () and splits.kept_whole == () and splits.unknown == ()


def test_more_tensor_ranks_than_key_value_heads_leave_attention_whole_and_say_so(graphs):
    _, splits = make_strategies(graphs[0], Settings(tensor=4))
    assert len(splits.kept_whole) == 8 and all("self_attn" in name for name in splits.kept_whole)
    assert splits.redistributions == ()


def test_a_file_of_one_network_is_refused_for_the_other(graphs):
    files, _ = make_strategies(graphs[0], Settings(data=2, tensor=2))
    with pytest.raises(ConfigError, match="operator Mul_model.layers.0.self_attn.q_norm.weight is not in network"):
        check(files, graphs[1])


def test_the_export_takes_no_custom_operator_and_leaves_the_choice_of_kernels_as_it_was(monkeypatch):
    from mindspeed_ms.export.network import _reference_bodies
    from mindspeed_ms.ops.aot import VARIABLE

    for before in (None, "native"):
        if before is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, before)
        with _reference_bodies():
            assert os.environ[VARIABLE] == "reference"
        assert os.environ.get(VARIABLE) == before


# Whole -> sliced -> whole, with the tools of MindSpore


SHARED = 1  # the network whose embedding is its head: pipeline stages share it
CASES = [
    (0, Settings(data=2, tensor=2), ".ckpt"),
    (0, Settings(data=2, tensor=2, zero=1), ".json"),
    (0, Settings(tensor=2, pipeline=2), ".json"),
    (SHARED, Settings(data=2, tensor=2, zero=1), ".ckpt"),
    (SHARED, Settings(data=2, tensor=2, pipeline=2, zero=2), ".ckpt"),
]


@pytest.mark.parametrize(("which", "settings", "suffix"), CASES)
def test_a_whole_checkpoint_is_sliced_as_the_layouts_say_and_joined_again_to_the_bit(
    graphs, which, settings, suffix, tmp_path, monkeypatch
):
    monkeypatch.setattr("mindspeed_ms.parallel.plan.strategy.make.OPTIMIZER_THRESHOLD", 0)
    files, _ = make_strategies(graphs[which], settings)
    write_strategies(files, tmp_path / "strategy")
    merged = str(tmp_path / "strategy" / f"stage_0{suffix}")
    if settings.pipeline > 1:
        only = tmp_path / "only"
        only.mkdir()
        for stage in range(settings.pipeline):
            name = f"stage_{stage}{suffix}"
            (only / name).write_bytes((tmp_path / "strategy" / name).read_bytes())
        merged = str(tmp_path / f"merged{suffix}")
        ms.merge_pipeline_strategys(str(only), merged)
    rng = np.random.default_rng(0)
    whole = {p.name: rng.standard_normal(p.shape, np.float32) for p in graphs[which].parameters.values()}
    save(whole, tmp_path / "whole" / "rank_0" / "whole0.ckpt")
    ms.transform_checkpoints(str(tmp_path / "whole"), str(tmp_path / "sliced"), "sliced", None, merged)
    per_stage = settings.devices // settings.pipeline
    for rank in range(settings.devices):
        found = load(tmp_path / "sliced" / f"rank_{rank}" / f"sliced{rank}.ckpt")
        layouts = files[rank // per_stage].layouts
        assert set(found) == set(layouts)
        for name, layout in layouts.items():
            assert np.array_equal(found[name], layout.slice_of(whole[name], rank % per_stage)), (rank, name)
    needed = ms.rank_list_for_transform(0, merged, None)
    few = {rank: str(tmp_path / "sliced" / f"rank_{rank}" / f"sliced{rank}.ckpt") for rank in needed}
    ms.transform_checkpoint_by_rank(0, few, str(tmp_path / "few.ckpt"), merged, None)
    assert holds(load(tmp_path / "few.ckpt"), whole)
    ms.transform_checkpoints(str(tmp_path / "sliced"), str(tmp_path / "joined"), "joined", merged, None)
    joined = load(tmp_path / "joined" / "rank_0" / "joined0.ckpt")
    assert holds(joined, whole)


def test_load_distributed_checkpoint_gives_a_network_the_weights_that_were_sliced(graphs, tmp_path):
    from mindspeed_ms.models import build_model

    settings = Settings(data=1, tensor=2)
    files, _ = make_strategies(graphs[0], settings)
    path = write_strategies(files, tmp_path)[0]
    model = build_model(specs()[0])
    rng = np.random.default_rng(1)
    whole = {p.name: rng.standard_normal(p.shape, np.float32) for p in graphs[0].parameters.values()}
    slices = []
    for rank in range(settings.devices):
        slices.append(str(tmp_path / f"rank_{rank}.ckpt"))
        save({name: files[0].layouts[name].slice_of(whole[name], rank) for name in whole}, slices[-1])
    ms.load_distributed_checkpoint(model, slices, None, str(path))
    for parameter in model.get_parameters():
        assert np.array_equal(parameter.asnumpy(), whole[parameter.name]), parameter.name


def holds(found, whole):
    return set(found) == set(whole) and all(np.array_equal(found[name], whole[name]) for name in whole)


def save(arrays, path):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    ms.save_checkpoint([{"name": n, "data": ms.Tensor(np.ascontiguousarray(a))} for n, a in arrays.items()], str(path))


def load(path):
    return {name: parameter.asnumpy() for name, parameter in ms.load_checkpoint(str(path)).items()}
