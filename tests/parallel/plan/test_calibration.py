"""The fit to published throughputs."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.calibration import calibrate, predict
from mindspeed_ms.parallel.plan.efficiency import Efficiency, efficiency_of
from mindspeed_ms.parallel.plan.published_rows import read
from mindspeed_ms.parallel.plan.throughput_rows import runs_of
from mindspeed_ms.parallel.plan.throughputs import RUNS
from mindspeed_ms.parallel.topology.load import load_cluster


@cache
def cluster_of(devices):
    return load_cluster("910b", max(1, devices // 8))


@pytest.fixture(scope="module")
def fit():
    return calibrate([run for run in RUNS if not run.held_out], cluster_of, 0.7)


def test_a_known_share_is_found_again():
    known = Efficiency(0.43, 0.43, 0.7)
    runs = [replace(run, tokens_per_second=predict(run, cluster_of, known)) for run in RUNS[:3]]
    found = calibrate(runs, cluster_of, 0.7)
    assert found.efficiency.matmul == pytest.approx(0.43, abs=2e-3)
    assert found.error() < 0.01


def test_the_table_holds_what_the_published_runs_give(fit):
    assert efficiency_of("910B3").matmul == pytest.approx(fit.efficiency.matmul, abs=2e-3)
    assert efficiency_of("unknown") == efficiency_of("910B3")


def test_a_dense_run_left_out_of_the_fit_is_predicted_within_a_quarter_and_mostly_within_a_tenth(fit):
    errors = sorted(abs(item.left_out) for item in fit.residuals)
    assert errors[-1] < 0.25 and errors[len(errors) // 2] < 0.10
    assert fit.error() < 0.13


def test_dense_runs_never_fitted_to_are_predicted_within_a_tenth(fit):
    fresh = [run for run in RUNS if run.held_out and not run.shape.experts and run.job.seq > 2048]
    assert len(fresh) == 5
    for run in fresh:
        assert predict(run, cluster_of, fit.efficiency) == pytest.approx(run.tokens_per_second, rel=0.10)


def test_one_run_alone_is_refused():
    with pytest.raises(ConfigError, match="two or more"):
        calibrate(RUNS[:1], cluster_of, 0.7)


def test_throughputs_of_a_table_meet_the_configuration_of_the_same_model():
    rows = read(Path(__file__).parent / "data" / "published_plans.csv")
    runs, left = runs_of(rows)
    assert len(runs) + len(left) == sum(row["kind"] == "published-throughput" for row in rows)
    found = {run.source.split("/")[-1]: run for run in runs}
    assert all(run.tokens_per_second > 0 for run in runs)
    for run in runs:
        same = next((known for known in RUNS if known.tokens_per_second == run.tokens_per_second), None)
        assert same and (run.settings.tensor, run.settings.pipeline) == (same.settings.tensor, same.settings.pipeline)
        assert run.shape.layers == same.shape.layers and run.job.seq == same.job.seq
    assert not any("lora" in name for name in found)
