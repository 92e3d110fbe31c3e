import dataclasses

import pytest

from mindspeed_ms.parallel.plan import memory, parameters, pipeline_schedule
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.settings import Job, Settings

MB = 1 << 20
QWEN = read_model("qwen2.5-7b")
# Chapter 5 of MindSpore-Compatible-Distributed-Training-Principles-and-Practices (mindspore-courses, DryRun.md):
# MindSpeed's pretrain_qwen25_7b_32k_ms.sh with TP=2, PP=2, SEQ_LEN=10240, MBS=1, GBS=64 on 4 cards of 64 GB; no
# distributed optimizer, --sequence-parallel --bf16 --use-flash-attn --use-fused-swiglu. MB, without and with fragments.
MEASURED = [
    ("none", "run", 55405, 57400),
    ("none", "dry run", 55389, 57341),
    ("full", "run", 35073, 36174),
    ("full", "dry run", 34946, 35720),
]


def qwen(recompute):
    return Settings(tensor=2, pipeline=2, micro_batches=64, sequence_parallel=True, recompute=recompute)


@pytest.mark.parametrize(("recompute", "kind", "used", "with_fragments"), MEASURED)
def test_memory_of_a_published_run_is_met(recompute, kind, used, with_fragments):
    first = memory.stage_memory(QWEN, qwen(recompute), Job(seq=10240), 0)
    assert first.pool / MB == pytest.approx(used, rel=0.02)
    assert (first.pool + first.margin) / MB == pytest.approx(with_fragments, rel=0.05)


def test_without_recomputation_the_first_stage_needs_most():
    assert memory.peak(QWEN, qwen("none"), Job(seq=10240)) == memory.stage_memory(QWEN, qwen("none"), Job(seq=10240), 0)


def test_weights_gradients_and_optimizer_take_18_bytes_a_parameter():
    """Rajbhandari et al. 2020, section 3.1, has 16 with gradients in half; Megatron's are float32."""
    shape = read_model("llama2-7b")
    alone = memory.stage_memory(shape, Settings(), Job(seq=128), 0)
    assert alone.parameters + alone.gradients + alone.optimizer == 18 * parameters.total(shape)


@pytest.mark.parametrize(
    ("zero", "gigabytes"),
    [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)],  # figure 1 of Rajbhandari et al. 2020: 7.5B on 64 devices
)
def test_zero_spreads_what_the_paper_says(zero, gigabytes):
    hidden = 4096
    config = {"model_type": "gpt2", "n_embd": hidden, "n_layer": 37, "n_head": 32, "vocab_size": 10752}
    shape = read_model(config)
    assert parameters.total(shape) == pytest.approx(7.5e9, rel=0.003)
    kept = memory.stage_memory(shape, Settings(data=64, zero=zero), Job(seq=128, gradient_bytes=2), 0)
    state = kept.parameters + kept.gradients + kept.optimizer
    assert state / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_experts_are_spread_over_fewer_replicas_than_the_rest():
    shape = read_model("qwen3-30b-a3b")
    settings = Settings(data=8, expert=4, zero=1)
    count = parameters.stage_count(shape, settings, 0)
    kept = memory.stage_memory(shape, settings, Job(seq=128), 0)
    assert kept.optimizer == 12 * (count.dense // 8 + count.expert // 2)
    assert (
        count.expert
        == sum(piece.numbers for piece in parameters.layer_pieces(shape, True) if piece.split == "expert")
        * shape.layers
        // 4
    )


def replay(pipeline, micro_batches, stage):
    """The most micro-batches that wait on a stage, by playing the passes of 1F1B one after another."""
    warm = min(pipeline - stage - 1, micro_batches)
    passes = ["F"] * warm + ["F", "B"] * (micro_batches - warm) + ["B"] * warm
    alive = most = 0
    for one in passes:
        alive += 1 if one == "F" else -1
        most = max(most, alive)
    return most


@pytest.mark.parametrize("pipeline", [1, 2, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 3, 16])
def test_micro_batches_in_flight_are_those_of_the_schedule_played_out(pipeline, micro_batches):
    for stage in range(pipeline):
        settings = Settings(pipeline=pipeline, micro_batches=micro_batches)
        assert memory.in_flight(settings, stage) == (replay(pipeline, micro_batches, stage),)
        gpipe = dataclasses.replace(settings, schedule="gpipe")
        assert memory.in_flight(gpipe, stage) == (micro_batches,)


def test_chunks_in_flight_are_those_of_the_schedules_that_time_is_told_by():
    for p, m, v, schedule in (
        (4, 8, 1, "1f1b"),
        (4, 8, 2, "interleaved"),
        (8, 16, 3, "interleaved"),
        (4, 8, 1, "zero_bubble"),
    ):
        for stage in range(p):
            settings = Settings(pipeline=p, micro_batches=m, virtual=v, schedule=schedule)
            kept = sum(memory.in_flight(settings, stage)) / v
            assert kept == pytest.approx(pipeline_schedule.in_flight(schedule, p, m, v, stage))


def test_interleaving_keeps_the_share_more_that_its_paper_says():
    """Narayanan et al. 2021: 1 + (p - 1) / (p v) times the activations of 1F1B on the first stage."""
    p, v = 4, 2
    settings = Settings(pipeline=p, virtual=v, schedule="interleaved", micro_batches=16)
    assert sum(memory.in_flight(settings, 0)) / v == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_recomputing_some_layers_lies_between_none_and_all():
    job = Job(seq=4096)
    none, some, full = (
        memory.stage_memory(QWEN, dataclasses.replace(qwen(kind), recompute_layers=layers), job, 0).activations
        for kind, layers in (("none", None), ("full", (7, 7)), ("full", None))
    )
    assert some == (none + full) // 2


def test_context_and_sequence_parallelism_divide_activations():
    job = Job(seq=8192)
    whole = memory.stage_memory(QWEN, Settings(tensor=2, sequence_parallel=True), job, 0).activations
    assert (
        memory.stage_memory(QWEN, Settings(tensor=2, sequence_parallel=True, context=2), job, 0).activations
        == whole // 2
    )
    assert memory.stage_memory(QWEN, Settings(tensor=2), job, 0).activations > whole


def test_parts_add_up():
    one = memory.peak(QWEN, qwen("none"), Job(seq=10240))
    assert one.total == sum(dataclasses.astuple(one)) == one.pool + one.buffers + one.margin
