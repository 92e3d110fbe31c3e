"""What a step must not hold it does not hold, and what is to lower memory does: each measured in its own process."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from train_models import make_spec

from mindspeed_ms.train import memory

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say its peak")
ROOT = Path(__file__).resolve().parents[2]


def measure(spec, rows, length, recompute=False, offload="", saves=""):
    command = [sys.executable, str(Path(__file__).with_name("memory_of_steps.py")), json.dumps(spec), rows, length]
    done = subprocess.run(
        [*map(str, command), "recompute" if recompute else "", str(offload), str(saves)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MINDSPEED_MS_KERNELS": "native"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_there_is_no_matrix_of_all_scores_and_none_of_all_logits():
    heads, tokens, vocabulary = 16, 2048, 32768
    spec = {"num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 1}
    found = measure({**spec, "vocab_size": vocabulary, "max_position_embeddings": tokens}, 1, tokens)
    scores, logits = 4 * heads * tokens * tokens, 4 * tokens * vocabulary
    # Compilation, weights, gradients and all else are together less than one of them.
    assert found["peak"] - found["before"] < min(scores, logits)


def sizes(spec):
    numbers = sum(math.prod(shape) for shape in spec.parameter_shapes().values())
    return {"trained": numbers, "state_floats": 2 * numbers}


def test_a_tied_table_of_many_tokens_takes_what_the_estimate_says():
    """Two gradients of it and their sum, and the block of logits that the loss works on."""
    changes = {"vocab_size": 151_936, "hidden_size": 128, "num_hidden_layers": 1, "tie_word_embeddings": True}
    spec = make_spec(**changes)
    peak = measure(changes, 1, 128)["peak"]
    assert 0.85 * peak < memory.estimate(spec, [(1, 128)], **sizes(spec)).total < 1.3 * peak


def test_recomputed_layers_take_less_at_the_peak_as_the_estimate_says():
    changes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "max_position_embeddings": 512}
    with ThreadPoolExecutor() as pool:
        plain, less = pool.map(lambda recompute: measure(changes, 16, 512, recompute)["peak"], (False, True))
    spec = make_spec(**changes)
    expected = [
        memory.estimate(spec, [(16, 512)], recompute=recompute, **sizes(spec)).total for recompute in (False, True)
    ]
    assert 0.6 * (expected[0] - expected[1]) < plain - less
    for estimate, peak in zip(expected, (plain, less), strict=True):
        assert 0.85 * peak < estimate < 1.3 * peak


def test_optimizer_state_on_disk_is_not_in_memory(tmp_path):
    changes = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 8192, "num_hidden_layers": 1}
    with ThreadPoolExecutor() as pool:
        plain, less = pool.map(
            lambda folder: measure(changes, 1, 16, offload=folder)["after"], ("", tmp_path / "state")
        )
    state = sum(path.stat().st_size for path in (tmp_path / "state").iterdir())
    assert state > 8 * sizes(make_spec(**changes))["trained"] * 0.99
    assert plain - less > 0.4 * state


def test_checkpoints_take_what_the_estimate_says(tmp_path):
    changes = {"vocab_size": 16384, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 1}
    with ThreadPoolExecutor() as pool:
        plain, more = pool.map(lambda folder: measure(changes, 1, 16, saves=folder)["peak"], ("", tmp_path / "saves"))
    parts = sizes(make_spec(**changes))
    estimate = memory.estimate(make_spec(**changes), [(1, 16)], saved_floats=sum(parts.values()), **parts)
    assert 0.85 * more < estimate.total < 1.3 * more
    assert more - plain < 1.2 * estimate.snapshot
