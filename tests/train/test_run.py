"""A run from its first step to the model it leaves, and on again after it was stopped."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from train_runs import COSINE, commits, losses, make_data, read_lines, settings, weights, write_model
from transformers import AutoModelForCausalLM

from mindspeed_ms.checkpoint.store import CheckpointStore
from mindspeed_ms.config.base import load_yaml
from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.data.loader import BucketLoader
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.evaluate import Evaluation, Evaluator
from mindspeed_ms.train.run import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def everything(data, out):
    """A run that does all that there is between two steps."""
    values = settings(data, out, schedule=COSINE, data__eval=str(data / "held-out"))
    values["run"] |= {"eval_every": 6, "samples": ["w5 w6"], "sample_tokens": 4, "sample_every": 6}
    return values


def go(values, resume=False, observe=None):
    return train(TrainConfig.parse(values), resume=resume, observe=observe)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that nothing interrupts: its folder, what it answered and what it told."""
    out, told = tmp_path_factory.mktemp("whole") / "run", []
    done = go(everything(data, out), observe=lambda kind, step, fields: told.append((kind, step)))
    return out, done, told


def test_a_run_leaves_what_it_says(whole):
    out, done, _ = whole
    assert (done.step, done.steps, done.stopped, done.adapter) == (12, 12, None, None)
    assert done.model == out / "model"
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoints", "config.yaml", "events", "metrics.jsonl", "model", "run.json", "run.lock", "samples.jsonl",
    ]  # fmt: skip
    assert commits(out) == [10, 12]
    assert load_yaml(out / "config.yaml", TrainConfig).run.out == str(out)


def test_it_tells_its_observer_what_it_writes(whole):
    out, _, told = whole
    written = [(line["kind"], line["step"]) for line in read_lines(out)]
    assert [entry for entry in written if entry[0] not in ("compile", "operators")] == told
    assert [entry for entry in told if entry[0] in ("eval", "sample")] == [
        ("eval", 6), ("sample", 6), ("eval", 12), ("sample", 12),
    ]  # fmt: skip


def test_it_tells_of_each_checkpoint_when_it_is_there(whole):
    lines = read_lines(whole[0], "checkpoint")
    assert [line["of"] for line in lines] == [5, 10, 12]
    assert [line["base"] for line in lines] == [True, False, False]
    for line in lines:
        assert line["of"] <= line["step"] and line["path"].endswith(f"step-{line['of']:08d}.json")
        assert 0 < line["bytes"] and line["raw_bytes"] > 1000 * 32 * 4 * 3
        assert line["seconds"] > 0 and line["blocked"] > 0


def test_it_learns(whole):
    out, done, _ = whole
    assert losses(out)[-1] < losses(out)[0] - 0.2
    first, last = read_lines(out, "eval")
    assert last["loss"] < first["loss"] and last["perplexity"] == pytest.approx(np.exp(last["loss"]))
    assert done.evaluation.loss == last["loss"]


def test_hugging_face_reads_the_model_and_finds_the_same_perplexity(whole, data):
    out, done, _ = whole
    model = AutoModelForCausalLM.from_pretrained(out / "model").double()
    loader = BucketLoader(
        data / "held-out", batch_size=1, shuffle=False, columns=["input_ids", "labels", "segment_ids"], tensors=False
    )
    total, tokens = 0.0, 0
    for batch in loader:
        # a document at a time: what stands beside it in its row is none of its business
        for number in range(1, int(batch["segment_ids"].max()) + 1):
            inside = batch["segment_ids"] == number
            ids, labels = (torch.tensor(batch[name][inside][None]).long() for name in ("input_ids", "labels"))
            if (labels != -100).any():
                with torch.no_grad():
                    logits = model(ids).logits[0]
                total += torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum").item()
                tokens += int((labels != -100).sum())
    assert done.evaluation.tokens == tokens
    assert done.evaluation.loss == pytest.approx(total / tokens, rel=1e-5)


def test_the_main_commands_take_the_model(whole):
    from mindspeed_ms.weights import open_model

    source = open_model(whole[0] / "model")
    assert source.spec.vocab_size == 1000 and source.tokenizer.eos_token_ids == [1]


def test_samples_are_written_down(whole):
    lines = [json.loads(line) for line in (whole[0] / "samples.jsonl").read_text().splitlines()]
    assert [(line["step"], line["prompt"]) for line in lines] == [(6, "w5 w6"), (12, "w5 w6")]
    assert all(word.startswith("w") for line in lines for word in line["text"].split())


def test_a_run_that_was_stopped_goes_on_bit_by_bit(whole, data, tmp_path):
    """By SIGTERM; SIGINT is sent to the command line in test_run_faults.py."""

    def stop_at_7(kind, step, fields):
        if (kind, step) == ("step", 7):
            os.kill(os.getpid(), signal.SIGTERM)

    first = go(everything(data, tmp_path / "run"), observe=stop_at_7)
    assert (first.step, first.stopped, first.model) == (7, signal.SIGTERM, None)
    assert read_lines(tmp_path / "run", "end")[-1]["reason"] == "interrupted"
    second = go(everything(data, tmp_path / "run"), resume=True)
    assert (second.step, second.stopped) == (12, None)
    assert losses(tmp_path / "run") == losses(whole[0])
    assert weights(tmp_path / "run") == weights(whole[0])
    assert (tmp_path / "run" / "samples.jsonl").read_text() == (whole[0] / "samples.jsonl").read_text()
    assert second.tokens == whole[1].tokens and second.evaluation.loss == whole[1].evaluation.loss


def test_after_a_crash_it_goes_on_from_the_last_checkpoint_and_no_step_is_there_twice(whole, data, tmp_path):
    class Crash(Exception):
        pass

    def crash_at_9(kind, step, fields):
        if (kind, step) == ("step", 9):
            raise Crash

    with pytest.raises(Crash):
        go(everything(data, tmp_path / "run"), observe=crash_at_9)
    with open(tmp_path / "run" / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "step", "st')
    go(everything(data, tmp_path / "run"), resume=True)
    assert read_lines(tmp_path / "run", "resume")[0]["step"] == 5
    assert losses(tmp_path / "run") == losses(whole[0])
    assert weights(tmp_path / "run") == weights(whole[0])


def test_a_longer_run_goes_on_with_a_complete_one_and_says_what_changed(data, tmp_path):
    out = tmp_path / "run"
    go(settings(data, out, run__steps=2))
    go(settings(data, out, run__steps=4, run__keep=5), resume=True)
    assert read_lines(out, "resume")[0]["changes"] == ["run.steps was 2 and is 4", "run.keep was 2 and is 5"]
    assert len(losses(out)) == 4
    assert load_yaml(out / "config.yaml", TrainConfig).run.steps == 4
    with pytest.raises(TrainError, match="checkpoint is of step 4, expected at least that many steps, not 3"):
        go(settings(data, out, run__steps=3, run__keep=5), resume=True)


def test_checkpoints_are_kept_by_age_by_distance_and_by_held_out_loss(data, tmp_path, monkeypatch):
    values = settings(data, tmp_path / "run", run__steps=8, run__save_every=1, data__eval=str(data / "held-out"))
    values["run"] |= {"eval_every": 2, "keep": 1, "keep_every": 3, "keep_best": 1}
    held_out = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(Evaluator, "__call__", lambda self: Evaluation(next(held_out), 1.0, 1, 0.0))
    go(values)
    assert commits(tmp_path / "run") == [3, 4, 6, 8]


def test_micro_batches_over_epochs_take_every_row_once(data, tmp_path):
    out = tmp_path / "run"
    changes = {"run__steps": None, "run__epochs": 1.0, "step__micro_batches": 4}
    done = go(settings(data, out, **changes))
    steps = read_lines(out, "step")
    assert [step["rows"] for step in steps] == [16, 16, 8]
    assert done.tokens == BucketLoader(data / "set", batch_size=1).manifest.tokens


def test_all_choices_of_a_step_go_on_bit_by_bit_too(data, tmp_path):
    """Mixed precision with a dynamic scale, recomputed layers, optimizer state in files, micro-batches."""
    step = {"amp": "O2", "loss_scale": "dynamic", "recompute": True, "offload_optimizer": True, "micro_batches": 2}
    go(settings(data, tmp_path / "whole", step=step, run__steps=4))
    go(settings(data, tmp_path / "run", step=step, run__steps=2))
    go(settings(data, tmp_path / "run", step=step, run__steps=4), resume=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert not (tmp_path / "run" / "optimizer-state").exists()


def test_lora_trains_adapters_and_writes_them_alone_and_merged(data, tmp_path):
    base = write_model(tmp_path / "base", data)
    changes = {"model": {"from": str(base)}, "lora": {"rank": 2, "dropout": 0.1, "merge": True}}
    values = settings(data, tmp_path / "run", run__steps=3, run__save_every=2, **changes)

    class Crash(Exception):
        pass

    def crash_at_3(kind, step, fields):
        if (kind, step) == ("step", 3):
            raise Crash

    whole = go({**values, "run": {**values["run"], "out": str(tmp_path / "whole")}})
    with pytest.raises(Crash):
        go(values, observe=crash_at_3)
    done = go(values, resume=True)
    assert done.adapter == tmp_path / "run" / "adapter"
    assert weights(done.out) == weights(whole.out)
    assert losses(done.out) == losses(whole.out)
    # A checkpoint of an adapter does not hold the weights that it leaves alone.
    saved = CheckpointStore(tmp_path / "run" / "checkpoints", write=False).load(3).tensors
    assert not any(name.endswith("q_proj.weight") for name in saved)
    merged, before = load_file(done.model / "model.safetensors"), load_file(base / "model.safetensors")
    adapter = load_file(done.adapter / "adapter_model.safetensors")
    for name, array in before.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.weight" in adapter:
            a, b = (adapter[f"{stem}.lora_{part}.weight"].astype(np.float64) for part in "AB")
            array = array + 16 / 2 * b @ a
        assert np.abs(merged[name] - array).max() < 1e-6


def test_an_adapter_does_not_go_on_with_another_model(data, tmp_path):
    changes = {"lora": {"rank": 2}, "run__steps": 1}
    go(settings(data, tmp_path / "run", model={"from": str(write_model(tmp_path / "base", data))}, **changes))
    other = {"model": {"from": str(write_model(tmp_path / "other", data, seed=1))}, **changes}
    with pytest.raises(TrainError, match="model.from: .*other does not hold the weights that the run's adapter"):
        go(settings(data, tmp_path / "run", **other), resume=True)


def test_a_moved_data_set_is_the_same_data_set(data, tmp_path):
    shutil.copytree(data, tmp_path / "first")
    go(settings(tmp_path / "first", tmp_path / "run", run__steps=1))
    (tmp_path / "first").rename(tmp_path / "second")
    values = settings(tmp_path / "second", tmp_path / "run", run__steps=2)
    assert go(values, resume=True).step == 2
