"""Reading rank tables of every version."""

import json
import os

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.rank_table import read_rank_table


def _table(*servers, **more):
    devices = [[{"rank_id": str(r), "device_id": str(d), "device_ip": ip} for r, d, ip in server] for server in servers]
    listed = [{"server_id": f"10.0.0.{n}", "device": found} for n, found in enumerate(devices)]
    return {"version": "1.0", "status": "completed", "server_count": str(len(servers)), "server_list": listed, **more}


def test_order_says_the_slot_of_each_rank():
    table = read_rank_table(json.dumps(_table([(2, 0, "1.1.1.1"), (0, 1, "1.1.1.2")], [(1, 0, "1.1.1.3")])))
    assert table.order == (1, 2, 0)
    assert [server.server_id for server in table.servers] == ["10.0.0.0", "10.0.0.1"]


def test_a_cloud_table_numbers_ranks_by_server_text_then_device():
    def instance(server, ids):
        return {"pod_name": server, "server_id": server, "devices": [{"device_id": i, "device_ip": ""} for i in ids]}

    group = {"instance_list": [instance("10.0.0.9", "10"), instance("10.0.0.10", "31")]}
    table = read_rank_table(json.dumps({"status": "completed", "group_list": [group]}))
    found = [(s.server_id, d.device_id, d.rank) for s in table.servers for d in s.devices]
    assert found == [("10.0.0.10", 1, 0), ("10.0.0.10", 3, 1), ("10.0.0.9", 0, 2), ("10.0.0.9", 1, 3)]


def test_a_table_inside_a_log_and_among_comments_is_found():
    text = json.dumps(_table([(0, 0, "1.1.1.1")]))
    assert read_rank_table(f"INFO:root: waiting {{}}\n2026 [INFO] {text}\n...\n").size == 1
    commented = text.replace('"version"', '// the {version}\n"version"')
    assert read_rank_table(commented).version == "1.0"


def test_a_cut_table_is_refused_with_the_line(tmp_path):
    path = tmp_path / "rank_table.json"
    path.write_text(json.dumps(_table([(0, 0, "1.1.1.1")]), indent=1)[:-40])
    with pytest.raises(ConfigError, match=r"rank_table\.json:\d+: no rank table"):
        read_rank_table(path)


def test_a_field_of_another_kind_is_named_with_its_line():
    text = json.dumps(_table([(0, "zero", "1.1.1.1")]), indent=1)
    with pytest.raises(ConfigError, match=r"table:11: server_list\[0\]\.device\[0\]\.device_id: 'zero'"):
        read_rank_table(text, "table")


def test_two_tables_in_one_log_are_not_mixed_up():
    one, two = (json.dumps(_table([(0, 0, ip)])) for ip in ("1.1.1.1", "1.1.1.2"))
    assert read_rank_table(f"INFO {one}\nINFO {one}\n").size == 1
    with pytest.raises(ConfigError, match="log:3: another rank table than that of line 1; cut out"):
        read_rank_table(f"INFO {one}\n{{}}\nINFO {two}\n", "log")


def test_a_table_inside_another_object_is_found_with_its_lines():
    text = json.dumps({"job": {"table": _table([(0, "zero", "1.1.1.1")])}}, indent=1)
    with pytest.raises(ConfigError, match=r"log:13: server_list\[0\]\.device\[0\]\.device_id: 'zero'"):
        read_rank_table(f"INFO {text}", "log")


@pytest.mark.parametrize("value", [True, {}, [5], "x", None])
def test_addresses_of_another_kind_are_no_crash(value):
    levels = [{"net_layer": 0, "net_instance_id": "a", "rank_addr_list": value}]
    ranks = [{"rank_id": 0, "device_id": 0, "level_list": levels}]
    assert read_rank_table(json.dumps({"version": "2.0", "rank_list": ranks})).servers[0].devices[0].ip == ""


def test_a_pipe_is_no_rank_table(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a plain file"):
        read_rank_table(tmp_path / "pipe")


@pytest.mark.parametrize("piece", ["{\n", '{"\n', '{"a":\n', '{"server_list":\n', "/*", '{"a'])
def test_what_never_ends_is_refused_at_once(piece):
    with pytest.raises(ConfigError, match="no rank table"):
        read_rank_table("INFO\n" + piece * 3_000)


def test_a_long_table_that_is_cut_is_refused_at_once():
    servers = [[(8 * s + d, d, f"10.{s // 250}.{s % 250}.{d}") for d in range(8)] for s in range(300)]
    text = json.dumps(_table(*servers), indent=1)
    with pytest.raises(ConfigError, match="found the end"):
        read_rank_table(text[:-4])
