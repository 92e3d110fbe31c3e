"""HCCL's variables: only those that exist, only values in their documented ranges."""

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Accelerator, Cluster, Server
from mindspeed_ms.parallel.topology.hccl_env import KNOWN, advice, algorithm_setting, check, check_all


def _cluster(servers):
    row = tuple(("X", "HCCS") if a == 0 else ("HCCS", "X") for a in range(2))
    chip = Accelerator("910B", 64 << 30, 3e14, 1.6e12, "test")
    return Cluster("test", tuple(Server(f"n{n}", (0, 1), row) for n in range(servers)), {}, chip)


def _values(servers=1, **more):
    found = advice(_cluster(servers), micro_batch=1, seq=4096, hidden=8192, **more)
    assert all(variable.why and variable.source for variable in found)
    return {variable.name: variable.value for variable in found}


def test_the_buffer_holds_one_activation_rounded_up():
    # The guide: ceil(micro batch · sequence · hidden · bytes / 1 MiB).
    assert _values() == {"HCCL_BUFFSIZE": "64"}
    assert advice(_cluster(1), micro_batch=1, seq=1, hidden=1)[0].value == "1"
    assert advice(_cluster(1), micro_batch=2, seq=10240, hidden=3584)[0].value == "140"


def test_the_buffer_says_what_all_groups_take():
    assert "384 MB for 3 groups" in advice(_cluster(1), micro_batch=1, seq=4096, hidden=8192, groups=3)[0].why


def test_the_buffer_is_no_larger_than_what_memory_has_room_for():
    [one] = advice(_cluster(1), micro_batch=1, seq=32768, hidden=8192, most_buffer=200 << 20)
    assert one.value == "200" and "is 512 MB" in one.why and "400 MB each" in one.why
    assert _values(most_buffer=200 << 20) == {"HCCL_BUFFSIZE": "64"}


def test_several_servers_wait_longer_for_each_other():
    assert _values(2)["HCCL_CONNECT_TIMEOUT"] == "600"
    assert _values(2, pipeline=4)["HCCL_CONNECT_TIMEOUT"] == "1800"
    assert _values(2, interface="eth0")["HCCL_SOCKET_IFNAME"] == "=eth0"


def test_no_algorithm_is_fixed_unless_asked_for():
    assert "HCCL_ALGO" not in _values(4)
    wanted = {"all_reduce": "ring", "all_gather": "rhd", "all_to_all": "pairwise"}
    expected = "allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:H-D_R/alltoall=level0:NA;level1:pairwise"
    assert _values(4, algorithms=wanted)["HCCL_ALGO"] == expected


@pytest.mark.parametrize(
    "value",
    [
        "level0:ring;level1:ring",
        "level0:NA;level1:mesh",
        "level0:NA;level3:ring",
        "level0:NA;level1:ring;level1:NHR",
        "allreduce=level0:NA;level1:pairwise",
        "send=level0:NA;level1:ring",
        "level0:NA;level2:AHC",
        "",
    ],
)
def test_hccl_algo_takes_na_inside_a_server_and_the_listed_names_between(value):
    with pytest.raises(ConfigError, match="HCCL_ALGO"):
        check("HCCL_ALGO", value)


@pytest.mark.parametrize("value", ["level0:NA;level1:H-D_R", "level0:NA;level1:NHR;level2:ring", "level0:NA"])
def test_hccl_algo_forms_of_the_guide_pass(value):
    check("HCCL_ALGO", value)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("HCCL_BUFFSIZE", "1", "0"),
        ("HCCL_BUFFSIZE", "200", "200MB"),
        ("HCCL_CONNECT_TIMEOUT", "120", "119"),
        ("HCCL_CONNECT_TIMEOUT", "7200", "7201"),
        ("HCCL_EXEC_TIMEOUT", "0.05", "-1"),
        ("HCCL_IF_BASE_PORT", "1024", "65521"),
        ("HCCL_RDMA_TC", "132", "130"),
        ("HCCL_IF_IP", "10.0.0.1", "eth0"),
        ("HCCL_SOCKET_IFNAME", "^=eth0,enp0", "eth 0"),
        ("HCCL_HOST_SOCKET_PORT_RANGE", "60000,60050-60100", "60000-60100,60050"),
        ("RANK_TABLE_FILE", "/job/rank_table.json", "/job/rank_table"),
    ],
)
def test_ranges_of_the_guide(name, good, bad):
    check(name, good)
    with pytest.raises(ConfigError, match=name):
        check(name, bad)


@pytest.mark.parametrize("name", ["HCCL_CONFIG_PATH", "HCCL_RING_SIZE", "HCCL_BUFSIZE"])
def test_variables_that_do_not_exist_are_refused(name):
    assert name not in KNOWN
    with pytest.raises(ConfigError, match="no such variable"):
        check(name, "1")


def test_variables_that_exclude_each_other_are_refused():
    check_all({"HCCL_INTRA_ROCE_ENABLE": "1", "OMP_NUM_THREADS": "8"})
    with pytest.raises(ConfigError, match="exclude each other"):
        check_all({"HCCL_INTRA_ROCE_ENABLE": "1", "HCCL_INTRA_PCIE_ENABLE": "1"})
    with pytest.raises(ConfigError, match="strict"):
        check_all({"HCCL_DETERMINISTIC": "strict", "HCCL_ALGO": algorithm_setting({"allreduce": "ring"})})
