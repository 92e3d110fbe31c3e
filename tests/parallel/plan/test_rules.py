import dataclasses

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import rules
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.settings import Job, Settings

QWEN = read_model("qwen2.5-7b")  # 28 heads, 4 key-value heads, 28 layers
EXPERTS = read_model("qwen3-30b-a3b")  # 128 experts


@pytest.mark.parametrize(
    ("shape", "settings", "words"),
    [
        (QWEN, Settings(tensor=3), ["tensor 3", "28 attention heads", "1, 2, 4"]),
        (QWEN, Settings(tensor=7), ["tensor 7", "4 key-value heads", "1, 2, 4"]),
        (QWEN, Settings(tensor=8), ["tensor 8", "28 attention heads"]),
        (QWEN, Settings(pipeline=5), ["pipeline 5", "28 layers", "1, 2, 4, 7, 14, 28", "6,6,6,5,5"]),
        (QWEN, Settings(pipeline=29), ["pipeline 29", "28 layers"]),
        (QWEN, Settings(pipeline=2, layers=(20, 9)), ["29", "28 layers"]),
        (QWEN, Settings(pipeline=2, layers=(28,)), ["1 chunks", "2 numbers"]),
        (QWEN, Settings(pipeline=2, layers=(28, 0)), ["without a layer"]),
        (QWEN, Settings(data=4, expert=2), ["expert 2", "no experts"]),
        (EXPERTS, Settings(data=6, expert=3), ["expert 3", "128 experts"]),
        (EXPERTS, Settings(data=2, expert=4), ["expert 4", "data 2", "1, 2"]),
        (QWEN, Settings(data=0), ["data is 0"]),
        (QWEN, Settings(tensor=True), ["tensor is True"]),
        (QWEN, Settings(zero=4), ["zero is 4"]),
        (QWEN, Settings(sequence_parallel=True), ["sequence_parallel", "tensor is 1"]),
        (QWEN, Settings(pipeline=2, virtual=2), ["virtual 2", "1f1b"]),
        (QWEN, Settings(pipeline=2, schedule="interleaved"), ["virtual 1"]),
        (QWEN, Settings(virtual=2, schedule="interleaved"), ["pipeline 1"]),
        (
            QWEN,
            Settings(pipeline=2, virtual=2, schedule="interleaved", micro_batches=3),
            ["multiple of pipeline 2", "not 3"],
        ),
        (QWEN, Settings(recompute_layers=(1,)), ["recompute none"]),
        (QWEN, Settings(recompute="full", pipeline=2, recompute_layers=(1,)), ["1 numbers", "2 stages"]),
        (QWEN, Settings(recompute="full", recompute_layers=(-1,)), ["negative"]),
    ],
)
def test_settings_that_cannot_run_are_refused_with_what_would(shape, settings, words):
    with pytest.raises(ConfigError) as error:
        rules.validate(shape, settings)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "job", "words"),
    [
        (Settings(context=4), Job(seq=4100), ["seq 4100", "8 pieces"]),
        (Settings(tensor=4, sequence_parallel=True), Job(seq=4098), ["seq 4098", "context x tensor = 4"]),
        (Settings(context=2), Job(seq=4096, flash_attention=False), ["flash attention"]),
        (Settings(data=2, micro_batches=3), Job(seq=4096, global_batch=8), ["6 sequences", "8"]),
        (Settings(), Job(seq=0), ["seq is 0"]),
    ],
)
def test_settings_that_do_not_fit_the_job_are_refused(settings, job, words):
    with pytest.raises(ConfigError) as error:
        rules.validate(QWEN, settings, None, job)
    assert all(word in str(error.value) for word in words), error.value


def test_a_wrong_number_of_devices_is_refused_with_the_data_degree_that_fits():
    with pytest.raises(ConfigError, match="= 8 devices, but there are 16; data 4 would use them all"):
        rules.validate(QWEN, Settings(data=2, tensor=4), 16)
    with pytest.raises(ConfigError, match="must divide 6: 1, 2, 3, 6"):
        rules.validate(QWEN, Settings(tensor=4), 6)


def test_what_divides_is_accepted():
    settings = Settings(data=2, tensor=4, pipeline=2, micro_batches=4, sequence_parallel=True, zero=1)
    rules.validate(QWEN, settings, 16, Job(seq=4096, global_batch=8))
    rules.validate(QWEN, dataclasses.replace(settings, layers=(15, 13)), 16, Job(seq=4096, global_batch=8))


def test_advised_tensor_degrees_are_those_that_are_accepted():
    for name in ("llama2-70b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v2", "mixtral-8x7b", "smollm2-135m"):
        shape = read_model(name)
        accepted = [t for t in range(1, 129) if not rules.problems(shape, Settings(tensor=t))]
        assert rules.tensor_degrees(shape) == accepted
