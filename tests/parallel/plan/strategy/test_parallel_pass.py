"""Our strategy file read by MindSpore's own parallel pass, which says how it then lays out every parameter.

The pass runs without a device behind a library that pretends to be HCCL (front_end.cc).
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.check import check
from mindspeed_ms.parallel.plan.strategy.graph import read_graph
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.rings import tensor_groups
from mindspeed_ms.parallel.plan.strategy.write import write_strategies

ms = pytest.importorskip("mindspore")
HERE = Path(__file__).resolve().parent
MODEL = {
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
IDS = (4, 8)
SETTINGS = Settings(data=2, tensor=2)


@pytest.fixture(scope="module")
def graph():
    from mindspeed_ms.export.network import network_graph
    from mindspeed_ms.models import spec_from_hf

    return read_graph(network_graph(spec_from_hf(MODEL), *IDS), "network")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library, built against the headers of the installed MindSpore."""
    compiler, package = shutil.which("g++"), Path(ms.__file__).parent
    if compiler is None or not (package / "include/mindspore/core/include/utils/ms_context.h").exists():
        pytest.skip("needs g++ and a MindSpore with its headers")
    include = package / "include"
    folders = [".", "mindspore", "mindspore/core/include", "mindspore/ccsrc", "mindspore/core", "third_party"]
    path = tmp_path_factory.mktemp("front_end") / "front_end.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", str(HERE / "front_end.cc")]
    command += [f"-I{include / folder}" for folder in folders]
    command += ["-o", str(path), f"-L{package / 'lib'}", "-lmindspore_core", "-lmindspore_common"]
    subprocess.run([*command, f"-Wl,-rpath,{package / 'lib'}"], check=True)
    return path


@pytest.fixture(scope="module")
def run(graph, library, tmp_path_factory):
    """MindSpore's pass on rank 0 of data 2, tensor 2: the folder it wrote to, and what it printed."""
    folder = tmp_path_factory.mktemp("pass")
    path = write_strategies(make_strategies(graph, SETTINGS)[0], folder)[0]
    done = subprocess.run(
        [sys.executable, str(HERE / "front_end.py"), str(library), str(path), "0", str(SETTINGS.devices)],
        input=json.dumps({"model": MODEL, "ids": IDS}),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "ended: Create device context failed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    return folder, done.stdout


@pytest.mark.slow
def test_mindspores_parallel_pass_takes_every_strategy_and_lays_every_parameter_out_alike(graph, run):
    folder, printed = run
    saved, ours = read_strategy(folder / "saved.ckpt"), read_strategy(folder / "stage_0.ckpt")
    assert saved.layouts == ours.layouts
    assert saved.operators == {name: s for name, s in ours.operators.items() if not name.startswith("Default/")}
    check([saved], graph)
    # Rank 0 asks for its groups: the tensor group that the strategy file implies, and its replicas.
    groups = {tuple(map(int, line.split()[1:])) for line in printed.splitlines() if line.startswith("group ")}
    assert groups == {(0, 1), (0, 2)} and (0, 1) in tensor_groups([ours])


@pytest.mark.slow
def test_mindspores_own_propagation_splits_the_operators_without_weights_as_we_do(run):
    folder, _ = run
    items = json.loads((folder / "operators.json").read_text())["parallel_strategy_item"]
    theirs = Counter(
        (kind_of(name), tuple(tuple(dims) for dims in item["parallel_strategy"])) for name, item in items.items()
    )
    ours = read_strategy(folder / "stage_0.json").operators
    found = Counter((kind_of(name), strategy) for name, strategy in ours.items() if name.startswith("Default/"))
    # The numbers behind `-op` differ in that pass, and it merges fewer equal operators; of these kinds all are there.
    for kind in ("MatMul", "BatchMatMul", "Softmax", "Transpose", "Gather", "ReduceMean", "Sigmoid", "Rsqrt"):
        assert {k: n for k, n in theirs.items() if k[0] == kind} == {k: n for k, n in found.items() if k[0] == kind}


def kind_of(name):
    return name.rpartition("/")[2].partition("-op")[0]
