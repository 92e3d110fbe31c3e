"""A disk that is full when the finished model is written: nothing that was learnt is lost."""

import resource

import pytest
from train_runs import losses, make_data, read_lines, settings, weights

from mindspeed_ms.config.train import TrainConfig
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.run import train


def test_the_model_that_found_no_room_is_written_by_the_run_that_goes_on(tmp_path):
    data = make_data(tmp_path)
    values = TrainConfig.parse(settings(data, tmp_path / "run", run__steps=2))

    def full_after_the_last_step(kind, step, fields):
        if kind == "checkpoint" and fields["of"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(TrainError, match=r"run/model: the model of 0 MB cannot be written .File too large."):
            train(values, observe=full_after_the_last_step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not (tmp_path / "run" / "model").exists()
    assert [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []
    assert read_lines(tmp_path / "run", "end")[-1]["reason"].endswith("its last checkpoint is whole")
    done = train(values, resume=True)
    assert (done.step, done.model) == (2, tmp_path / "run" / "model") and len(losses(tmp_path / "run")) == 2
    other = train(TrainConfig.parse(settings(data, tmp_path / "other", run__steps=2)))
    assert weights(done.out) == weights(other.out)
