"""A bundle holds all a service needs: it travels, it computes what the model does, no batch compiles anything."""

import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from oracle import logits as oracle_logits
from weights_files import CONFIG, random_weights, write_gguf, write_hf

from mindspeed_ms.compress.quantize import quantize_model
from mindspeed_ms.errors import BundleError, KernelError, WeightsError
from mindspeed_ms.export.bundle import export_bundle, open_bundle, refresh_bundle
from mindspeed_ms.export.cache import bundle_for
from mindspeed_ms.paths import cache_dir
from mindspeed_ms.serving.engine.batch import Batch, Chunk, make_batch
from mindspeed_ms.serving.engine.runner import RaggedRunner
from mindspeed_ms.weights import open_model

TOKENS = [3, 17, 5, 40, 9, 9, 30, 2, 1, 44, 12]
ARCHITECTURES = [
    {},
    {"model_type": "qwen2", "tie_word_embeddings": True},
    {"model_type": "qwen3", "num_attention_heads": 6, "head_dim": 40, "rope_theta": 5e5},
]


def every_row(tokens, table, start=0):
    return Chunk(tokens, start, table, range(len(tokens)))


def run(runner, *chunks):
    return runner.step(make_batch(chunks, runner.block_size))


def close(found, expected, relative):
    return np.abs(found - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("settings", ARCHITECTURES, ids=["llama", "qwen2", "qwen3"])
def test_a_float_bundle_computes_what_the_formulas_say(settings, models, own_cache, tmp_path):
    bundle = export_bundle(models(**settings), tmp_path / "bundle")
    assert (bundle.kv_dtype, bundle.info.quantization.scheme) == ("float32", "fp32")
    config = {**CONFIG, **settings}
    expected = oracle_logits(config, random_weights(config), TOKENS)
    runner = RaggedRunner(bundle, kv_tokens=128)
    assert close(run(runner, every_row(TOKENS, [2])), expected, 1e-4)
    # the same in pieces: a prompt in two chunks, then token by token
    pieces = [run(runner, every_row(TOKENS[a:b], [1], a)) for a, b in [(0, 4), (4, 9), (9, 10), (10, 11)]]
    assert close(np.concatenate(pieces), expected, 1e-4)
    # one token alone has a graph of its own; beside another sequence it takes the general one
    beside = run(runner, every_row(TOKENS[10:], [1], 10), every_row([7], [0]))
    assert (beside[0] == pieces[-1][0]).all()


@pytest.mark.parametrize(("scheme", "form"), [("w4a16", (64, True)), ("w8a16", (0, False)), ("w4a8", (32, False))])
def test_a_quantized_bundle_computes_with_the_rounded_weights(scheme, form, own_cache, tmp_path):
    mild = {name: value * np.float32(0.2) for name, value in random_weights(CONFIG).items()}
    quantize_model(write_hf(tmp_path / "model", mild), tmp_path / "quantized", scheme, *form)
    bundle = export_bundle(tmp_path / "quantized", tmp_path / "bundle")
    assert (bundle.kv_dtype, bundle.info.quantization.scheme) == ("float16", scheme)
    source = open_model(tmp_path / "quantized")
    weights = {name: source.get(name) for name in source.names()}
    assert {value.bits for value in weights.values() if not isinstance(value, np.ndarray)} == {int(scheme[1]), 8}
    weights = {name: v if isinstance(v, np.ndarray) else v.dequantize() for name, v in weights.items()}
    expected = oracle_logits(CONFIG, weights, TOKENS)
    found = run(RaggedRunner(bundle, kv_tokens=128), every_row(TOKENS, [0]))
    if scheme.endswith("a16"):  # only the float16 cache loses something
        assert close(found, expected, 3e-3)
    else:
        assert np.linalg.norm(found - expected) <= 0.03 * np.linalg.norm(expected)


def test_a_sequence_does_not_feel_its_neighbours(exported, own_cache):
    runner = RaggedRunner(open_bundle(exported), kv_tokens=256)
    alone = run(runner, every_row(TOKENS, [3]))
    others = [every_row([7, 8, 9], [0]), every_row(list(range(40)), [5, 1])]
    together = run(runner, others[0], every_row(TOKENS, [2]), others[1])
    assert (together[3 : 3 + len(TOKENS)] == alone).all()


def test_no_batch_compiles_anything(exported, own_cache, monkeypatch):
    from mindspore.graph.api import _CellGraphExecutor

    runner = RaggedRunner(open_bundle(exported), kv_tokens=256)
    compiled = []
    monkeypatch.setattr(_CellGraphExecutor, "compile", lambda *a, **k: compiled.append(a))
    for tokens, sequences, rows in [(1, 1, 1), (5, 1, 2), (1, 3, 1), (30, 2, 0), (1, 1, 0), (40, 1, 40)]:
        chunks = [Chunk([4] * tokens, 0, [2 * s, 2 * s + 1][: 1 + tokens // 33], range(rows)) for s in range(sequences)]
        assert run(runner, *chunks).shape == (rows * sequences, CONFIG["vocab_size"])
    assert compiled == []


def test_a_result_outlives_the_next_step(exported, own_cache):
    runner = RaggedRunner(open_bundle(exported), kv_tokens=64)
    first = run(runner, every_row([1, 2, 3], [0]))
    kept = first.copy()
    run(runner, every_row([4, 5, 6], [1]))
    assert (first == kept).all()


WRONG = {
    "token id is outside": {"token_ids": [48, 1]},
    "cache slot does not match": {"slot_mapping": [0, 2]},
    "names a block outside": {"block_tables": [[9]]},
    "position is negative": {"positions": [0, 2]},
    "seq_starts must": {"seq_starts": [0, 1]},
    "row of logits": {"logit_rows": [2]},
    "shape contradicts": {"block_tables": [[0], [1]]},
    "number.*shape|shape contradicts": {"positions": [0]},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_batch_is_refused_and_the_runner_runs_on(sentence, exported, own_cache):
    runner = RaggedRunner(open_bundle(exported), kv_tokens=64)
    right = {
        "token_ids": [3, 4],
        "positions": [0, 1],
        "slot_mapping": [0, 1],
        "seq_starts": [0, 2],
        "block_tables": [[0]],
        "logit_rows": [1],
    }
    arrays = {name: np.array(value, np.int32) for name, value in {**right, **WRONG[sentence]}.items()}
    with pytest.raises(KernelError, match=sentence):
        runner.step(Batch(**arrays))
    runner.step(Batch(**{name: np.array(value, np.int32) for name, value in right.items()}))


def test_reading_imports_neither_models_nor_mindspore(exported):
    code = (
        "import sys; from mindspeed_ms.export.reader import open_bundle; open_bundle(sys.argv[1]).program;"
        "print([m for m in sys.modules if m.startswith(('mindspeed_ms.models', 'mindspore', 'mindspeed_ms.compress'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_bundle_moves(bundle, own_cache, tmp_path):
    before = run(RaggedRunner(open_bundle(bundle), kv_tokens=64), every_row(TOKENS, [0]))
    assert b"/mindspeed_ms_cpu.so" not in (bundle / "graph.mindir").read_bytes()  # no path of this machine
    moved = shutil.move(bundle, tmp_path / "elsewhere" / "renamed")
    after = run(RaggedRunner(open_bundle(moved), kv_tokens=64), every_row(TOKENS, [0]))
    assert (before == after).all()


def test_refresh_remakes_the_graph_from_the_weights(bundle, own_cache):
    before = run(RaggedRunner(open_bundle(bundle), kv_tokens=64), every_row(TOKENS, [0]))
    info = json.loads((bundle / "bundle.json").read_text())
    info |= {"mindspore": "2.3.0", "kernel_abi": -1}
    (bundle / "bundle.json").write_text(json.dumps(info))
    (bundle / "graph.mindir").write_bytes(b"of another time")
    refreshed = refresh_bundle(bundle)
    assert refreshed.info.mindspore.startswith("2.10") and refreshed.info.kernel_abi > 0
    assert (run(RaggedRunner(refreshed, kv_tokens=64), every_row(TOKENS, [0])) == before).all()
    assert sorted(p.name for p in bundle.iterdir()) == [
        "bundle.json",
        "graph.mindir",
        "tokenizer.json",
        "weights.safetensors",
    ]


def test_the_tokenizer_and_its_ids_come_along(exported, models):
    source, bundle = open_model(models()), open_bundle(exported)
    assert bundle.tokenizer == source.tokenizer
    assert bundle.spec == source.spec


def test_any_model_becomes_a_bundle_once(models, own_cache):
    first = bundle_for(models())
    stamp = (first.path / "bundle.json").stat().st_mtime_ns
    assert own_cache in first.path.parents
    again = bundle_for(models())
    assert again.path == first.path and (again.path / "bundle.json").stat().st_mtime_ns == stamp
    (first.path / "weights.safetensors").write_bytes(b"rotten")
    third = bundle_for(models())  # exported again
    assert third.info.files["weights.safetensors"] == first.info.files["weights.safetensors"]
    assert bundle_for(first.path).path == first.path  # a bundle is opened where it is


def test_a_link_to_a_model_is_that_model(own_cache, tmp_path):
    write_gguf(tmp_path / "model.gguf")
    (tmp_path / "link.gguf").symlink_to("model.gguf")
    assert bundle_for(tmp_path / "link.gguf").path == bundle_for(tmp_path / "model.gguf").path


def test_a_cache_that_cannot_be_written_exports_elsewhere_with_a_notice(models, own_cache, monkeypatch):
    own_cache.write_text("in the way of a folder")
    with pytest.warns(UserWarning, match="cannot keep the exported model here.*MINDSPEED_MS_CACHE"):
        found = bundle_for(models())
    assert own_cache not in found.path.parents and found.spec == open_model(models()).spec


def test_two_processes_export_one_bundle(models, tmp_path):
    code = "import sys; from mindspeed_ms.export.cache import bundle_for; print(bundle_for(sys.argv[1]).path)"
    environment = {**os.environ, "MINDSPEED_MS_CACHE": str(cache_dir())}
    model = shutil.copytree(models(), tmp_path / "model")
    command = [sys.executable, "-c", code, str(model)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0].strip() for process in running}
    (path,) = paths
    assert open_bundle(path).info.source["name"] == "model"
    shutil.rmtree(path)


def test_an_existing_place_is_not_overwritten(bundle, models):
    with pytest.raises(WeightsError, match="exists already"):
        export_bundle(models(), bundle)


def test_a_full_disk_leaves_what_was_there(bundle, models, own_cache, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {file.name: file.read_bytes() for file in bundle.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WeightsError, match="new: cannot be written: the disk is full; free some space"):
        export_bundle(models(), tmp_path / "new")
    with pytest.raises(BundleError, match="cannot be refreshed: the disk is full; free some space"):
        refresh_bundle(bundle)
    assert {file.name: file.read_bytes() for file in bundle.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    with pytest.warns(UserWarning, match="cannot keep the packed weights here .No space left on device"):
        runner = RaggedRunner(open_bundle(bundle), kv_tokens=64)
    assert run(runner, every_row(TOKENS, [0])).shape == (len(TOKENS), CONFIG["vocab_size"])
    assert list((own_cache / "arenas").iterdir()) == []


def test_a_failed_export_leaves_nothing(models, tmp_path, monkeypatch):
    def fail(program):
        raise RuntimeError("half way")

    monkeypatch.setattr("mindspeed_ms.export.bundle._export_mindir", fail)
    with pytest.raises(RuntimeError, match="half way"):
        export_bundle(models(), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
