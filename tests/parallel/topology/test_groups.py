"""Groups of ranks and where ranks sit, on shipped topologies and on random ones."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.topology.cluster import Cluster, Server
from mindspeed_ms.parallel.topology.groups import DIMENSIONS, Degrees, arrange, rank_groups
from mindspeed_ms.parallel.topology.links import accelerator, link_table
from mindspeed_ms.parallel.topology.load import load_cluster
from mindspeed_ms.parallel.topology.rings import find_rings


def test_groups_of_16_ranks_are_those_of_megatrons_documentation():
    """megatron.core.parallel_state, initialize_model_parallel: tensor 2, pipeline 4, hence data 2."""
    groups = rank_groups(Degrees(tensor=2, pipeline=4, data=2))
    assert groups["tensor"] == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert groups["data"] == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert groups["pipeline"] == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))


def test_groups_follow_the_numbering_of_ranks():
    degrees = Degrees(data=4, tensor=2, pipeline=3, context=2, expert=4)
    place = {
        ((stage * 4 + d) * 2 + c) * 2 + t: (stage, d, c, t)
        for stage, d, c, t in itertools.product(range(3), range(4), range(2), range(2))
    }
    groups = rank_groups(degrees)
    varies = {"tensor": 3, "context": 2, "data": 1, "pipeline": 0}
    for dimension, axis in varies.items():
        for group in groups[dimension]:
            others = {place[rank][:axis] + place[rank][axis + 1 :] for rank in group}
            assert len(others) == 1
            assert [place[rank][axis] for rank in group] == list(range(getattr(degrees, dimension)))
    for group in groups["expert"]:  # 4 neighbours along (d, c), of one stage and one tensor rank
        assert len({(place[rank][0], place[rank][3]) for rank in group}) == 1
        flat = [place[rank][1] * 2 + place[rank][2] for rank in group]
        assert flat == list(range(flat[0], flat[0] + 4)) and flat[0] % 4 == 0


def test_settings_of_a_plan_are_degrees():
    assert rank_groups(Settings(data=2, tensor=2))["data"] == ((0, 2), (1, 3))


@st.composite
def degrees_of(draw, most):
    sizes = {}
    for name in ("tensor", "context", "data", "pipeline"):
        sizes[name] = draw(st.integers(1, min(6, most)))
        most //= sizes[name]
    spread = sizes["data"] * sizes["context"]
    sizes["expert"] = draw(st.sampled_from([d for d in range(1, spread + 1) if spread % d == 0]))
    return Degrees(**sizes)


@st.composite
def clusters(draw):
    shapes = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 9))
        kinds = [["X"] * count for _ in range(count)]
        for a in range(count):
            for b in range(a):
                kinds[a][b] = kinds[b][a] = draw(st.sampled_from(["HCCS", "SYS", "PIX", "SIO", "HCCS_SW"]))
        shapes.append(Server(f"s{number}", tuple(range(count)), tuple(map(tuple, kinds))))
    servers = tuple(draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=5)))
    pods = ()
    if draw(st.booleans()):
        numbers = draw(st.permutations(range(len(servers))))
        cut = draw(st.integers(0, len(servers)))
        pods = tuple(tuple(part) for part in (numbers[:cut], numbers[cut:]) if part)
    return Cluster(
        "drawn", servers, link_table(), accelerator("910B3"), pods=pods, within_pod="HCCS_SW" if pods else ""
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_rank_is_in_one_group_of_each_kind_and_on_a_device_of_its_own(data):
    cluster = data.draw(clusters())
    degrees = data.draw(degrees_of(cluster.size))
    size = degrees.data * degrees.tensor * degrees.pipeline * degrees.context
    found = arrange(cluster, degrees)
    assert len(found.order) == size == len(set(found.order))
    assert set(found.order) <= set(range(cluster.size))
    assert set(found.groups) == set(DIMENSIONS)
    for dimension, groups in found.groups.items():
        assert sorted(itertools.chain.from_iterable(groups)) == list(range(size))
        assert {len(group) for group in groups} == {getattr(degrees, dimension)}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_as_many_tensor_groups_as_can_be_are_inside_one_ring(data):
    cluster = data.draw(clusters())
    degrees = data.draw(degrees_of(cluster.size))
    found = arrange(cluster, degrees)
    rings = [set(ring.slots) for ring in find_rings(cluster)]
    inside = sum(
        any({found.order[rank] for rank in group} <= ring for ring in rings) for group in found.groups["tensor"]
    )
    possible = sum(len(ring) // degrees.tensor for ring in rings)
    assert inside == min(len(found.groups["tensor"]), possible)


def test_tensor_groups_of_a_910a_stay_in_their_ring_whatever_the_ids():
    """The rings of a shuffled server: slots 0, 2, 4, 6 and 1, 3, 5, 7."""
    kinds = tuple(tuple("X" if a == b else "HCCS" if (a - b) % 2 == 0 else "SYS" for b in range(8)) for a in range(8))
    server = Server("shuffled", tuple(range(8)), kinds)
    cluster = Cluster("shuffled", (server, server), link_table("910A"), accelerator("910A"))
    found = arrange(cluster, Degrees(tensor=4, data=4))
    assert [{found.order[rank] % 2 for rank in group} for group in found.groups["tensor"]] == [{0}, {1}, {0}, {1}]


def test_pairs_of_an_a3_sit_on_the_two_dies_of_one_chip():
    cluster = load_cluster("a3", 2)
    found = arrange(cluster, Degrees(tensor=2, data=16))
    assert all(cluster.kind(*(found.order[rank] for rank in group)) == "SIO" for group in found.groups["tensor"])


def test_rings_that_are_near_each_other_share_a_group_that_is_larger_than_a_ring():
    # Pairs on a PCIe switch; even pairs are on one processor, odd ones on the other.
    kinds = tuple(
        tuple(
            "X" if a == b else "PIX" if a // 2 == b // 2 else "SYS" if (a // 2 + b // 2) % 2 else "PHB"
            for b in range(8)
        )
        for a in range(8)
    )
    machine = Server("s", tuple(range(8)), kinds)
    cluster = Cluster("near", (machine, machine), link_table(), accelerator("910B4"))
    found = arrange(cluster, Degrees(tensor=4, data=4))
    assert sorted(sorted(found.order[rank] for rank in ranks) for ranks in found.groups["tensor"]) == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]


def test_a_small_job_takes_the_servers_that_hold_its_groups():
    """Rings of 3 and 5: two tensor groups of 4 do not fit, one does, and it is in the larger ring."""
    kinds = tuple(tuple("X" if a == b else "HCCS" if (a < 3) == (b < 3) else "SYS" for b in range(8)) for a in range(8))
    cluster = Cluster("uneven", (Server("s", tuple(range(8)), kinds),), link_table(), accelerator("910B3"))
    assert set(arrange(cluster, Degrees(tensor=4)).order) <= {3, 4, 5, 6, 7}


def test_servers_of_one_pod_are_filled_before_the_next_pod():
    servers = load_cluster("910b", 4)
    cluster = Cluster(
        "pods", servers.servers, servers.links, servers.accelerator, pods=((0, 2), (1, 3)), within_pod="HCCS_SW"
    )
    found = arrange(cluster, Degrees(tensor=8, context=2, data=2))
    pods = [{cluster.place(found.order[rank])[0] for rank in range(start, start + 16)} for start in (0, 16)]
    assert pods == [{0, 2}, {1, 3}]


def test_a_cluster_too_small_says_by_how_much():
    with pytest.raises(ConfigError, match="the job has 16 ranks, the cluster 910b 8 devices: 8 too few"):
        arrange(load_cluster("910b"), Degrees(tensor=16))


def test_an_expert_degree_that_does_not_divide_says_which_would():
    with pytest.raises(ConfigError, match="expert is 4, expected a divisor of data · context = 6, such as 3"):
        rank_groups(Degrees(data=6, expert=4))
    with pytest.raises(ConfigError, match="data is 0; expected a number of at least 1"):
        rank_groups(Degrees(data=0))


def test_a_thousand_devices_are_arranged_in_a_moment():
    import time

    cluster = load_cluster("910b", 128)
    started = time.process_time()
    assert arrange(cluster, Degrees(tensor=8, data=16, pipeline=8)).order == tuple(range(1024))
    assert time.process_time() - started < 1


@pytest.mark.parametrize("expert", [10**12 + 39, 10**18 + 9])
def test_huge_degrees_are_refused_at_once(expert):
    for data in (1, 8, 10**16):
        with pytest.raises(ConfigError, match=f"expert is {expert}, expected a divisor"):
            rank_groups(Degrees(data=data, expert=expert))
