"""Where nobody watches a terminal, a run says now and then how it goes, in sums since it last did."""

from mindspeed_ms.cli.train_output import Watch

FIELDS = {
    "learning_rate": 1e-3, "data_tokens": 100, "seconds": 0.3, "wait_seconds": 0.1, "rss_bytes": 1.5e9, "steps": 604,
    "compiled": (),
}  # fmt: skip


def test_a_line_has_loss_speed_step_time_wait_share_memory_and_what_is_left(capsys):
    with Watch(2) as watch:
        watch("step", 1, {**FIELDS, "loss": 3.0, "compiled": [{"seconds": 2.0, "reason": "first step of [8, 512]"}]})
        watch("step", 2, {**FIELDS, "loss": 2.5})
        watch("step", 3, {**FIELDS, "loss": 2.4, "data_tokens": 900})
        watch("step", 4, {**FIELDS, "loss": 2.25, "wait_seconds": 0.9, "seconds": 0.1})
        watch("skip", 5, {"reason": "the output of model.layers.3 is not finite"})
        watch("eval", 5, {"loss": 2.0, "perplexity": 7.389})
        watch("sample", 5, {"prompt": "once\nupon", "text": "a \x1b[31mtime"})
        watch("checkpoint", 5, {"of": 4, "bytes": 3e6, "raw_bytes": 12e6, "seconds": 1.2, "blocked": 0.04})
        watch("stop", 5, {"signal": 15})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 1: compiled in 2.0 s: first step of [8, 512]"
    # 200 tokens in 0.8 s, of which 0.2 were waiting; then 1000 in 1.4 s, 1.0 of them waiting
    first, second = lines[1:3]
    assert first == "step 2/604  loss 2.5000  lr 1.00e-03  250 tokens/s  400 ms a step  wait 25.0%  1.50 GB  4 min left"
    assert second.startswith("step 4/604  loss 2.2500  lr 1.00e-03  714 tokens/s  700 ms a step  wait 71.4%  1.50 GB  ")
    assert lines[3:] == [
        "step 5 skipped, nothing was changed: the output of model.layers.3 is not finite",
        "step 5: held-out loss 2.0000, perplexity 7.39",
        "step 5: once\\nupon » a \\x1b[31mtime",
        "step 4: checkpoint, 3.0 MB written for 12.0 MB in 1.2 s beside the run, which it held up for 40 ms",
        "finishing this batch, then a checkpoint is committed; once more to leave at once",
    ]
