"""One ring of eight against two groups of four on the 910A server."""

import math

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Link, Server
from mindspeed_ms.parallel.topology.ring910a import compare, halves

CARD = Accelerator("910A", 32 << 30, 2.56e14, 1.2e12, "test")
LINKS = {
    "HCCS": Link("HCCS", 30e9, 2e-6, False, "test"),
    "PHB": Link("PHB", 20e9, 5e-6, True, "test"),
    "SYS": Link("SYS", 10e9, 1e-5, True, "test"),
}


def word(i, j):
    return "X" if i == j else "HCCS" if i // 4 == j // 4 else "PHB" if i % 4 == j % 4 else "SYS"


def server_of(kind=word, count=8):
    kinds = tuple(tuple(kind(i, j) for j in range(count)) for i in range(count))
    return Cluster("test", (Server("s", tuple(range(count)), kinds),), LINKS, CARD)


def test_the_halves_are_the_hccs_groups_and_partners_the_nearest_devices():
    assert halves(server_of()) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_gain_at_large_sizes_follows_from_the_bytes_that_pass_the_bridge():
    # A ring of 8 sends 2 * 7/8 n each way over its one crossing; four pairs together send 4 * n/4. With all else
    # infinitely fast the gain is 1.75.
    fast = {kind: Link(kind, 1e15, 0.0, link.shared, "test") for kind, link in LINKS.items()}
    cluster = Cluster("test", server_of().servers, fast, CARD)
    assert compare(cluster, bridge=1e9).gain == pytest.approx(1.75, rel=1e-3)


def test_gain_on_the_bridge_equals_the_sum_of_its_steps():
    n, bridge = float(1 << 30), 10e9
    found = compare(server_of(), bridge, sizes=(1 << 30,), inner="mesh")
    # Reduce_scatter and all_gather over three wires at once, then two messages of n/8 of each of four pairs.
    groups = 2 * (2e-6 + n / 4 / 30e9) + 2 * (5e-6 + 4 * n / 8 / bridge)
    ring = 14 * (5e-6 + n / 8 / bridge)
    assert found.groups[0] == pytest.approx(groups, rel=1e-9)
    assert found.ring[0] == pytest.approx(ring, rel=1e-9)


def test_groups_of_four_over_a_mesh_win_at_every_size_and_that_is_said():
    found = compare(server_of())
    assert found.turns is None and "every size" in found.reason
    assert found.gain > 1


def test_rings_of_four_lose_large_messages_to_a_wide_bridge_and_the_size_of_the_turn_is_right():
    found = compare(server_of(), bridge=20e9, inner="ring")
    assert found.gain < 1 and found.turns is not None
    at = compare(server_of(), 20e9, sizes=(round(found.turns),), inner="ring")
    assert at.ring[0] == pytest.approx(at.groups[0], rel=1e-6)


def test_without_a_bridge_only_the_ports_of_devices_count():
    assert compare(server_of(), math.inf).gain > compare(server_of(), 10e9).gain


def test_a_server_that_is_one_mesh_is_refused():
    with pytest.raises(ConfigError, match="two equal groups"):
        compare(server_of(lambda i, j: "X" if i == j else "HCCS"))


def test_a_pcie_that_is_said_to_be_faster_than_hccs_leaves_the_groups_as_they_are():
    links = {**LINKS, "HCCS": Link("HCCS", 18e9, 2e-6, False, "msprof")}
    cluster = Cluster("test", server_of().servers, links, CARD)
    assert halves(cluster) == ((0, 1, 2, 3), (4, 5, 6, 7))
