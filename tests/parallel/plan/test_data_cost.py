"""ZeRO 2 and 3 against an event simulation of a device: one stream computes, one link carries all there is to send."""

from dataclasses import replace

import pytest

from mindspeed_ms.parallel.plan import memory, parameters
from mindspeed_ms.parallel.plan.chunk_cost import Pieces
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.overlap import slot
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.plan.step_time import chunk_seconds, step_time
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.collectives import best

SHAPE = ModelShape("small", 8, 2048, 16, 16, 128, 5632, 64)
JOB = Job(4096)
ALL = Efficiency(1.0, 1.0, 1.0)
CARD = Accelerator("card", 1 << 36, 3e14, 1e30, "test")


def cluster_of(bandwidth, devices=8, shared=True):
    kinds = tuple(tuple("X" if i == j else "PIX" for j in range(devices)) for i in range(devices))
    link = Link("PIX", bandwidth, 1e-5, shared, "test")
    return Cluster("test", (Server("one", tuple(range(devices)), kinds),), {"PIX": link}, CARD)


def simulate(passes, gather, reduce, zero):
    """Seconds until everything has ended.

    passes: of each layer in turn its number, whether it is a backward pass, and its pieces: seconds and whether the
    link is what they are spent on. Two layers' weights and gradients have room. Data messages queue; a piece that wants
    the link gets half of it while one of them is on its way, which then has the other half.
    """
    clock = 0.0
    queue = []  # [kind, place of the pass it belongs to, seconds left]
    gathered, reduced = set(), set()
    at, piece, left = 0, 0, None
    asked = -1  # the last pass whose weights have been asked for
    backward = [index for index, (_, back, _) in enumerate(passes) if back]
    while at < len(passes) or queue:
        # The weights of the pass at work and of the next one have room.
        while zero == 3 and asked < min(at + 1, len(passes) - 1):
            asked += 1
            queue.append(["gather", asked, gather])
        if left is None and at < len(passes):
            # A third layer's gradients have no room until the first one's are gone.
            earlier = [index for index in backward if index < at][:-1]
            room = not passes[at][1] or all(index in reduced for index in earlier)
            if (zero < 3 or at in gathered) and room:
                left = passes[at][2][piece][0]
        busy = left is not None
        both = busy and passes[at][2][piece][1] and bool(queue)
        rate = 0.5 if both else 1.0
        times = ([left / rate] if busy else []) + ([queue[0][2] / rate] if queue else [])
        assert times, "everything waits"
        step = min(times)
        clock += step
        if queue:
            queue[0][2] -= step * rate
        if busy:
            left -= step * rate
        if queue and queue[0][2] <= 1e-12:
            kind, index, _ = queue.pop(0)
            (gathered if kind == "gather" else reduced).add(index)
        if busy and left <= 1e-12:
            left, piece = None, piece + 1
            if piece == len(passes[at][2]):
                if passes[at][1]:
                    queue.append(["reduce", at, reduce])
                at, piece = at + 1, 0
    return clock


def a_step(settings, forward, backward, waited, gather, reduce):
    """Layers there and back for each micro-batch, each cut into 16 pieces that alternate between device and link."""

    def pieces(seconds):
        both = [((seconds - waited) / 8, False), (waited / 8, True)] * 8
        return [one for one in both if one[0]]

    there = [(layer, False, pieces(forward)) for layer in range(SHAPE.layers)]
    back = [(layer, True, pieces(backward)) for layer in reversed(range(SHAPE.layers))]
    return simulate((there + back) * settings.micro_batches, gather, reduce, settings.zero)


def costs(settings, cluster):
    """Seconds of one layer forward and backward, of waiting for its tensor group, of its gather and its reduction."""
    alone = replace(settings, micro_batches=1)
    ahead, back = chunk_seconds(alone, Pieces(SHAPE, alone, cluster, JOB, ALL, None))
    tokens = JOB.seq * SHAPE.hidden * JOB.activation_bytes
    tensor = range(settings.tensor)
    waited = 2 * best("all_reduce", tensor, tokens, cluster).seconds if settings.tensor > 1 else 0.0
    numbers = parameters.stage_count(SHAPE, settings, 0).total / SHAPE.layers
    group = range(0, settings.data * settings.tensor, settings.tensor)
    gather = best("all_gather", group, numbers * JOB.weight_bytes, cluster).seconds
    reduce = best("reduce_scatter", group, numbers * JOB.gradient_bytes, cluster).seconds
    return ahead[0] / SHAPE.layers, back[0] / SHAPE.layers, waited, gather, reduce


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
# From links beside which everything hides to such that computation does
@pytest.mark.parametrize("bandwidth", [1e12, 3e10, 2e10, 1e10, 3e9, 1e8])
def test_a_step_with_sharded_weights_takes_what_the_simulation_takes(zero, micro_batches, bandwidth):
    cluster = cluster_of(bandwidth)
    settings = Settings(data=8, zero=zero, micro_batches=micro_batches)
    found = step_time(SHAPE, settings, cluster, JOB, rate=ALL)
    simulated = a_step(settings, *costs(settings, cluster))
    if zero == 2:
        forward, _, _, _, _ = costs(settings, cluster)
        numbers = parameters.stage_count(SHAPE, settings, 0).total * JOB.weight_bytes
        simulated += _exposed_gather(forward, numbers, cluster)
    assert found.total == pytest.approx(simulated, rel=2e-3)


def _exposed_gather(forward, nbytes, cluster):
    """All weights before the first forward pass, in the best of equal buckets: each layer waits for its own."""
    exposed = []
    for bucket in (1, 2, 4, 8):
        once = best("all_gather", range(8), nbytes * bucket / SHAPE.layers, cluster).seconds
        clock = 0.0
        for layer in range(SHAPE.layers):
            # The reverse order of a reduction: the last buckets are the whole ones, and these are all whole.
            clock = max(clock, (layer // bucket + 1) * once) + forward
        exposed.append(clock - SHAPE.layers * forward)
    return min(exposed)


@pytest.mark.parametrize("bandwidth", [3e11, 6e10, 3e10, 1e10])
def test_tensor_communication_on_the_same_port_shares_it(bandwidth):
    cluster = cluster_of(bandwidth)
    settings = Settings(data=4, tensor=2, zero=3, micro_batches=3)
    found = step_time(SHAPE, settings, cluster, JOB, rate=ALL).total
    prices = costs(settings, cluster)
    # Where two of three seconds of a layer are the link's it matters when in a layer they are.
    assert found == pytest.approx(a_step(settings, *prices), rel=0.03)
    apart = a_step(settings, *prices[:2], 0.0, *prices[3:])
    assert found > 1.01 * apart
    # Wires of their own for each pair: nothing is shared.
    cluster = cluster_of(bandwidth, shared=False)
    forward, backward, _, gather, reduce = costs(settings, cluster)
    found = step_time(SHAPE, settings, cluster, JOB, rate=ALL).total
    assert found == pytest.approx(a_step(settings, forward, backward, 0.0, gather, reduce), rel=2e-3)


def test_what_is_gathered_hides_no_better_than_the_link_is_free():
    # Two seconds of eight are the link's own: a load of four is half done in them.
    assert slot(8.0, 2.0, 0.0, 4.0) == pytest.approx(9.0)
    assert slot(8.0, 0.0, 6.0, 4.0) == pytest.approx(10.0)
    assert slot(8.0, 2.0, 0.0, 12.0) == pytest.approx(14.0)
    assert slot(0.0, 0.0, 0.0, 3.0) == 3.0 and slot(5.0, 1.0, 0.0, 0.0) == 5.0


def test_a_longer_computation_never_makes_a_shorter_slot():
    for load in (0.5, 2.0, 5.0, 9.0):
        slots = [slot(seconds / 10, 1.0, 2.0, load) for seconds in range(30, 200)]
        assert slots == sorted(slots)


@pytest.mark.parametrize(("zero", "width"), [(0, 0), (1, 0), (2, 4), (3, 4 + 2)])
def test_memory_holds_two_whole_layers_of_what_is_spread_and_sent(zero, width):
    job = Job(128)
    plain = memory.stage_memory(SHAPE, Settings(data=8), job, 0)
    found = memory.stage_memory(SHAPE, Settings(data=8, zero=zero), job, 0)
    layer = parameters.on_rank(parameters.layer_pieces(SHAPE, False), Settings()).total
    assert found.working - plain.working == 2 * width * layer
