"""Two processes under msrun that share a step's batches make the step that one process makes of them all."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from train_models import drawn_weights, make_batch, make_spec, our_model
from train_runs import two_ranks

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    command, env = two_ranks(out, SCRIPT)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    logs = "".join(log.read_text(errors="replace")[-3000:] for log in (out / "log").glob("worker_*.log"))
    assert done.returncode == 0, done.stdout[-2000:] + logs
    return [dict(np.load(out / f"rank{rank}.npz")) for rank in (0, 1)]


def test_both_end_with_the_same_bits(ranks):
    assert ranks[0].keys() == ranks[1].keys()
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)


def test_they_make_the_steps_of_one_process(ranks):
    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import AdamW
    from mindspeed_ms.train.step import TrainStep

    spec = make_spec(num_hidden_layers=1)
    step = TrainStep(CausalLMLoss(our_model(spec, drawn_weights(spec))), AdamW(eps=1e-4), 2e-3, max_grad_norm=0.5)
    losses = [step([make_batch(2 * number), make_batch(2 * number + 1)]).loss for number in range(3)]
    losses.append(step([make_batch(seed) for seed in (10, 11, 12, 13)]).loss)
    np.testing.assert_allclose(ranks[0]["losses"], losses, rtol=1e-6)
    for name, value in step.tensors().items():
        np.testing.assert_allclose(ranks[0][name], value, atol=1e-6, err_msg=name)
