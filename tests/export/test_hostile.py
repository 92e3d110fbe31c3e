"""A bundle is not trusted: whatever is wrong with it is refused in one sentence, before anything of it is run."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest

from mindspeed_ms.errors import BuildError, BundleError
from mindspeed_ms.export.files import describe_file
from mindspeed_ms.export.reader import open_bundle
from mindspeed_ms.export.schema import parse_info
from mindspeed_ms.serving.engine.batch import Chunk, make_batch
from mindspeed_ms.serving.engine.runner import RaggedRunner

FILES = ["graph.mindir", "weights.safetensors", "tokenizer.json"]


def edit(bundle, change):
    """Rewrites bundle.json after `change(info)`."""
    info = json.loads((bundle / "bundle.json").read_text())
    change(info)
    (bundle / "bundle.json").write_text(json.dumps(info))


def refused(bundle, match):
    with pytest.raises(BundleError, match=match) as caught:
        open_bundle(bundle)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_refused_naming_the_file(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    refused(bundle, f"{name}: changed since the export")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_absent_file_is_refused_naming_it(bundle, name):
    data = (bundle / name).read_bytes()
    (bundle / name).write_bytes(data[:-1])
    refused(bundle, f"{name}: {len(data) - 1} bytes, bundle.json says {len(data)}")
    (bundle / name).unlink()
    refused(bundle, f"{name}: no such file")


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        (2, "newer than 1.*upgrade"),
        (0, "older than 1.*export the model again"),
        ("1", "expected 1"),
        (None, "expected 1"),
    ],
)
def test_another_format_version_is_refused_with_what_to_do(bundle, version, advice):
    edit(bundle, lambda info: info.update(format_version=version))
    refused(bundle, advice)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/x", "graph.mindir\0", "other.bin"])
def test_files_are_never_looked_for_elsewhere(bundle, name):
    edit(bundle, lambda info: info["files"].update({name: {"sha256": "0" * 64, "size": 1}}))
    refused(bundle, "files names .*expected only")


@pytest.mark.parametrize("name", ["bundle.json", *FILES])
def test_links_and_pipes_are_refused(bundle, tmp_path, name):
    outside = tmp_path / "outside"
    shutil.move(bundle / name, outside)
    (bundle / name).symlink_to(outside)
    refused(bundle, "is a symbolic link")
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    refused(bundle, "is no regular file")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "\xff",
        '{"format_version": 1, "format_version": 1}',
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"format_version": ' + "9" * 5000 + "}",
        '{"format_version": 1, "x": NaN}',
    ],
    ids=["empty", "list", "cut", "bytes", "twice", "deep-list", "deep-object", "digits", "nan"],
)
def test_json_that_is_none_or_a_bomb_is_refused(bundle, text):
    (bundle / "bundle.json").write_bytes(text.encode("latin-1"))
    refused(bundle, "not valid JSON|expected 1")


def test_no_change_of_a_few_bytes_breaks_the_reader(exported):
    """Each is either refused in one sentence or changes nothing that matters."""
    good, random = (exported / "bundle.json").read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(good)
        for place in random.integers(0, len(data), random.integers(1, 4)):
            data[place] = random.integers(256)
        try:
            parse_info(bytes(data), exported)
        except BundleError as error:
            assert "\n" not in str(error)


def test_a_huge_description_is_not_read(bundle):
    with (bundle / "bundle.json").open("wb") as file:
        file.truncate(1 << 40)
    refused(bundle, "larger than")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 4096),
        ("vocab_size", 1 << 24),
        ("hidden_size", 1 << 24),
        ("num_hidden_layers", 10**12),
        ("num_hidden_layers", -1),
        ("head_dim", 7),
        ("rms_norm_eps", 0),
        ("hidden_size", "64"),
    ],
)
def test_numbers_that_the_weights_do_not_bear_out_are_refused(bundle, field, value):
    edit(bundle, lambda info: info["spec"].update({field: value}))
    refused(bundle, field + "|cannot come from|needs at least|signature")


def test_fields_that_contradict_one_another_are_refused(bundle):
    good = (bundle / "bundle.json").read_text()
    name = "model.layers.0.mlp.up_proj.weight"
    for change, match in [
        (lambda i: i["quantization"]["weights"].update({"evil": {"bits": 4, "group": 32}}), "'evil' is no matrix"),
        (lambda i: i["quantization"]["weights"].update({name: {"bits": 4, "group": 0}}), "no kernel computes"),
        (lambda i: i["quantization"]["weights"].update({name: {"bits": 3, "group": 32}}), "bits"),
        (lambda i: i["signature"].update(extra=["int32", -1]), "signature"),
        (lambda i: i["entry_points"].append("system"), "'system'"),
        (lambda i: i["tokenizer"].update(eos_token_ids=[48]), "eos_token_ids 48 is not below vocab_size"),
        (lambda i: i.update(block_size=1), "block_size"),
        (lambda i: i.update(unknown=1), "unknown"),
        (lambda i: i["files"].pop("tokenizer.json"), "lacks tokenizer.json"),
        (lambda i: i["files"]["weights.safetensors"].update(size=-1), "size"),
        (lambda i: i["files"]["weights.safetensors"].update(sha256="x"), "sha256"),
        (lambda i: i["generation"].update(temperature=-1), "temperature"),
    ]:
        edit(bundle, change)
        refused(bundle, match)
        (bundle / "bundle.json").write_text(good)
    open_bundle(bundle)


def test_weights_that_do_not_fit_are_refused(bundle, own_cache):
    """Even when the checksum is right, for whoever changed the one could change the other."""
    from safetensors.numpy import load_file, save_file

    weights = bundle / "weights.safetensors"
    good = load_file(weights)
    norm = "model.norm.weight"
    for change, match in [
        ({norm: good[norm][:-1]}, "model.norm.weight is float32 .63., expected"),
        ({norm: good[norm].astype(np.int8)}, "model.norm.weight is int8"),
        ({norm: good[norm].astype(np.int64)}, "has type I64"),
        ({"extra": good[norm]}, "'extra' is not a part"),
    ]:
        save_file({**good, **change}, weights)
        edit(bundle, lambda info: info["files"].update({weights.name: describe_file(weights).model_dump()}))
        with pytest.raises(BundleError, match=match):
            open_bundle(bundle).arena()
    weights.write_bytes(weights.read_bytes()[: -(1 << 10)])
    edit(bundle, lambda info: info["files"].update({weights.name: describe_file(weights).model_dump()}))
    with pytest.raises(BundleError, match="truncated|ends at byte"):
        open_bundle(bundle).arena()


def test_kernels_of_another_abi_ask_for_a_refresh(bundle, own_cache):
    edit(bundle, lambda info: info.update(kernel_abi=99))
    with pytest.raises(BundleError, match="kernel_abi 99.*--refresh"):
        RaggedRunner(open_bundle(bundle))


def test_another_mindspore_is_no_reason_by_itself(bundle, own_cache):
    edit(bundle, lambda info: info.update(mindspore="2.9.1"))
    RaggedRunner(open_bundle(bundle), kv_tokens=32)


def test_without_a_compiler_one_sentence_says_so(exported, monkeypatch, tmp_path):
    from mindspeed_ms.ops.native import build

    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none.so")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler.*install g\\+\\+"):
        RaggedRunner(open_bundle(exported))


def logits(bundle):
    runner = RaggedRunner(open_bundle(bundle), kv_tokens=32)
    return runner.step(make_batch([Chunk([1, 2, 3], 0, [0], [2])], 32))


def test_a_damaged_arena_in_the_cache_is_made_again(exported, own_cache):
    first = logits(exported)
    (arena,) = (own_cache / "arenas").iterdir()
    data = bytearray(arena.read_bytes())
    for change in (
        lambda d: d.__setitem__(100, d[100] ^ 1),
        lambda d: d.__delitem__(slice(50, 60)),
        lambda d: d.clear(),
    ):
        damaged = bytearray(data)
        change(damaged)
        arena.write_bytes(damaged)
        assert (logits(exported) == first).all()
        assert arena.read_bytes() == data
    assert [item.name for item in (own_cache / "arenas").iterdir()] == [arena.name]


def test_a_cache_that_cannot_be_written_costs_one_notice(exported, own_cache, tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = logits(exported)
    (tmp_path / "file").write_text("in the way of a folder")
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot keep the packed weights here.*MINDSPEED_MS_CACHE") as caught:
        assert (logits(exported) == expected).all()
    assert len([w for w in caught if "packed weights" in str(w.message)]) == 1
