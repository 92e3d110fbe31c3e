"""Clusters from presets, YAML, npu-smi outputs and rank tables, and the table of links."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.links import (
    ACCELERATORS,
    KINDS,
    NETWORK,
    accelerator,
    link_table,
    parse_link,
    parse_speed,
    parse_time,
)
from mindspeed_ms.parallel.topology.load import load_cluster
from mindspeed_ms.parallel.topology.presets import preset_names

MESH = """	   NPU0       NPU1       CPU Affinity
NPU0       X          HCCS       0-23
NPU1       HCCS       X          24-47
"""
YAML = """
accelerator: 910B3
server:
  devices: [4, 5, 6]
  joined:
    - {kind: hccs, groups: [[4, 5]]}
  otherwise: SYS
"""


def refused(spec, **options):
    with pytest.raises(ConfigError) as error:
        load_cluster(spec, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def write(path, text):
    path.write_text(text)
    return str(path)


def test_every_preset_loads_and_joins_all_its_devices():
    assert {"910a", "910b", "910b-box16", "a3", "a3-pod", "cpu"} <= set(preset_names())
    for name in preset_names():
        cluster = load_cluster(name)
        assert cluster.name == name
        for server in cluster.servers[:1]:
            for at, row in enumerate(server.kinds):
                assert [word == "X" for word in row] == [other == at for other in range(len(row))]
                assert all(row[other] == server.kinds[other][at] for other in range(len(row)))
                assert set(row) - {"X"} <= set(cluster.links)


def test_every_key_of_a_preset_has_a_comment_above_it_or_beside_it():
    for path in (Path(__file__).parents[3] / "configs" / "topology").glob("*.yaml"):
        lines = path.read_text().splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            key = line.partition(":")[0]
            if key and not line.startswith((" ", "#", "-")) and key != "server":
                assert before.startswith("#"), (path.name, line)


def test_servers_multiply_a_preset_and_share_one_shape():
    cluster = load_cluster("910b", 128)
    assert (cluster.size, len(cluster.servers), len({id(server) for server in cluster.servers})) == (1024, 128, 1)
    assert (cluster.kind(0, 7), cluster.kind(7, 8)) == ("HCCS", "ROCE")


def test_pods_are_servers_in_a_row():
    cluster = load_cluster("a3-pod", 50)
    assert [len(pod) for pod in cluster.pods] == [48, 2]
    assert cluster.kind(0, 1) == "SIO" and cluster.kind(0, 2) == "HCCS_SW"
    assert cluster.kind(0, 47 * 16) == "HCCS_SW" and cluster.kind(0, 48 * 16) == "ROCE"


def test_a_matrix_of_npu_smi_is_a_cluster(tmp_path):
    cluster = load_cluster(write(tmp_path / "node.txt", MESH), 3)
    assert (cluster.size, cluster.kind(0, 1), cluster.kind(1, 2)) == (6, "HCCS", "ROCE")
    assert cluster.accelerator.source.startswith("assumed from the links")
    assert load_cluster(str(tmp_path / "node.txt"), accelerator="Ascend910B2").accelerator.name == "910B2"


def test_servers_may_have_a_matrix_each(tmp_path):
    first = write(tmp_path / "a.txt", MESH)
    second = write(tmp_path / "b.txt", MESH.replace("HCCS", "SYS ").replace("NPU1", "NPU3"))
    cluster = load_cluster(f"{first},{second},{first}")
    assert [server.devices for server in cluster.servers] == [(0, 1), (0, 3), (0, 1)]
    assert cluster.servers[0] is cluster.servers[2]
    assert (cluster.kind(0, 1), cluster.kind(2, 3), cluster.kind(1, 2)) == ("HCCS", "SYS", "ROCE")
    assert "2 files are given" in refused(f"{first},{second}", servers=2)


def test_the_table_of_chips_in_the_same_file_names_the_devices(tmp_path):
    text = (
        MESH
        + "\nNPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  0  Ascend 910B4\n0  1  -  Mcu\n1  0  1  Ascend 910B4\n"
    )
    found = load_cluster(write(tmp_path / "node.txt", text)).accelerator
    assert (found.name, found.memory) == ("910B4", 32 << 30) and "assumed" not in found.source


def test_links_tell_a_950_an_a3_and_a_910a(tmp_path):
    a3 = MESH.replace("HCCS", "SIO ")
    assert load_cluster(write(tmp_path / "a3.txt", a3)).accelerator.name == "910C"
    assert load_cluster(write(tmp_path / "a5.txt", MESH.replace("HCCS", "UB  "))).accelerator.name == "950PR"
    rows = [["X" if a == b else "HCCS" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)]
    text = "\n".join(f"NPU{at} " + " ".join(row) for at, row in enumerate(rows))
    assert load_cluster(write(tmp_path / "a.txt", text)).accelerator.name == "910A"


def test_a_file_of_a_windows_shell_is_read(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_bytes("NPU0 X SIO\nNPU1 SIO X\n".encode("utf-16"))
    assert load_cluster(path).servers[0].kinds == (("X", "SIO"), ("SIO", "X"))


@pytest.mark.parametrize("memory", ["0GB", "9999999999999GB", "64"])
def test_a_device_has_memory_that_can_be(tmp_path, memory):
    figures = f"{{name: a, memory: {memory}, peak_flops: 1e12, memory_bandwidth: 1TB/s}}"
    path = write(tmp_path / "t.yaml", f"accelerator: {figures}\nserver: {{devices: 2, otherwise: HCCS}}\n")
    assert "accelerator" in refused(path) and memory in refused(path)


def test_a_yaml_says_what_joins_which_devices(tmp_path):
    cluster = load_cluster(write(tmp_path / "c.yaml", YAML))
    assert cluster.servers[0].devices == (4, 5, 6)
    assert cluster.servers[0].kinds == (("X", "HCCS", "SYS"), ("HCCS", "X", "SYS"), ("SYS", "SYS", "X"))


def test_a_yaml_may_hold_the_matrix_itself_and_other_speeds(tmp_path):
    matrix = "".join("    " + line + "\n" for line in MESH.strip().splitlines())
    text = f"""
accelerator: {{name: test, memory: 96GB, peak_flops: 1.0e+15, memory_bandwidth: 2TB/s}}
server:
  matrix: |
{matrix}
servers: 2
links:
  HCCS: {{bandwidth: 40GB/s, latency: 3us, source: ours}}
  ROCE: {{bandwidth: 400Gbit/s}}
"""
    cluster = load_cluster(write(tmp_path / "c.yaml", text))
    assert (cluster.size, cluster.accelerator.memory) == (4, 96 << 30)
    hccs, roce = cluster.links["HCCS"], cluster.links["ROCE"]
    assert (hccs.bandwidth, hccs.latency, hccs.source) == (40e9, 3e-6, "ours")
    assert (roce.bandwidth, roce.latency) == (50e9, link_table("test")["ROCE"].latency)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("otherwise", "otherwize", "unknown key 'server.otherwize'; did you mean 'otherwise'?"),
        ("  otherwise: SYS\n", "", "nothing joins the devices 4 and 6"),
        ("hccs", "NVLINK", "'NVLINK' is no kind of link"),
        ("[4, 5]]", "[4, 9]]", "there is no device 9 in server.devices"),
        ("[4, 5, 6]", "[4, 4]", "different devices"),
        ("910B3", "H100", "accelerator 'H100': expected one of 910A"),
        ("[4, 5, 6]", "0", "server.devices"),
        ("accelerator", "matrix: x\naccelerator", "unknown key 'matrix'"),
        ("  otherwise", "  affinity: [0-3]\n  otherwise", "server.affinity has 1 entries, expected 3"),
        ("  otherwise", "  matrix: x\n  otherwise", "expected one of matrix and devices"),
        ("server:", "pod_servers: 2\nserver:", "pod_servers and within_pod together"),
        ("server:", "links: {HCCS: {bandwidth: fast}}\nserver:", "links.HCCS: 'fast' is no speed"),
    ],
)
def test_a_wrong_yaml_names_the_key(tmp_path, old, new, message):
    path = write(tmp_path / "c.yaml", YAML.replace(old, new, 1))
    assert message in refused(path) and refused(path).startswith(path)


def rank_table(servers, **device):
    ranks = iter(range(99))
    return json.dumps(
        {
            "status": "completed",
            "version": "1.0",
            "server_count": str(len(servers)),
            "server_list": [
                {
                    "server_id": f"10.0.0.{number}",
                    "device": [
                        {"device_id": str(i), "device_ip": f"10.1.{number}.{i}", "rank_id": str(next(ranks)), **device}
                        for i in ids
                    ],
                }
                for number, ids in enumerate(servers)
            ],
        }
    )


def test_a_rank_table_gives_the_devices_and_a_preset_the_links(tmp_path):
    path = write(tmp_path / "hccl.json", rank_table([(0, 1), (4, 5)]))
    cluster = load_cluster(path)
    assert [server.devices for server in cluster.servers] == [(0, 1), (4, 5)]
    assert (cluster.kind(0, 1), cluster.kind(1, 2)) == ("HCCS", "ROCE")
    path = write(tmp_path / "hccl.json", rank_table([(3, 4)]))
    assert load_cluster(path, like="910a").kind(0, 1) == "SYS"
    assert "assumed" not in load_cluster(path, like="910a").accelerator.source
    assert load_cluster(path).accelerator.source.startswith("assumed, a rank table does not say")
    assert load_cluster(path).kind(0, 1) == "HCCS"


def test_a_rank_table_with_devices_that_the_preset_lacks_is_refused(tmp_path):
    path = write(tmp_path / "hccl.json", rank_table([(0, 12)]))
    assert load_cluster(path).accelerator.name == "910B3"  # as on a Box16
    assert "has a device 12, which servers of 910b do not have" in refused(path, like="910b")
    assert "2 were asked for" in refused(path, servers=2)
    assert "has a device twice" in refused(write(tmp_path / "t.json", rank_table([(1, 1)])))


def test_a_name_that_is_nothing_lists_the_presets(tmp_path):
    assert "neither a file nor a preset; the presets are 910a, 910b" in refused("910x")
    assert "cannot be read" in refused(str(tmp_path))
    assert "found no row of a device" in refused(write(tmp_path / "empty.txt", ""))
    assert "expected a number from 1" in refused("910b", servers=0)
    assert "expected a number from 1 to 65536" in refused("910b", servers=65537)


def test_every_kind_of_link_and_device_has_a_source_and_figures_that_can_be():
    for name in ("", *ACCELERATORS):
        table = link_table(name)
        assert set(table) == {*KINDS, *NETWORK}
        for kind, link in table.items():
            assert kind == link.kind and len(link.source) > 10
            assert 1e9 < link.bandwidth < 1e12 and 0 < link.latency < 1e-3
    assert all(device.source and device.memory >= 1 << 30 for device in ACCELERATORS.values())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Ascend910B2", "910B2"),
        ("910b", "910B3"),
        ("Ascend 910B4-1", "910B4"),
        ("Ascend910_9382", "910C"),
        ("Ascend910", "910A"),
        ("Ascend950PR_9599", "950PR"),
        ("Ascend910ProB", "910A"),
    ],
)
def test_accelerators_are_known_by_the_names_of_npu_smi(name, found):
    assert accelerator(name).name == found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("56GB/s", 56e9),
        ("200Gbit/s", 25e9),
        ("200 Gbps", 25e9),
        ("1.6TB/s", 1.6e12),
        ("1GiB/s", 2**30),
        ("8Gib/s", 2**30),
        ("20000MBps", 2e10),
    ],
)
def test_speeds_are_bytes_a_second(text, value):
    assert parse_speed(text, "x") == value


def test_a_link_is_given_as_kind_speed_and_latency():
    assert parse_link("hccs=56GB/s,5us") == ("HCCS", 56e9, pytest.approx(5e-6))
    assert parse_link("ROCE=200Gbit/s") == ("ROCE", 25e9, None)
    links = load_cluster("910b", links=[parse_link("HCCS=56GB/s")]).links
    assert (links["HCCS"].bandwidth, links["HCCS"].source) == (56e9, "given by the user")


@pytest.mark.parametrize(
    "text", ["", "HCCS", "HCCS=", "HCCS=56", "HCCS=56GB/s,", "HCCS=0GB/s", "HCCS=1GB/s,5", "FOO=1GB/s"]
)
def test_a_wrong_link_is_refused(text):
    with pytest.raises(ConfigError, match="^--link: "):
        parse_link(text)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(max_size=30), st.from_regex(r"[0-9]{1,3}\.?[0-9e+-]{0,4} ?[KMGT]?i?(B/s|bit/s|us|ms|s)", fullmatch=True)
    )
)
def test_any_text_is_a_figure_or_refused(text):
    for function in (parse_speed, parse_time):
        try:
            assert function(text, "x") >= 0
        except ConfigError:
            pass


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.text(max_size=100), st.binary(max_size=100)), st.sampled_from(["t.txt", "t.yaml", "t.json"]))
def test_any_file_is_a_cluster_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    try:
        assert load_cluster(path).size > 0
    except ConfigError:
        pass


def test_options_that_say_nothing_of_a_file_are_refused():
    assert "is none; leave it out" in refused("910b", like="910a")
    assert refused("910b", accelerator="")
