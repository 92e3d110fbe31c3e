"""What a whole step takes, part by part."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.parallel.plan import compute
from mindspeed_ms.parallel.plan.chunk_cost import Pieces
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import chunk_seconds, step_time
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.collectives import best

SHAPE = ModelShape("small", 16, 2048, 16, 8, 128, 5632, 32000)
EXPERTS = ModelShape("experts", 8, 2048, 16, 8, 128, 5632, 32000, experts=16, top_k=2, expert_ffn=1024)
JOB = Job(4096)
ALL = Efficiency(1.0, 1.0, 1.0)
MESH = tuple(tuple("X" if i == j else "HCCS" for j in range(8)) for i in range(8))
# Times of a linear size of the message only, and memory that never binds
CARD = Accelerator("card", 1 << 36, 3e14, 1e30, "test")


def cluster_of(servers=1, inside=20e9, between=20e9, latency=1e-5, card=CARD):
    links = {
        "HCCS": Link("HCCS", inside, latency, False, "test"),
        "ROCE": Link("ROCE", between, latency, True, "test"),
    }
    return Cluster("test", tuple(Server(f"s{i}", tuple(range(8)), MESH) for i in range(servers)), links, card)


def test_one_device_takes_its_operations_over_the_peak():
    found = step_time(SHAPE, Settings(micro_batches=4), cluster_of(), JOB, rate=ALL)
    tokens = 4 * 4096
    forward = tokens * compute.forward_flops(SHAPE, 4096) / 3e14
    attention = tokens * 16 * compute.attention_flops(SHAPE, 4096) / 3e14
    assert found.forward == pytest.approx(forward, rel=1e-6)
    assert found.total == pytest.approx(3 * forward + 0.5 * attention, rel=1e-6)
    assert found.tokens_per_second == pytest.approx(tokens / found.total)
    # All but flash attention, which computes its scores twice, is counted by MFU.
    assert found.flops_utilization == pytest.approx(3 * forward / found.total, rel=1e-6)


def test_full_recompute_is_one_forward_more_and_of_some_layers_as_much_of_it():
    plain = step_time(SHAPE, Settings(), cluster_of(), JOB, rate=ALL)
    full = step_time(SHAPE, Settings(recompute="full"), cluster_of(), JOB, rate=ALL)
    head = 4096 * 2 * 2048 * 32000 / 3e14
    assert full.recompute == pytest.approx(plain.forward - head, rel=1e-6)
    some = step_time(SHAPE, Settings(recompute="full", recompute_layers=(4,)), cluster_of(), JOB, rate=ALL)
    assert some.recompute == pytest.approx(full.recompute / 4, rel=1e-6)
    assert full.total == pytest.approx(plain.total + full.recompute)


def test_tensor_parallel_reduces_twice_a_layer_each_way():
    # Megatron-LM (Shoeybi et al. 2019): an all_reduce after attention and after the MLP, forward and backward;
    # and one for the embedding, its gradient left alone, and one for the input of the head.
    cluster = cluster_of()
    found = step_time(SHAPE, Settings(tensor=8), cluster, JOB, rate=ALL)
    once = best("all_reduce", range(8), 4096 * 2048 * 2, cluster).seconds
    assert found.tensor == pytest.approx((4 * 16 + 2) * once, rel=1e-9)
    again = step_time(SHAPE, Settings(tensor=8, recompute="full"), cluster, JOB, rate=ALL)
    assert again.tensor == pytest.approx((6 * 16 + 2) * once, rel=1e-9)


def test_equal_stages_have_the_bubble_of_the_formula():
    shape = replace(SHAPE, vocab=1)
    for schedule, virtual, share in (("1f1b", 1, 3 / (16 + 3)), ("interleaved", 2, 3 / (2 * 16 + 3))):
        one = Settings(pipeline=4, micro_batches=16, schedule=schedule, virtual=virtual)
        found = step_time(shape, one, cluster_of(inside=1e18, latency=0.0), JOB, rate=ALL)
        assert found.bubble_share == pytest.approx(share, rel=1e-3)


def test_sending_between_stages_counts_as_pipeline_and_not_as_bubble():
    one = Settings(pipeline=4, micro_batches=16)
    fast = step_time(SHAPE, one, cluster_of(inside=1e18, latency=0.0), JOB, rate=ALL)
    slow = step_time(SHAPE, one, cluster_of(inside=2e9), JOB, rate=ALL)
    assert fast.pipeline == pytest.approx(0, abs=1e-6)
    assert slow.pipeline == pytest.approx(slow.total - fast.total, rel=1e-6)
    assert slow.bubble == pytest.approx(fast.bubble, rel=1e-6)


def test_gradients_hide_behind_backward_but_for_the_last_layers():
    one = Settings(data=8, micro_batches=2)
    alone = step_time(SHAPE, Settings(micro_batches=2), cluster_of(), JOB, rate=ALL)
    found = step_time(SHAPE, one, cluster_of(), JOB, rate=ALL)
    assert 0 < found.data < found.hidden
    assert found.total == pytest.approx(alone.total + found.data, rel=1e-9)
    slow = step_time(SHAPE, one, cluster_of(inside=1e9), JOB, rate=ALL)
    assert slow.data > slow.hidden


def test_zero_3_gathers_weights_for_every_micro_batch():
    times = [
        step_time(SHAPE, Settings(data=8, micro_batches=8, zero=zero), cluster_of(inside=2e9), JOB, rate=ALL)
        for zero in (0, 1, 2, 3)
    ]
    traffic = [found.data + found.hidden for found in times]
    assert traffic[0] < traffic[2] < traffic[3]
    assert times[1].total < times[2].total < times[3].total
    card = replace(CARD, memory_bandwidth=1e12)
    whole, shards = (
        step_time(SHAPE, Settings(data=8, zero=zero), cluster_of(card=card), JOB, rate=ALL).optimizer for zero in (0, 1)
    )
    assert shards == pytest.approx(whole / 8)


def test_experts_on_other_ranks_cost_two_all_to_alls_a_layer_each_way():
    cluster = cluster_of()
    found = step_time(EXPERTS, Settings(data=8, expert=8), cluster, JOB, rate=ALL)
    once = best("all_to_all", range(8), 2 * 4096 * 2048 * 2, cluster).seconds
    assert found.expert == pytest.approx(4 * 8 * once, rel=1e-9)
    assert step_time(EXPERTS, Settings(data=8), cluster, JOB, rate=ALL).expert == 0


def test_ring_attention_hides_behind_attention_until_the_network_is_slow():
    long = Job(1 << 17)
    one = Settings(context=8)
    fast = step_time(SHAPE, one, cluster_of(), long, rate=ALL)
    assert fast.context == 0 and fast.hidden > 0
    slow = step_time(SHAPE, one, cluster_of(inside=1e8), long, rate=ALL)
    # Seven steps a layer send keys and values of 8 heads forward, and with their gradients twice as much backward.
    sent = 16 * 7 * (1 + 2) * (long.seq / 8 * 2 * 8 * 128 * 2) / 1e8
    assert 0.5 * sent < slow.context < sent


def test_an_order_that_tears_tensor_groups_apart_is_slower():
    cluster = cluster_of(2, between=2e9)
    one = Settings(data=2, tensor=8)
    torn = tuple(rank // 2 + 8 * (rank % 2) for rank in range(16))
    good = step_time(SHAPE, one, cluster, JOB, rate=ALL)
    assert step_time(SHAPE, one, cluster, JOB, rate=ALL, order=tuple(range(16))).total == good.total
    assert step_time(SHAPE, one, cluster, JOB, rate=ALL, order=torn).tensor > 5 * good.tensor


def test_layers_may_be_split_unevenly_and_the_longest_stage_counts():
    one = Settings(pipeline=4, micro_batches=32)
    even = step_time(SHAPE, one, cluster_of(), JOB, rate=ALL)
    lighter_end = step_time(SHAPE, replace(one, layers=(5, 5, 4, 2)), cluster_of(), JOB, rate=ALL)
    heavy_end = step_time(SHAPE, replace(one, layers=(2, 4, 4, 6)), cluster_of(), JOB, rate=ALL)
    assert lighter_end.total != even.total and heavy_end.total > even.total
    last = replace(one, layers=(2, 4, 4, 6))
    forward, backward = chunk_seconds(last, Pieces(SHAPE, last, cluster_of(), JOB, ALL, None))
    assert forward[1] == pytest.approx(2 * (forward[0]), rel=1e-2) and len(backward) == 4


def test_the_timeline_ends_when_the_pipeline_does():
    found = step_time(SHAPE, Settings(pipeline=4, micro_batches=8), cluster_of(), JOB, rate=ALL)
    assert max(event.end for event in found.timeline) == pytest.approx(found.total - found.data - found.optimizer)
    assert len(found.timeline) == 2 * 4 * 8


@st.composite
def spread(draw):
    tensor, pipeline, data = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble"]))
    return Settings(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        micro_batches=pipeline * draw(st.sampled_from([1, 3, 8])),
        zero=draw(st.integers(0, 3)),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=schedule,
        virtual=2 if schedule == "interleaved" and pipeline > 1 else 1,
    )


@settings(max_examples=60, deadline=None)
@given(spread(), st.sampled_from([1e9, 5e9, 2e10]))
def test_parts_add_up_and_wider_links_never_slow_a_step(one, bandwidth):
    cluster = cluster_of(8, inside=bandwidth, between=bandwidth)
    found = step_time(SHAPE, one, cluster, JOB)
    assert sum(found.parts.values()) == pytest.approx(found.total)
    assert all(seconds >= 0 for seconds in found.parts.values())
    wide = step_time(SHAPE, one, cluster_of(8, inside=2 * bandwidth, between=2 * bandwidth), JOB)
    assert wide.total <= found.total * (1 + 1e-9)
