"""Findings about groups that cross slow links, the cores of each process, and pictures."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.check import check, slowest_pair
from mindspeed_ms.parallel.topology.cluster import Server
from mindspeed_ms.parallel.topology.collectives import best
from mindspeed_ms.parallel.topology.groups import Degrees, arrange
from mindspeed_ms.parallel.topology.load import load_cluster
from mindspeed_ms.parallel.topology.pinning import pin, ranges
from mindspeed_ms.parallel.topology.plot import dot, plot, render

CROSSED = (0, 4, 1, 5, 2, 6, 3, 7)  # tensor groups of 4 over both rings of a 910A


def test_tensor_groups_over_two_rings_are_found_with_the_order_that_mends_them():
    cluster = load_cluster("910a")
    found = check(cluster, CROSSED, Degrees(tensor=4, data=2))
    assert [(item.dimension, item.group) for item in found] == [("tensor", 0), ("tensor", 1)]
    first = found[0]
    assert first.ranks == (0, 1, 2, 3)
    assert first.kind == "SYS" == cluster.kind(*(CROSSED[rank] for rank in first.pair))
    assert first.ratio == pytest.approx(first.seconds / first.best_seconds) and first.ratio > 2
    assert check(cluster, first.mend, Degrees(tensor=4, data=2)) == []
    assert "tensor group 0 crosses SYS between ranks 0 and 3" in first.sentence()


def test_what_cannot_be_mended_says_so():
    found = check(load_cluster("910a"), range(8), Degrees(tensor=8))
    assert [(item.group, item.mend) for item in found] == [(0, None)]
    assert "no order of ranks mends it: lower the degree" in found[0].sentence()


@pytest.mark.parametrize(("preset", "servers"), [("910a", 2), ("910b", 4), ("910b-box16", 2), ("a3-pod", 4)])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_an_arranged_job_has_no_findings(preset, servers, tensor):
    cluster = load_cluster(preset, servers)
    degrees = Degrees(tensor=tensor, data=cluster.size // tensor // 2, pipeline=2)
    assert check(cluster, arrange(cluster, degrees).order, degrees) == []


def test_an_order_that_costs_a_busier_dimension_mends_nothing():
    words = ["X SYS SYS PHB", "SYS X PIX PIX", "SYS PIX X SYS", "PHB PIX SYS X"]
    preset = load_cluster("910b")
    cluster = replace(preset, servers=(Server("s", (0, 1, 2, 3), tuple(tuple(row.split()) for row in words)),))
    degrees, slots = Degrees(data=2, pipeline=2), (3, 0, 1, 2)  # data over PHB and PIX, pipeline over SYS
    for order in itertools.permutations(range(4)):
        if mended := [item.mend for item in check(cluster, order, degrees) if item.mend]:
            assert data_seconds(cluster, mended[0]) <= 1.05 * data_seconds(cluster, order)
    assert not any(item.mend for item in check(cluster, slots, degrees))


def data_seconds(cluster, order):
    return sum(best("all_reduce", order[at : at + 2], 64 << 20, cluster).seconds for at in (0, 2))


def test_data_groups_that_have_to_cross_servers_are_no_findings():
    assert check(load_cluster("910b", 8), range(64), Degrees(tensor=8, data=8)) == []


def test_ranks_dealt_out_to_servers_in_turn_are_found_at_a_thousand_devices():
    cluster = load_cluster("910b", 128)
    order = [device * 1 + server * 8 for device in range(8) for server in range(128)]
    found = check(cluster, order, Degrees(tensor=8, data=16, pipeline=8))
    tensor = [item for item in found if item.dimension == "tensor"]
    assert len(tensor) == 128 and {item.kind for item in tensor} == {"ROCE"}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (range(7), "the order has 7 ranks, the degrees make 8"),
        ((0, 1, 2, 3, 4, 5, 6, 8), "slot 8: the cluster 910a has 8 devices"),
        ((0, 1, 2, 3, 4, 5, 6, 6), "the order has slot 6 twice"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(order, message):
    with pytest.raises(ConfigError, match=message):
        check(load_cluster("910a"), order, Degrees(tensor=4, data=2))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["910a", "910b-box16", "a3-pod"]), st.data())
def test_the_slowest_pair_is_that_of_brute_force(preset, data):
    cluster = load_cluster(preset, 3 if preset != "a3-pod" else 50)
    slots = data.draw(st.lists(st.integers(0, cluster.size - 1), min_size=2, max_size=12, unique=True))
    first, second = slowest_pair(cluster, slots)
    slowest = min(cluster.link(a, b).bandwidth for a in slots for b in slots if a != b)
    assert cluster.link(slots[first], slots[second]).bandwidth == slowest


def server_with(affinity):
    count = len(affinity)
    kinds = tuple(tuple("X" if a == b else "SYS" for b in range(count)) for a in range(count))
    return Server("s", tuple(range(count)), kinds, tuple(map(tuple, affinity)))


def test_devices_that_share_cores_get_an_even_part_of_each_run():
    """0-3,8-11: the second run are the second threads of the cores of the first, so a device has both of a core."""
    found = pin(server_with([[0, 1, 2, 3, 8, 9, 10, 11]] * 2 + [[4, 5, 12, 13]]))
    assert [item.ranges for item in found] == ["0-1,8-9", "2-3,10-11", "4-5,12-13"]
    assert found[0].taskset == "taskset -c 0-1,8-9"
    assert found[0].numactl == "numactl --physcpubind=0-1,8-9 --localalloc"


def test_interleaved_pairs_of_a_mesh_keep_to_their_cores():
    found = pin(server_with([range(144, 168), range(24), range(144, 168), range(24)]))
    assert [item.ranges for item in found] == ["144-155", "0-11", "156-167", "12-23"]


def test_with_fewer_cores_than_devices_they_are_shared():
    found = pin(server_with([[0], [0]]))
    assert [(item.cores, item.shared) for item in found] == [((0,), True), ((0,), False)]


def test_cores_that_are_not_known_are_asked_for():
    with pytest.raises(ConfigError, match="the CPU affinity of device 0 is not known"):
        pin(load_cluster("910b-box16").servers[0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.frozensets(st.integers(0, 24), min_size=1), min_size=1, max_size=6))
def test_cores_are_near_their_device_and_not_given_twice(sets):
    found = pin(server_with([sorted(cores) for cores in sets]))
    for item, cores in zip(found, sets, strict=True):
        assert item.cores and set(item.cores) <= cores
    alone = [core for item in found if not item.shared for core in item.cores]
    assert len(alone) == len(set(alone))
    assert set(alone) == frozenset().union(*sets)


def test_ranges_are_written_as_taskset_reads_them():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


JOB = Degrees(tensor=2, data=3)


def test_dot_text_has_every_device_and_link_with_its_style():
    cluster = load_cluster("910a")
    text = dot(cluster, arrange(cluster, JOB))
    assert text.startswith('graph "910a" {') and text.count("{") == text.count("}") == 2
    assert len(re.findall(r"n\d+ -- n\d+", text)) == 28
    assert len(re.findall(r"style=bold", text)) == 8 and len(re.findall(r"style=dashed", text)) == 16
    colours = re.findall(r'fillcolor="(#\w+)"', text)
    assert [colours[at] == colours[at + 1] for at in (0, 2, 4)] == [True] * 3 and len(set(colours)) == 4


def test_a_picture_shows_devices_ranks_and_kinds_and_is_the_same_each_time():
    cluster = load_cluster("910a")
    picture = render(cluster, arrange(cluster, JOB), form="svg")
    assert picture == render(cluster, arrange(cluster, JOB), form="svg")
    ElementTree.fromstring(picture)
    text = picture.decode()
    for words in (
        "HCCS, fast: 30 GB/s",
        "PHB, slow: 20 GB/s",
        "SYS, slow: 10 GB/s",
        "order of a ring",
        "r5",
        "grey: no rank",
    ):
        assert words in text
    assert "r6" not in text


def test_a_picture_of_many_servers_shows_the_first_ones(tmp_path):
    plot(load_cluster("910b", 128), None, tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert "the first 8 shown" in text and "server 7" in text and "server 8" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["p.svg"]


def test_a_server_of_too_many_devices_to_tell_apart_is_not_drawn():
    kinds = tuple(tuple("X" if a == b else "HCCS" for b in range(65)) for a in range(65))
    cluster = replace(load_cluster("910b"), servers=(Server("s", tuple(range(65)), kinds),))
    with pytest.raises(ConfigError, match="65 devices cannot be drawn, expected at most 64"):
        render(cluster)
    assert dot(cluster).count("fillcolor") == 65


def test_what_cannot_be_drawn_is_refused(tmp_path):
    cluster = load_cluster("910a")
    with pytest.raises(ConfigError, match="written as .png or .svg"):
        plot(cluster, None, tmp_path / "p.pdf")
    with pytest.raises(ConfigError, match="cannot be written"):
        (tmp_path / "file").write_text("")
        plot(cluster, None, tmp_path / "file" / "p.svg")
    with pytest.raises(ConfigError, match="dimension is 'rows'; expected one of tensor"):
        dot(cluster, arrange(cluster, JOB), "rows")
