"""Formulas of collectives against the table that HCCL prints and against a simulation of every message."""

import itertools
import math

import numpy as np
import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology import schedules, simulate
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.collectives import ALGORITHMS, best, can, pipeline_time, time_of
from mindspeed_ms.parallel.topology.hierarchy import Level, shape_of, widest_ring

WIRE = Link("HCCS", 19.4e9, 2e-6, False, "test")
PORT = Link("ROCE", 22.6e9, 1e-5, True, "test")
GAMMA = 1 / 400e9
SIZES = (3, 4096, 5e8)
DOABLE = [(operation, name) for operation, names in ALGORITHMS.items() if operation != "send" for name in names]


def cluster_of(servers, kinds, links=None, **more):
    shapes = tuple(Server(f"s{i}", tuple(range(len(kinds))), kinds) for i in range(servers))
    card = Accelerator("card", 1 << 36, 3e14, 1.6e12, "test")
    return Cluster("test", shapes, links or {"HCCS": WIRE, "ROCE": PORT}, card, **more)


def mesh(count):
    return tuple(tuple("X" if i == j else "HCCS" for j in range(count)) for i in range(count))


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("link", [WIRE, PORT], ids=["wires", "one port"])
def test_every_formula_equals_the_simulation_of_its_messages(p, link):
    for operation, name in DOABLE:
        if not can(operation, name, p):
            continue
        for nbytes in SIZES:
            played = simulate.run(schedules.schedule_of(operation, name, p), nbytes, link, GAMMA)
            assert played == pytest.approx(time_of(operation, name, p, nbytes, link, GAMMA), rel=1e-12), (
                operation,
                name,
            )


def printed_table(p, n, alpha, beta, gamma):
    """all_reduce and reduce_scatter as in HCCL's user guide, "Introduction to collective algorithms"."""
    log = math.ceil(math.log2(p))
    low = 2 ** math.floor(math.log2(p))
    rhd = (
        2 * math.log2(p) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma
        if low == p
        else (2 * math.floor(math.log2(p)) + 2) * alpha
        + (2 * (low - 1) / low + 2) * n * beta
        + ((low - 1) / low + 1) * n * gamma
    )
    return {
        ("all_reduce", "ring"): 2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma,
        ("all_reduce", "mesh"): 2 * alpha + 2 / p * n * beta + (p - 1) / p * n * gamma,
        ("all_reduce", "rhd"): rhd,
        ("all_reduce", "nhr"): 2 * log * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma,
        ("reduce_scatter", "ring"): (p - 1) * alpha + (p - 1) / p * n * (beta + gamma),
        ("reduce_scatter", "mesh"): alpha + n / p * beta + (p - 1) / p * n * gamma,
        ("reduce_scatter", "nb"): log * alpha + (p - 1) / p * n * (beta + gamma),
        ("all_gather", "ring"): (p - 1) * alpha + (p - 1) / p * n * beta,
        ("all_gather", "mesh"): alpha + n / p * beta,
        ("broadcast", "ring"): (p - 1) * (alpha + n * beta),
        ("broadcast", "mesh"): 2 * alpha + 2 / p * n * beta,
        ("broadcast", "rhd"): log * (alpha + n * beta),
        ("broadcast", "nhr"): 2 * log * alpha + 2 * (p - 1) / p * n * beta,
    }


@pytest.mark.parametrize("p", [2, 3, 5, 8, 13, 64])
def test_the_formulas_are_those_that_hccl_prints(p):
    n = 1e8
    for (operation, name), seconds in printed_table(p, n, WIRE.latency, 1 / WIRE.bandwidth, GAMMA).items():
        assert time_of(operation, name, p, n, WIRE, GAMMA) == pytest.approx(seconds, rel=1e-12), (operation, name)


def wanted(operation, buffers):
    """What each rank has to hold in the end, told without any algorithm."""
    p = len(buffers)
    if operation == "all_reduce":
        return [np.sum(buffers, axis=0)] * p
    if operation == "broadcast":
        return [buffers[0]] * p
    if operation == "all_to_all":
        return [np.array([buffers[source][rank] for source in range(p)]) for rank in range(p)]
    if operation == "all_gather":
        return [np.array([buffers[rank][rank] for rank in range(p)])] * p
    total = np.sum(buffers, axis=0) if operation == "reduce_scatter" else buffers[0]
    return [total[rank : rank + 1] for rank in range(p)]


def check_delivery(schedule):
    random = np.random.default_rng(schedule.ranks)
    buffers = random.integers(0, 1 << 40, (schedule.ranks, schedule.blocks))
    held = simulate.deliver(schedule, buffers.tolist())
    for rank, right in enumerate(wanted(schedule.operation, buffers)):
        got = held[rank]
        if schedule.operation == "all_to_all":
            got = got[schedule.blocks : 2 * schedule.blocks]
        if schedule.operation in ("reduce_scatter", "scatter"):
            got = got[rank : rank + 1]
        assert got == right.tolist(), (schedule.operation, rank)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 7, 8, 12])
def test_messages_bring_the_right_numbers_to_every_rank(p):
    for operation, name in DOABLE:
        if can(operation, name, p):
            check_delivery(schedules.schedule_of(operation, name, p))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
@pytest.mark.parametrize(("size", "servers"), [(2, 3), (4, 2), (3, 4)])
def test_messages_of_hierarchies_and_pipelines_bring_the_right_numbers(operation, size, servers):
    for inner, outer in itertools.product(("ring", "mesh", "nhr"), ("ring", "nb", "mesh")):
        check_delivery(
            schedules.hierarchical(operation, (inner, size), schedules.schedule_of(operation, outer, servers))
        )
    if operation != "broadcast":
        check_delivery(schedules.pipeline(operation, size, servers))


def test_messages_of_an_all_to_all_in_two_steps_bring_the_right_numbers():
    for inner, outer in itertools.product(("mesh", "pairwise"), repeat=2):
        check_delivery(schedules.hierarchical_all_to_all((inner, 4), (outer, 3)))


@pytest.mark.parametrize("inside", [WIRE, PORT], ids=["wires", "one port"])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_pipeline_formula_equals_its_simulation(operation, inside):
    for size, servers, nbytes in itertools.product((2, 4, 8), (2, 3, 5), SIZES):
        slow = Link("SLOW", 3e9, 1e-5, True, "test")
        kinds = [
            [inside if a // size == b // size else slow for b in range(size * servers)] for a in range(size * servers)
        ]
        played = simulate.run(
            schedules.pipeline(operation, size, servers), nbytes, lambda a, b, kinds=kinds: kinds[a][b], GAMMA
        )
        level, above = Level(size, inside, inside), Level(servers, slow, slow)
        assert played == pytest.approx(pipeline_time(operation, level, above, nbytes, GAMMA), rel=1e-12)


def all_ways(operation, size, servers):
    """Every schedule of the menu on `servers` servers of `size` devices."""
    if operation == "all_to_all":
        yield schedules.schedule_of(operation, "pairwise", size * servers)
        for inner, outer in itertools.product(ALGORITHMS[operation], repeat=2):
            yield schedules.hierarchical_all_to_all((inner, size), (outer, servers))
        return
    yield schedules.schedule_of(operation, "ring", size * servers)
    above = [
        schedules.schedule_of(operation, name, servers)
        for name in ALGORITHMS[operation]
        if can(operation, name, servers)
    ]
    yield from two_levels(operation, size, above)
    if operation != "broadcast":
        yield schedules.pipeline(operation, size, servers)


def two_levels(operation, size, above):
    first = {"all_reduce": "reduce_scatter", "broadcast": "scatter"}.get(operation, operation)
    gathers = ALGORITHMS["all_gather"] if operation == "broadcast" else ("",)
    for inner, outer, gather in itertools.product(ALGORITHMS[first], above, gathers):
        if can(first, inner, size) and can("all_gather", gather, size):
            yield schedules.hierarchical(operation, (inner, size), outer, gather)


OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("size", "servers"), [(2, 2), (4, 3), (8, 2), (4, 4)])
def test_the_choice_is_the_minimum_over_every_simulated_way(operation, size, servers):
    cluster = cluster_of(servers, mesh(size))
    slots = range(size * servers)
    link = simulate.links_of(cluster, slots)
    ways = list(all_ways(operation, size, servers))
    for nbytes in (64, 1e6, 1e9):
        seconds = min(simulate.run(way, nbytes, link, GAMMA) for way in ways)
        choice = best(operation, slots, nbytes, cluster, GAMMA)
        assert choice.seconds == pytest.approx(seconds, rel=1e-12)
        assert sum(part for _, part in choice.parts) == pytest.approx(choice.seconds)


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_three_levels_are_the_minimum_over_every_simulated_way_too(operation):
    links = {"HCCS": WIRE, "ROCE": PORT, "UB": Link("UB", 50e9, 4e-6, True, "test")}
    cluster = cluster_of(4, mesh(4), links, pods=((0, 1), (2, 3)), within_pod="UB")
    link = simulate.links_of(cluster, range(16))
    above = [*all_ways(operation, 2, 2)]
    ways = [schedules.schedule_of(operation, "ring", 16), *two_levels(operation, 4, above)]
    for nbytes in (64, 1e6, 1e9):
        seconds = min(simulate.run(way, nbytes, link) for way in ways)
        assert best(operation, range(16), nbytes, cluster).seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("p", [2, 3, 6, 8])
def test_inside_one_server_the_choice_is_the_minimum_over_every_algorithm(p):
    cluster = cluster_of(1, mesh(p))
    for operation in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        for nbytes in SIZES:
            ways = [
                schedules.schedule_of(operation, name, p) for name in ALGORITHMS[operation] if can(operation, name, p)
            ]
            seconds = min(simulate.run(way, nbytes, WIRE) for way in ways)
            assert best(operation, range(p), nbytes, cluster).seconds == pytest.approx(seconds, rel=1e-12)


def test_a_mesh_over_one_port_is_as_slow_as_the_port():
    assert time_of("all_gather", "mesh", 8, 8e9, PORT) == pytest.approx(PORT.latency + 7e9 / PORT.bandwidth)
    assert time_of("all_gather", "mesh", 8, 8e9, WIRE) == pytest.approx(WIRE.latency + 1e9 / WIRE.bandwidth)


def test_large_messages_between_servers_take_a_pipeline_and_small_ones_few_steps():
    cluster = cluster_of(16, mesh(8))
    assert best("reduce_scatter", range(128), 1e9, cluster).algorithm == "pipeline"
    small = best("all_reduce", range(128), 1024, cluster)
    assert small.algorithm == "hierarchical" and small.seconds < 30 * PORT.latency


def test_levels_of_a_910a_server_are_two_groups_of_four_and_what_joins_them():
    kinds = tuple(
        tuple("X" if i == j else "HCCS" if i // 4 == j // 4 else "PHB" if i % 4 == j % 4 else "SYS" for j in range(8))
        for i in range(8)
    )
    links = {
        "HCCS": Link("HCCS", 30e9, 2e-6, False, "t"),
        "PHB": Link("PHB", 20e9, 5e-6, True, "t"),
        "SYS": Link("SYS", 10e9, 1e-5, True, "t"),
    }
    shape = shape_of(cluster_of(1, kinds, links), range(8))
    assert [(level.size, level.mesh.kind) for level in shape.levels] == [(4, "HCCS"), (2, "PHB")]


def test_a_mesh_of_wires_is_nearer_than_a_shared_slot_that_is_wider_than_one_wire():
    # As on a Box16: two meshes of eight, devices of which share PCIe switches with two of the other mesh.
    kinds = tuple(
        tuple(
            "X" if i == j else "HCCS" if i // 8 == j // 8 else "PIX" if i % 8 // 2 == j % 8 // 2 else "SYS"
            for j in range(16)
        )
        for i in range(16)
    )
    links = {"HCCS": WIRE, "PIX": Link("PIX", 20e9, 5e-6, True, "t"), "SYS": Link("SYS", 10e9, 1e-5, True, "t")}
    shape = shape_of(cluster_of(1, kinds, links), range(16))
    assert [(level.size, level.mesh.kind) for level in shape.levels] == [(8, "HCCS"), (2, "PIX")]


def test_levels_above_a_server_are_pods_and_what_joins_them():
    links = {"HCCS": WIRE, "ROCE": PORT, "HCCS_SW": Link("HCCS_SW", 150e9, 2e-6, True, "t")}
    cluster = cluster_of(6, mesh(4), links, pods=((0, 1, 2), (3, 4, 5)), within_pod="HCCS_SW")
    shape = shape_of(cluster, range(24))
    assert [(level.size, level.mesh.kind) for level in shape.levels] == [(4, "HCCS"), (3, "HCCS_SW"), (2, "ROCE")]
    assert shape_of(cluster, range(0, 24, 4)).levels[0].mesh.kind == "HCCS_SW"
    flat = cluster_of(6, mesh(4), links, pods=((0, 1, 2), (3, 4, 5)), within_pod="HCCS")
    assert [level.size for level in shape_of(flat, range(24)).levels] == [12, 2]
    assert shape_of(cluster, (0, 1, 12, 13)) is shape_of(cluster, (2, 3, 14, 15))


def test_a_group_that_fills_servers_unevenly_costs_what_the_simulation_says():
    cluster = cluster_of(2, mesh(8))
    slots = (0, 1, 2, 8, 9)
    shape = shape_of(cluster, slots)
    assert shape.uneven
    link = simulate.links_of(cluster, slots)
    ways = [schedules.schedule_of("all_reduce", name, 5) for name in ALGORITHMS["all_reduce"]]
    for nbytes in SIZES:
        seconds = min(simulate.run(way, nbytes, link) for way in ways)
        assert best("all_reduce", slots, nbytes, cluster).seconds == pytest.approx(seconds, rel=1e-12)


def test_a_ring_takes_the_wide_links_wherever_they_lie():
    # A six-cycle 0-3-1-4-2-5 of fast links among slow ones: brute force over all orders agrees.
    fast = {frozenset(pair) for pair in ((0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0))}
    links = {
        (a, b): WIRE if frozenset((a, b)) in fast else Link("SYS", 1e9, 1e-5, True, "t")
        for a in range(6)
        for b in range(6)
        if a != b
    }

    def narrowest(order):
        return min(links[a, b].bandwidth for a, b in zip(order, [*order[1:], order[0]], strict=True))

    right = max(narrowest(list(order)) for order in itertools.permutations(range(6)))
    assert narrowest(widest_ring(list(range(6)), links)) == right == WIRE.bandwidth


def test_unknown_operations_and_algorithms_are_refused():
    with pytest.raises(ConfigError, match="ring, mesh, rhd, nhr, nb"):
        time_of("all_reduce", "tree", 8, 1, WIRE)
    with pytest.raises(ConfigError, match="power of two"):
        time_of("reduce_scatter", "rhd", 6, 1, WIRE)
    with pytest.raises(ConfigError, match="all_reduce"):
        best("reduce", range(4), 1, cluster_of(1, mesh(4)))
