"""Quantizing writes a directory that is complete or absent, says what it cost, and loses nothing where it need not."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from weights_files import CONFIG, random_weights, write_gguf, write_hf

from mindspeed_ms.compress import store
from mindspeed_ms.compress.quantize import quantize_model
from mindspeed_ms.errors import ConfigError, TokenizerError, WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor, quantize_rtn
from mindspeed_ms.weights import open_model

EMBEDDINGS = {"model.embed_tokens.weight", "lm_head.weight"}


def same(a, b):
    """Bit for bit."""
    parts = [(a.q, b.q), (a.scales, b.scales), (a.mins, b.mins)] if isinstance(a, QuantTensor) else [(a, b)]
    return all((x is None) == (y is None) and (x is None or x.tobytes() == y.tobytes()) for x, y in parts)


@pytest.mark.parametrize(
    ("scheme", "group", "asymmetric", "form", "worst"),
    [
        ("w4a8", None, False, "w4 group 32", 0.13),
        ("w4a8", 64, True, "w4 group 64 asymmetric", 0.11),
        ("w4a16", 128, False, "w4 group 128", 0.16),
        ("w8a8", 0, False, "w8 row", 0.01),
        ("w8a16", 32, False, "w8 group 32", 0.006),
    ],
)
def test_each_scheme_reports_form_size_and_error(tmp_path, scheme, group, asymmetric, form, worst):
    model = write_hf(tmp_path / "model")
    seen = []
    report = quantize_model(
        model, tmp_path / "out", scheme, group, asymmetric, progress=lambda *step: seen.append(step)
    )
    assert seen == [(done, len(random_weights(CONFIG))) for done in range(len(random_weights(CONFIG)) + 1)]
    source, original = open_model(tmp_path / "out"), random_weights(CONFIG)
    assert (source.kind, source.scheme["scheme"]) == ("quantized", scheme)
    assert {layer.name for layer in report.layers} == {name for name, value in original.items() if value.ndim == 2}
    for layer in report.layers:
        stored, exact = source.get(layer.name), original[layer.name].astype(np.float64)
        difference = stored.dequantize() - exact
        assert layer.form == ("w8 group 32" if layer.name in EMBEDDINGS else form)
        assert layer.bytes == stored.nbytes
        assert layer.max_error == pytest.approx(np.abs(difference).max(), rel=1e-4)
        assert layer.relative_rms == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(exact), rel=1e-3)
        assert 0 < layer.relative_rms < worst and not layer.lossless
    assert report.bytes_after == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert report.bytes_before == (model / "model.safetensors").stat().st_size
    assert not report.lossless
    assert all(same(source.get(name), value) for name, value in original.items() if value.ndim == 1)


def test_the_result_is_read_by_the_safetensors_library(tmp_path):
    from safetensors.numpy import load_file

    quantize_model(write_hf(tmp_path / "model"), tmp_path / "out", "w4a8", 32, True)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.layers.0.mlp.up_proj.qweight"].shape == (96, 32)
    assert tensors["model.layers.0.mlp.up_proj.mins"].dtype == np.float16
    assert "model.embed_tokens.mins" not in tensors


@pytest.mark.parametrize(
    ("kind", "scheme", "group", "asymmetric"),
    [("Q4_1", "w4a8", 32, True), ("Q4_0", "w4a16", 32, False), ("Q8_0", "w8a8", 32, False)],
)
def test_a_gguf_in_the_asked_form_is_carried_over_bit_by_bit(tmp_path, kind, scheme, group, asymmetric):
    settings = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 11}
    weights = random_weights({**CONFIG, **settings})
    file = write_gguf(tmp_path / "model.gguf", weights, kind, **settings)
    report = quantize_model(file, tmp_path / "out", scheme, group, asymmetric)
    matrices = {layer.name: layer for layer in report.layers if layer.name not in EMBEDDINGS}
    assert all(layer.lossless and layer.relative_rms == layer.max_error == 0 for layer in matrices.values())
    before, after = open_model(file), open_model(tmp_path / "out")
    assert all(same(before.get(name), after.get(name)) for name in matrices)
    # and equal to what llama.cpp's own library makes of the file
    name = "model.layers.1.mlp.down_proj.weight"
    quant = gguf.GGMLQuantizationType[kind]
    assert (
        after.get(name).dequantize() == gguf.quants.dequantize(gguf.quants.quantize(weights[name], quant), quant)
    ).all()
    assert before.spec == after.spec and before.tokenizer == after.tokenizer


def test_a_gguf_in_another_form_is_rounded_again_and_says_so(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", kind="Q8_0", vocab_size=11)
    report = quantize_model(file, tmp_path / "out", "w4a8", 64)
    for layer in report.layers:  # a Q8_0 embedding stays as it is
        assert layer.lossless == (layer.name in EMBEDDINGS)


def test_the_real_model_loses_nothing(smollm2, tmp_path):
    report = quantize_model(smollm2, tmp_path / "out", "w4a8", 32, True)
    assert report.lossless and len(report.layers) == 211
    before, after = open_model(smollm2), open_model(tmp_path / "out")
    assert all(same(before.get(name), after.get(name)) for name in before.names())
    assert before.spec == after.spec and before.tokenizer == after.tokenizer


def test_the_rest_of_a_directory_comes_along(tmp_path):
    model = write_hf(tmp_path / "model", shards=3)
    (model / "generation_config.json").write_text('{"temperature": 0.5, "eos_token_id": [2, 1]}')
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}", "add_bos_token": false}')
    quantize_model(model, tmp_path / "out", "w4a8")
    before, after = open_model(model), open_model(tmp_path / "out")
    assert before.tokenizer == after.tokenizer and after.tokenizer.chat_template == "{{ messages }}"
    assert after.generation == {"temperature": 0.5}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == "mindspeed_ms"
    assert config == json.loads((model / "config.json").read_text())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"scheme": "int4"}, "scheme: 'int4' is unknown, expected one of w8a8"),
        ({"scheme": "w4a8", "group": 48}, "group: 48"),
        ({"scheme": "w4a8", "group": 0}, "group: 0"),
        ({"scheme": "w8a8", "asymmetric": True}, "asymmetric: 8-bit"),
    ],
)
def test_what_no_kernel_computes_is_refused_at_once(tmp_path, options, match):
    with pytest.raises(ConfigError, match=match):
        quantize_model(tmp_path / "never-looked-at", tmp_path / "out", **options)


def test_a_quantized_model_is_not_quantized_again(tmp_path):
    quantize_model(write_hf(tmp_path / "model"), tmp_path / "once", "w8a8")
    with pytest.raises(ConfigError, match="quantized already"):
        quantize_model(tmp_path / "once", tmp_path / "twice", "w4a8")


def test_a_model_without_tokenizer_is_refused_before_the_work(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        quantize_model(write_hf(tmp_path / "model", tokenizer=False), tmp_path / "out", "w4a8")
    assert not (tmp_path / "out").exists()


def only_the_model(folder):
    return [item.name for item in folder.iterdir()] == ["model"]


def test_values_that_cannot_be_rounded_name_the_weight_and_leave_nothing(tmp_path):
    weights = random_weights(CONFIG)
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    with pytest.raises(WeightsError, match="model.layers.1.mlp.up_proj.weight: .*not finite"):
        quantize_model(write_hf(tmp_path / "model", weights), tmp_path / "out", "w4a8")
    assert only_the_model(tmp_path)


def test_an_existing_place_is_not_touched(tmp_path):
    model = write_hf(tmp_path / "model")
    (tmp_path / "out").symlink_to(tmp_path / "dangling")
    with pytest.raises(WeightsError, match="out: exists already"):
        quantize_model(model, tmp_path / "out", "w4a8")


def test_too_little_space_is_seen_before_the_work(tmp_path, monkeypatch):
    usage = SimpleNamespace(total=1 << 40, used=1 << 40, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(WeightsError, match="0 MB free, expected .* MB; free some space"):
        quantize_model(write_hf(tmp_path / "model"), tmp_path / "out", "w4a8")
    assert only_the_model(tmp_path)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    append = store.SafetensorsWriter._append

    def full(self, name, array):
        if "layers.1" in name:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, name, array)

    monkeypatch.setattr(store.SafetensorsWriter, "_append", full)
    with pytest.raises(WeightsError, match="out: cannot be written: the disk is full; free some space"):
        quantize_model(write_hf(tmp_path / "model"), tmp_path / "out", "w4a8")
    assert only_the_model(tmp_path)


def test_the_writer_says_that_the_disk_is_full():
    with pytest.raises(OSError) as caught, store.SafetensorsWriter(Path("/dev/full"), 1) as writer:
        writer.add("weight", np.zeros(1 << 20, np.float16))
    assert "the disk is full" in store.describe_os_error(caught.value)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    model = write_hf(tmp_path / "model")
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="out: cannot be written"):
        quantize_model(model, tmp_path / "file" / "out", "w4a8")


def test_a_row_too_wide_for_one_scale_is_refused():
    with pytest.raises(WeightsError, match="70000 inputs share one scale, the kernels take 65536"):
        quantize_rtn(np.zeros((2, 70000), np.float32), 8, 0, False)


def test_what_killed_processes_left_is_removed_by_the_next(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    parts = {
        f".out.{ended.pid}-1.partial": True,
        f".out.{os.getpid()}-1.partial": False,  # of a process that lives
        f".other.{ended.pid}-1.partial": False,  # of another result
        ".out.name.partial": False,
    }
    for name in parts:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
        for path in (tmp_path / name / "model.safetensors", tmp_path / name):
            os.utime(path, (0, 0))
    young = tmp_path / f".out.{ended.pid}-2.partial"  # perhaps of a living process of another machine
    young.mkdir()
    with store.atomic_directory(tmp_path / "out", 0) as folder:
        (folder / "file").write_text("whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"out", young.name, *(name for name, gone in parts.items() if not gone)}


def test_of_two_that_write_the_same_place_the_second_is_told(tmp_path):
    with pytest.raises(WeightsError, match="out: was made by another process meanwhile"):
        with store.atomic_directory(tmp_path / "out", 0):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "file").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
