"""What HCCL says of rank tables. Expected answers: the HCCL_E_* its sources return and its unit tests expect."""

import copy
import json

import pytest

from mindspeed_ms.parallel.topology.rank_table_fields import family, s32, u32
from mindspeed_ms.parallel.topology.rank_table_rules import Asked, accepted, guess_device, validate


def _server(name, first_rank, count, subnet, **more):
    devices = [
        {"device_id": str(n), "device_ip": f"192.168.{subnet}.{n + 1}", "rank_id": str(first_rank + n), **more}
        for n in range(count)
    ]
    return {"server_id": name, "device": devices}


def _plain(*counts):
    starts = [sum(counts[:n]) for n in range(len(counts))]
    servers = [_server(f"node{n}", starts[n], count, n) for n, count in enumerate(counts)]
    return {"version": "1.0", "status": "completed", "server_count": str(len(counts)), "server_list": servers}


def _pods():
    table = _plain(2, 2)
    table["version"] = "1.2"
    for number, server in enumerate(table["server_list"]):
        for n, device in enumerate(server["device"]):
            device["super_device_id"] = str((number << 22) + (n << 16) + n)
    names = [{"server_id": server["server_id"]} for server in table["server_list"]]
    return {**table, "super_pod_list": [{"super_pod_id": "0", "server_list": names}]}


def _laboratory(count=4, servers=2):
    each = count // servers
    instances = [
        {
            "rank_id": str(n),
            "server_id": f"10.0.0.{n // each}",
            "devices": [{"device_id": str(n % each), "device_ip": f"192.168.0.{n + 1}"}],
        }
        for n in range(count)
    ]
    counts = {"device_num": str(count), "server_num": str(servers), "instance_count": str(count)}
    group = {"group_name": "", **counts, "instance_list": instances}
    head = {"status": "completed", "deploy_mode": "lab", "group_count": "1", "para_plane_nic_location": "device"}
    return {**head, "group_list": [group]}


def _cloud():
    instances = [
        {
            "pod_name": f"tf-{n}",
            "server_id": f"10.0.0.{n}",
            "devices": [{"device_id": "0", "device_ip": f"1.1.1.{n + 1}"}],
        }
        for n in range(2)
    ]
    group = {"group_name": "", "instance_count": "2", "device_count": "2", "instance_list": instances}
    return {"status": "completed", "group_count": "1", "group_list": [group]}


def _new():
    def rank(n):
        address = {"addr_type": "IPV4", "addr": f"10.0.0.{n + 1}", "ports": [f"0/{n}"]}
        level = {"net_layer": 0, "net_instance_id": "rack0", "net_type": "CLOS", "rank_addr_list": [address]}
        return {"rank_id": n, "device_id": n, "local_id": n, "level_list": [level]}

    return {"version": "2.0", "status": "completed", "rank_count": 2, "rank_list": [rank(0), rank(1)]}


def _mixed():
    ranks = [{"rank_id": "0", "device_id": "-1", "port": "0"}, {"rank_id": "1", "device_id": "0", "rank_ip": "1.1.1.1"}]
    nodes = [{"node_addr": "10.0.0.1", "ranks": ranks}]
    return {"status": "completed", "version": "1.1", "collective_id": "a", "mode": "tcp", "node_list": nodes}


def _put(table, path, value):
    """A copy with another value at server_list.0.device_ip and the like; None takes the field out."""
    table = copy.deepcopy(table)
    *parents, last = path.split(".")
    item = table
    for part in parents:
        item = item[int(part) if part.isdigit() else part]
    if value is None:
        del item[last]
    else:
        item[int(last) if last.isdigit() else last] = value
    return table


def _first(table, asked=None):
    found = [problem for problem in validate(json.dumps(table, indent=1), asked) if problem.refused]
    return (found[0].field, found[0].code) if found else None


GOOD = {
    "1.0": _plain(8, 8),
    "1.0 of one device": _plain(1),
    "1.0 of 16 devices": _plain(16),
    "1.2": _pods(),
    "laboratory": _laboratory(),
    "cloud": _cloud(),
    "2.0": _new(),
    "1.1": _mixed(),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_tables_of_every_version_are_accepted_without_advice(name):
    assert validate(json.dumps(GOOD[name])) == []


DEVICE = "server_list.0.device.1"
AT = "server_list[0].device[1]"
BROKEN = [
    # status and version
    ("1.0", "status", "initializing", "status", "HCCL_E_TIMEOUT"),
    ("1.0", "status", None, "status", "HCCL_E_NOT_FOUND"),
    ("1.0", "version", "2.1", "version", "HCCL_E_NOT_SUPPORT"),
    ("1.0", "version", 1.0, "version", "HCCL_E_PARA"),
    # 1.0
    ("1.0", "server_count", "3", "server_count", "HCCL_E_PARA"),
    ("1.0", "server_list", [], "server_list", "HCCL_E_PARA"),
    ("1.0", "server_list", None, "server_list", "HCCL_E_NOT_FOUND"),
    ("1.0", "server_list.0.server_id", "", "server_list[0].server_id", "HCCL_E_PARA"),
    ("1.0", "server_list.0.server_id", "n" * 65, "server_list[0].server_id", "HCCL_E_PARA"),
    ("1.0", "server_list.1.server_id", "node0", "server_list[1].server_id", "HCCL_E_PARA"),
    ("1.0", "server_list.0.host_ip", "node0", "server_list[0].host_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.rank_id", None, f"{AT}.rank_id", "HCCL_E_NOT_FOUND"),
    ("1.0", f"{DEVICE}.rank_id", 1, f"{AT}.rank_id", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.rank_id", "one", f"{AT}.rank_id", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.rank_id", "16", f"{AT}.rank_id", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_id", "0", f"{AT}.device_id", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_id", "8", f"{AT}.device_id", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", None, f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", "192.168.*.2", f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", "0.0.0.0", f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", "192.168.0.1", f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", "10.0.0.1,10.0.0.2", f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_ip", "fe80::1", f"{AT}.device_ip", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_port", "0", f"{AT}.device_port", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.device_port", "65536", f"{AT}.device_port", "HCCL_E_PARA"),
    ("1.0", f"{DEVICE}.host_port", 16665, f"{AT}.host_port", "HCCL_E_PARA"),
    # 1.2
    ("1.2", f"{DEVICE}.super_device_id", "0", f"{AT}.super_device_id", "HCCL_E_PARA"),
    ("1.2", f"{DEVICE}.super_device_id", None, f"{AT}.super_device_id", "HCCL_E_PARA"),
    ("1.2", "super_pod_list.0.super_pod_id", None, "super_pod_list[0].super_pod_id", "HCCL_E_NOT_FOUND"),
    (
        "1.2",
        "super_pod_list.0.server_list.1.server_id",
        "node9",
        "super_pod_list[0].server_list[1].server_id",
        "HCCL_E_NOT_FOUND",
    ),
    # the old form
    ("laboratory", "group_count", "0", "group_count", "HCCL_E_PARA"),
    ("laboratory", "para_plane_nic_location", "host", "para_plane_nic_location", "HCCL_E_PARA"),
    ("laboratory", "group_list.0.device_num", "0", "group_list[0].device_num", "HCCL_E_PARA"),
    ("laboratory", "group_list.0.device_num", "3", "group_list[0].device_num", "HCCL_E_PARA"),
    ("laboratory", "group_list.0.instance_count", "0", "group_list[0].instance_count", "HCCL_E_PARA"),
    ("laboratory", "group_list.0.server_num", "0", "group_list[0].server_num", "HCCL_E_PARA"),
    ("laboratory", "group_list.0.instance_list", None, "group_list[0].instance_list", "HCCL_E_NOT_FOUND"),
    ("cloud", "group_list.0.device_count", "3", "group_list[0].device_count", "HCCL_E_PARA"),
    ("cloud", "group_list.0.instance_list.0.pod_name", "", "group_list[0].instance_list[0].pod_name", "HCCL_E_PARA"),
    (
        "cloud",
        "group_list.0.instance_list.1.pod_name",
        "tf-0",
        "group_list[0].instance_list[1].pod_name",
        "HCCL_E_PARA",
    ),
    # 2.0
    ("2.0", "rank_count", 3, "rank_count", "HCCL_E_PARA"),
    ("2.0", "rank_count", "2", "rank_count", "HCCL_E_PARA"),
    ("2.0", "rank_list.1.rank_id", 0, "rank_list[1].rank_id", "HCCL_E_PARA"),
    ("2.0", "rank_list.1.device_id", 65, "rank_list[1].device_id", "HCCL_E_PARA"),
    ("2.0", "rank_list.1.level_list.0.net_layer", 8, "rank_list[1].level_list[0].net_layer", "HCCL_E_PARA"),
    ("2.0", "rank_list.1.level_list.0.net_type", "RING", "rank_list[1].level_list[0].net_type", "HCCL_E_PARA"),
    # 1.1
    ("1.1", "mode", "udp", "mode", "HCCL_E_PARA"),
    ("1.1", "node_list.0.node_addr", "host", "node_list[0].node_addr", "HCCL_E_PARA"),
]


@pytest.mark.parametrize(("name", "path", "value", "field", "code"), BROKEN)
def test_one_broken_field_is_refused_by_its_name(name, path, value, field, code):
    assert _first(_put(GOOD[name], path, value)) == (field, code)


def test_every_problem_has_the_line_of_its_field():
    table = _put(_put(GOOD["1.0 of one device"], "server_list.0.device.0.device_id", "9"), "server_count", "2")
    text = json.dumps(table, indent=1)
    lines = text.splitlines()
    found = validate(text)
    assert len(found) == 2
    for problem in found:
        assert problem.field.split(".")[-1] in lines[problem.line - 1]


@pytest.mark.parametrize(
    "text", ["", "{", '{"status": "completed" // yes\n}', "[NaN]", '{"a": 1,}', '{"a": "\t"}', "{'a': 1}"]
)
def test_what_is_no_json_is_refused(text):
    problems = validate(text)
    assert [problem.code for problem in problems] == ["HCCL_E_PARA"]


def test_a_table_in_a_log_is_refused_but_its_own_verdict_is_told():
    text = "INFO: waiting\n" + json.dumps(GOOD["1.2"])
    refused, advice = validate(text)
    assert refused.refused and refused.line == 1
    assert (advice.refused, advice.line, "would be accepted" in advice.rule) == (False, 2, True)


def test_text_behind_the_table_is_ignored_as_hccl_ignores_it():
    problems = validate(json.dumps(GOOD["1.0"]) + "\n}}")
    assert accepted(problems) and problems[0].line == 2


def test_the_last_of_two_equal_keys_counts():
    text = json.dumps(GOOD["1.0"]).replace('"status": "completed"', '"status": "x", "status": "completed"')
    assert accepted(validate(text))


def test_the_processor_decides_about_uneven_servers():
    table = json.dumps(_plain(8, 4))
    assert accepted(validate(table, Asked(device="910B")))
    assert not accepted(validate(table, Asked(device="910A")))


@pytest.mark.parametrize(
    ("ids", "good"),
    [((0, 1, 2, 3), True), ((4, 5, 6, 7), True), ((0, 1, 4, 5), True), ((1, 3, 5, 7), True), ((0, 1, 6, 7), False)],
)
def test_four_devices_of_a_910a_are_a_ring_or_pairs_of_both(ids, good):
    # topoinfo_parse.cc lists the eight choices that HCCL takes; ut_rank_select_err has 0,1,6,7.
    table = _plain(4)
    for device, number in zip(table["server_list"][0]["device"], ids, strict=True):
        device["device_id"] = str(number)
    assert accepted(validate(json.dumps(table), Asked(device="910A"))) is good


@pytest.mark.parametrize(("ids", "good"), [((0, 1, 8, 9), True), ((0, 1, 8, 10), False), ((8, 9, 10, 11), True)])
def test_the_modules_of_a_box16_use_the_same_chips(ids, good):
    table = _plain(4)
    for device, number in zip(table["server_list"][0]["device"], ids, strict=True):
        device["device_id"] = str(number)
    text = json.dumps(table)
    assert accepted(validate(text, Asked(device="910B"))) is good
    assert accepted(validate(text, Asked(device="910B", intra_roce=True)))


def test_a_910b_needs_addresses_where_an_a3_super_pod_does_not():
    table = _put(GOOD["1.2"], f"{DEVICE}.device_ip", None)
    assert accepted(validate(json.dumps(table), Asked(device="910_93")))
    assert not accepted(validate(json.dumps(table), Asked(device="910B")))


def test_the_process_asks_for_a_rank_on_its_own_device():
    text = json.dumps(GOOD["1.0"])
    assert accepted(validate(text, Asked(rank="9", local_device=1)))
    for asked, code in ((Asked(rank="9", local_device=0), "HCCL_E_UNAVAIL"), (Asked(rank="16"), "HCCL_E_PARA")):
        assert [problem.code for problem in validate(text, asked)] == [code]
    pods = json.dumps(GOOD["cloud"])
    assert accepted(validate(pods, Asked(rank="tf-1", local_device=0)))
    assert not accepted(validate(pods, Asked(rank="tf-2")))


def test_ranks_that_jump_between_servers_get_advice():
    table = _plain(2, 2)
    for device, rank in zip(table["server_list"][0]["device"], ("0", "2"), strict=True):
        device["rank_id"] = rank
    table["server_list"][1]["device"][0]["rank_id"] = "1"
    problems = validate(json.dumps(table))
    assert accepted(problems)
    assert [problem.value for problem in problems] == ["2"]


def test_the_processor_is_guessed_from_what_only_it_has():
    assert [guess_device(GOOD[name]) for name in ("1.0", "1.0 of 16 devices", "1.2", "2.0", "cloud")] == [
        "910A",
        "910B",
        "910_93",
        "950",
        "910A",
    ]
    with_port = _put(GOOD["1.0"], f"{DEVICE}.device_port", "16667")
    assert guess_device(with_port) == "910B"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (" 7", 7),
        ("+7", 7),
        ("7 of 8", 7),
        ("4294967295", 4294967295),
        ("4294967296", None),
        ("-1", None),
        ("", None),
    ],
)
def test_numbers_are_read_as_stoull_reads_them(text, number):
    assert u32(text) == number


def test_signed_numbers_are_read_as_stoi_reads_them():
    assert [s32(text) for text in ("-1", "2147483647", "2147483648", "x")] == [-1, 2147483647, None, None]


def test_addresses_are_read_as_inet_pton_reads_them():
    texts = ("10.0.0.1", "0.0.0.0", "fe80::1%eth0", "10.0.0", "10.0.0.01", "%eth0", "10.0.0.1%", "::1", "")
    assert [family(text) for text in texts] == [4, 0, 6, None, None, None, None, 6, None]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('"2"', "9" * 5000, "a number that a computer can hold"),
        ('"2"', "1e999", "a number that a computer can hold"),
        ('"2"', "[" * 5000, "at most 100 values inside each other"),
        ('"2"', '"' + "9" * 5000 + '"', "must be a whole number from 0 to 4294967295"),
    ],
)
def test_numbers_beyond_any_size_are_refused(old, new, rule):
    text = '{"status": "completed", "version": "1.0", "server_count": "2", "server_list": []}'.replace(old, new)
    assert any(rule in problem.rule for problem in validate(text) if problem.refused)


def test_leading_zeros_count_as_little_as_for_hccl():
    text = json.dumps({"status": "completed", "version": "1.0", "server_count": "0" * 5000 + "1", "server_list": []})
    assert not [problem for problem in validate(text) if problem.field == "server_count"]


def test_a_key_that_occurs_twice_is_told():
    text = '{"status": "initializing",\n "status": "completed",\n "version": "1.0"}'
    assert (2, "status", False) in [(p.line, p.field, p.refused) for p in validate(text)]


def test_each_table_of_a_log_has_its_verdict():
    good = {"status": "completed", "version": "1.0", "server_list": [_server("a", 0, 1, 0)]}
    found = validate(f"INFO {json.dumps({**good, 'status': 'initializing'})}\nINFO {json.dumps(good)}\n")
    assert [(p.line, "would be accepted" in p.rule) for p in found if p.value == "a table"] == [(1, False), (2, True)]
