"""checkpoint export and import, as a user runs them: what goes out is loaded by others, and comes in as it was."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from checkpoint_runs import ROOT, command, refused, succeed, train
from safetensors.numpy import load_file

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.errors import WeightsError
from mindspeed_ms.weights.ckpt import CkptFile
from mindspeed_ms.weights.whole import new_path


def commit(folder, step=None):
    return CheckpointStore(folder / "checkpoints", write=False).load(step)


def equal(found, wanted):
    assert set(found) == set(wanted)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def hf_weights(run, step=None):
    tensors = commit(run, step).tensors
    return {name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")}


def test_safetensors_holds_all_tensors_or_the_weights(runs, tmp_path):
    succeed("export", runs / "run", "--to", tmp_path / "all.safetensors", "--format", "safetensors", "--step", 10)
    equal(load_file(tmp_path / "all.safetensors"), commit(runs / "run", 10).tensors)
    succeed("export", runs / "run", "--to", tmp_path / "w.safetensors", "--format", "safetensors", "--weights")
    equal(load_file(tmp_path / "w.safetensors"), hf_weights(runs / "run"))


def test_mindspore_loads_an_exported_ckpt(runs, tmp_path):
    import mindspore as ms

    succeed("export", runs / "run", "--to", tmp_path / "all.ckpt", "--format", "ckpt")
    loaded = ms.load_checkpoint(str(tmp_path / "all.ckpt"), crc_check=True)
    state = json.loads(loaded.pop("mindspeed_ms.commit"))
    assert state["step"] == 12
    equal({name: value.asnumpy() for name, value in loaded.items()}, commit(runs / "run").tensors)


def test_transformers_loads_an_exported_model_and_it_is_that_of_the_run(runs, tmp_path):
    from transformers import AutoModelForCausalLM

    succeed("export", runs / "run", "--to", tmp_path / "hf")
    equal(load_file(tmp_path / "hf/model.safetensors"), load_file(runs / "run/model/model.safetensors"))
    assert sorted(os.listdir(tmp_path / "hf")) == sorted(os.listdir(runs / "run/model"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    np.testing.assert_array_equal(
        model.state_dict()["model.embed_tokens.weight"].numpy(), hf_weights(runs / "run")["model.embed_tokens.weight"]
    )


def test_of_adapters_the_directory_that_the_run_writes_is_exported(runs, tmp_path):
    succeed("export", runs / "lora", "--to", tmp_path / "adapter")
    equal(
        load_file(tmp_path / "adapter/adapter_model.safetensors"),
        load_file(runs / "lora/adapter/adapter_model.safetensors"),
    )
    read = [
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (tmp_path / "adapter", runs / "lora/adapter")
    ]
    assert read[0] == read[1]
    assert "adapters, which have no form in MindFormers" in refused(
        "export", runs / "lora", "--to", tmp_path / "mf", "--format", "mindformers"
    )


def test_mindformers_goes_out_and_comes_in(runs, tmp_path):
    succeed("export", runs / "run", "--to", tmp_path / "mf", "--format", "mindformers")
    assert "model.tok_embeddings.embedding_weight" in CkptFile(tmp_path / "mf/mindformers.ckpt").tensors
    succeed("import", tmp_path / "mf", "--to", tmp_path / "hf")
    equal(load_file(tmp_path / "hf/model.safetensors"), load_file(runs / "run/model/model.safetensors"))
    assert (tmp_path / "hf/tokenizer.json").exists()


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_weights_alone_come_in_as_a_model_directory(runs, tmp_path, form):
    file = tmp_path / f"w.{form}"
    succeed("export", runs / "run", "--to", file, "--format", form, "--weights")
    assert "give their config.json or its folder with --config" in refused("import", file, "--to", tmp_path / "hf")
    succeed("import", file, "--to", tmp_path / "hf", "--config", runs / "run/model")
    equal(load_file(tmp_path / "hf/model.safetensors"), load_file(runs / "run/model/model.safetensors"))
    assert (tmp_path / "hf/tokenizer.json").exists()


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_a_whole_commit_comes_in_and_the_run_goes_on_to_the_same_bits(runs, run, tmp_path, form):
    file = tmp_path / f"all.{form}"
    succeed("export", run, "--to", file, "--format", form, "--step", 10)
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "model")
    succeed("import", file, "--to", run)
    found, wanted = commit(run, 10), commit(runs / "run", 10)
    equal(found.tensors, wanted.tensors)
    assert (found.state, found.identity, found.metric) == (wanted.state, wanted.identity, wanted.metric)
    done = train(run, "--resume")
    assert done.returncode == 0, done.stderr
    equal(commit(run, 12).tensors, commit(runs / "run", 12).tensors)


def test_what_is_there_already_is_not_touched(runs, tmp_path):
    (tmp_path / "out").mkdir()
    for form in ("safetensors", "ckpt", "hf", "mindformers"):
        assert "is there already" in refused("export", runs / "run", "--to", tmp_path / "out", "--format", form)
    succeed("export", runs / "run", "--to", tmp_path / "all.ckpt", "--format", "ckpt")
    assert "holds checkpoints already" in refused("import", tmp_path / "all.ckpt", "--to", runs / "run")
    assert "is there already" in refused("import", tmp_path / "all.ckpt", "--to", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["all.ckpt", "out"] and not os.listdir(tmp_path / "out")


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path):
    path = next((run / "checkpoints").glob("step-00000012.*.bin"))
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    line = refused("export", run, "--to", tmp_path / "out", "--step", 12)
    assert "the newest good checkpoint is that of step 10" in line
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_an_interrupted_export_leaves_nothing(runs, tmp_path):
    code = (
        "import sys, time, mindspeed_ms.weights.safetensors_writer as w\n"
        "from mindspeed_ms.cli import main\n"
        "old = w.Source.nbytes.fget\n"
        "def slow(self):\n    print('writing', flush=True); time.sleep(30)\n"
        "w.Source.nbytes = property(slow)\n"
        f"sys.argv = ['x', 'checkpoint', 'export', {str(runs / 'run')!r}, '--to', {str(tmp_path / 'out')!r}]\n"
        "main.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"writing\n"
    assert os.listdir(tmp_path)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    process.stdout.close()
    assert not os.listdir(tmp_path)


def test_tensors_go_out_and_come_in_without_loading_mindspore(runs, tmp_path):
    code = "import sys\nsys.modules['mindspore'] = None\nfrom mindspeed_ms.cli import main\nmain.main()\n"
    for arguments in (
        ["export", runs / "run", "--to", tmp_path / "x.ckpt", "--format", "ckpt"],
        ["import", tmp_path / "x.ckpt", "--to", tmp_path / "store"],
        ["verify", tmp_path / "store"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, "checkpoint", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 pickle", "is no .ckpt of MindSpore"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00{", "truncated or no safetensors"),
        (b"\x02\0\0\0\0\0\0\0{}", "--config"),
    ],
)
def test_a_bad_source_is_one_clear_line(tmp_path, content, says):
    (tmp_path / "file").write_bytes(content)
    assert says in refused("import", tmp_path / "file", "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_state_that_lies_is_one_clear_line(runs, tmp_path):
    from safetensors.numpy import save_file

    array = {"x": np.zeros(2, np.float32)}
    for text in ("{", "[]", '{"step": "5", "state": {}, "identity": {}, "metric": null}'):
        save_file(array, tmp_path / "x.safetensors", metadata={"mindspeed_ms.commit": text})
        line = refused("import", tmp_path / "x.safetensors", "--to", tmp_path / "out")
        assert "is not what `checkpoint export` writes" in line


def test_what_cannot_be_done_is_one_clear_line(runs, tmp_path):
    assert "--to is empty" in refused("export", runs / "run", "--to", "")
    assert "--to is empty" in refused("import", runs / "run", "--to", "")
    assert "format 'onnx' is not known" in refused("export", runs / "run", "--to", tmp_path / "x", "--format", "onnx")
    assert "leave it out" in refused("export", runs / "run", "--to", tmp_path / "x", "--weights")
    assert "which model.from takes as it is" in refused("import", runs / "run/model", "--to", tmp_path / "x")
    assert "no such file" in refused("import", tmp_path / "absent", "--to", tmp_path / "x")
    shutil.copytree(runs / "run/checkpoints", tmp_path / "bare")
    assert "lies in no run" in refused("export", tmp_path / "bare", "--to", tmp_path / "x")
    assert command("export", tmp_path / "bare", "--to", tmp_path / "x.ckpt", "--format", "ckpt").returncode == 0


def test_a_tokenizer_that_has_gone_is_one_clear_line(runs, run, tmp_path):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(str(runs / "set"), str(tmp_path / "gone")))
    line = refused("export", run, "--to", tmp_path / "x")
    assert "data.train" in line and "export as safetensors or ckpt" in line
    succeed("export", run, "--to", tmp_path / "x.ckpt", "--format", "ckpt")


def test_a_whole_commit_becomes_a_folder_of_checkpoints(runs, tmp_path):
    succeed("export", runs / "run", "--to", tmp_path / "all.ckpt", "--format", "ckpt")
    succeed("import", tmp_path / "all.ckpt", "--to", tmp_path / "store")
    assert succeed("verify", tmp_path / "store").startswith("1 checkpoint,")
    assert "leave it out" in refused("import", tmp_path / "all.ckpt", "--to", tmp_path / "y", "--step", 11)


def test_a_pipe_is_no_source_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a plain file" in refused("import", tmp_path / "pipe", "--to", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "weights.ckpt")
    assert "not a plain file" in refused("import", tmp_path / "folder", "--to", tmp_path / "out")
    with pytest.raises(WeightsError, match="not a plain file"):
        CkptFile(tmp_path / "pipe")


def test_why_a_place_cannot_be_written_is_told_though_nothing_can_be_removed_there_either(tmp_path, monkeypatch):
    def read_only(path, *values, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    with pytest.raises(WeightsError, match=r"out: cannot be written \(Read-only file system\)"):
        with new_path(tmp_path / "out"):
            read_only(tmp_path)
