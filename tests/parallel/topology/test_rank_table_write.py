"""Writing rank tables: what is written is accepted and reads back to the same order."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Server
from mindspeed_ms.parallel.topology.rank_table import read_rank_table
from mindspeed_ms.parallel.topology.rank_table_rules import Asked, accepted, validate
from mindspeed_ms.parallel.topology.rank_table_write import write_rank_table


def _cluster(*counts, pods=()):
    def server(n, count):
        kinds = tuple(tuple("X" if a == b else "HCCS" for b in range(count)) for a in range(count))
        return Server(f"node{n}", tuple(range(count)), kinds)

    chip = Accelerator("910B", 64 << 30, 3e14, 1.6e12, "test")
    return Cluster("test", tuple(server(n, count) for n, count in enumerate(counts)), {}, chip, pods=pods)


def _ips(cluster):
    return {
        server.name: {device: f"10.{n}.0.{device + 1}" for device in server.devices}
        for n, server in enumerate(cluster.servers)
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=4), st.randoms())
def test_any_order_reads_back_and_is_accepted(counts, random):
    cluster = _cluster(*counts)
    order = list(range(cluster.size))
    random.shuffle(order)
    text = write_rank_table(cluster, order, _ips(cluster))
    assert accepted(validate(text, Asked(device="910B")))
    table = read_rank_table(text)
    assert table.order == tuple(order)
    assert [device.ip for server in table.servers for device in server.devices] == [
        ip for devices in _ips(cluster).values() for ip in devices.values()
    ]


def test_a_super_pod_is_written_as_version_1_2():
    cluster = _cluster(2, 2, 2, pods=((0, 1), (2,)))
    numbers = {
        server.name: {device: (n << 22) + (device << 16) + device for device in server.devices}
        for n, server in enumerate(cluster.servers)
    }
    text = write_rank_table(cluster, range(6), _ips(cluster), "1.2", numbers)
    assert validate(text) == []
    assert read_rank_table(text).pods == cluster.pods


def test_one_server_needs_no_addresses_but_two_do():
    assert "device_ip" not in json.loads(write_rank_table(_cluster(4), range(4), {}))["server_list"][0]["device"][0]
    with pytest.raises(ConfigError, match="device_ip"):
        write_rank_table(_cluster(4, 4), range(8), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ips: ips["node1"].pop(1), "device 1 of node1 has none"),
        (lambda ips: ips["node1"].update({1: "10.0.0.1"}), r"also that of device 0 of node0"),
        (lambda ips: ips["node1"].update({1: "10.0.*.1"}), r"'10\.0\.\*\.1' is no IP address"),
        (lambda ips: ips.pop("node1"), "none for server node1"),
        (lambda ips: ips.update({"node9": {}}), "no server 'node9'"),
    ],
)
def test_addresses_that_are_missing_doubled_or_wrong_are_named(change, message):
    cluster = _cluster(2, 2)
    ips = _ips(cluster)
    change(ips)
    with pytest.raises(ConfigError, match=message):
        write_rank_table(cluster, range(4), ips)


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(ConfigError, match="each of the 4 slots"):
        write_rank_table(_cluster(4), (0, 1, 1, 3), {})


def test_two_servers_of_one_name_and_a_missing_pod_are_refused():
    cluster = _cluster(2, 2)
    twins = dataclasses.replace(cluster, servers=(cluster.servers[0], cluster.servers[0]))
    with pytest.raises(ConfigError, match="no names of their own.*--ips NAME=FILE"):
        write_rank_table(twins, range(4), {})
    with pytest.raises(ConfigError, match="has no super pods"):
        write_rank_table(cluster, range(4), _ips(cluster), "1.2", {"node0": {0: 0, 1: 1}, "node1": {0: 2, 1: 3}})
