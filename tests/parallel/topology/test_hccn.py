"""Network ports: /etc/hccn.conf, hccn_tool's answers, and the table of chips of `npu-smi info -m`."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.hccn import Port, read_hccn_conf, read_hccn_ports, read_hccn_tool
from mindspeed_ms.parallel.topology.npu_smi_mapping import Chip, read_mapping

CONF = """# written by the installer
netmask_0=255.255.255.0
address_0=192.168.100.100
netdetect_0=192.168.100.108
address_4=192.168.100.101
gateway_0=192.168.100.1
send_arp_status_0=1
address_1 = 192.168.101.100
"""
LOOP = """[root@n1 ~]# for i in {0..1}; do hccn_tool -i $i -ip -g; hccn_tool -i $i -link -g; done
ipaddr:10.1.0.10
netmask:255.255.255.0
link status: UP
ipaddr:10.1.0.11
netmask:255.255.255.0
link status: DOWN
"""
MARKED = """===== NPU 3 =====
ipaddr:10.1.0.13
netmask:255.255.0.0
Speed: 200000 Mb/s
link status: UP
net health status: Success
Port ID TLV
	Ifname: 200GE1/0/3
System Name TLV
	leaf-7
===== NPU 5 =====
ipaddr:10.1.0.15
net health status: Receive timeout
"""


def refused(function, text):
    with pytest.raises(ConfigError) as error:
        function(text, "f.txt")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_hccn_conf_gives_the_address_of_each_device():
    assert read_hccn_conf(CONF, "hccn.conf") == {
        0: "192.168.100.100",
        1: "192.168.101.100",
        4: "192.168.100.101",
    }


def test_hccn_conf_of_ipv6():
    assert read_hccn_conf("IPv6address_0=fd00::1\nIPv6address_1=fd00::2\naddress_1=10.0.0.1\n", "f") == {
        0: "fd00::1",
        1: "10.0.0.1",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.txt: expected lines such as address_0=192.168.1.8"),
        ("address_0=192.168.1.300\n", "f.txt:1: address_0 is '192.168.1.300'; expected an IP"),
        ("address_0=10.0.0.1\naddress_0=10.0.0.2\n", "f.txt:2: address_0 is given twice"),
        ("address_0=10.0.0.1\naddress_1=10.0.0.1\n", "f.txt: devices 0 and 1 have the same IP 10.0.0.1"),
    ],
)
def test_a_wrong_hccn_conf_names_the_line(text, message):
    assert refused(read_hccn_conf, text).startswith(message)


def test_answers_without_a_device_are_numbered_in_turn():
    assert read_hccn_tool(LOOP, "f") == {0: "10.1.0.10", 1: "10.1.0.11"}
    assert [port.link for port in read_hccn_ports(LOOP, "f").values()] == ["UP", "DOWN"]


def test_answers_are_given_to_the_device_that_stands_before_them():
    ports = read_hccn_ports(MARKED, "f")
    assert ports[3] == Port("10.1.0.13", "255.255.0.0", 25e9, "UP", "Success", "200GE1/0/3", "leaf-7")
    assert ports[5] == Port(ip="10.1.0.15", health="Receive timeout")


@pytest.mark.parametrize(
    "mark",
    [
        "# hccn_tool -i 6 -ip -g",
        "root@n:~$ /usr/local/Ascend/driver/tools/hccn_tool -i 6 -ip -g",
        "[device 6]",
        "NPU_6:",
        "======NPU_6======",
        "device 6",
    ],
)
def test_a_device_is_named_by_a_prompt_or_a_heading(mark):
    assert read_hccn_tool(f"{mark}\nipaddr:10.0.0.6\nnetmask:255.255.255.0\n", "f") == {6: "10.0.0.6"}


def test_a_device_without_an_address_is_named():
    text = "NPU 0:\nipaddr:10.0.0.1\nNPU 1:\nGet ipconf failed, because no ip was preset there!\n"
    assert "device 1 has no IP" in refused(read_hccn_tool, text)


def test_two_addresses_of_one_device_contradict():
    text = "NPU 0:\nipaddr:10.0.0.1\nipaddr:10.0.0.2\n"
    assert refused(read_hccn_tool, text).startswith("f.txt:3: a second ip, '10.0.0.2', for one device")


def test_a_text_without_answers_is_refused():
    assert "expected what hccn_tool prints" in refused(read_hccn_tool, "bash: hccn_tool: command not found\n")


A2 = """	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	0                              0                              0                              Ascend 910B3
	0                              1                              -                              Mcu
	1                              0                              1                              Ascend 910B3
	1                              1                              -                              Mcu
"""
A3 = """NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name
7       0        14             14           Ascend910
7       1        15             15           Ascend910
7       2        -              -            Mcu
"""


def test_chips_are_read_and_controllers_left_out():
    assert read_mapping(A2, "f") == (Chip(0, 0, 0, None, "Ascend910B3"), Chip(1, 0, 1, None, "Ascend910B3"))
    assert read_mapping(A3, "f") == (Chip(7, 0, 14, 14, "Ascend910"), Chip(7, 1, 15, 15, "Ascend910"))


def test_a_chip_that_comes_twice_is_named():
    assert "the logic id 0 comes twice" in refused(
        read_mapping, A2.replace("1                              Asc", "0 Asc")
    )
    assert "found no row of a chip" in refused(read_mapping, "npu-smi: command not found")


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120),
        st.lists(
            st.sampled_from(
                [
                    *MARKED.splitlines(),
                    *LOOP.splitlines(),
                    *CONF.splitlines(),
                    *A3.splitlines(),
                    "address_1=",
                    "NPU 3",
                    ":",
                ]
            ),
            max_size=8,
        ).map("\n".join),
    )
)
def test_any_text_is_read_or_refused(text):
    for function in (read_hccn_conf, read_hccn_tool, read_hccn_ports, read_mapping):
        try:
            assert function(text, "f")
        except ConfigError:
            pass


def test_colours_of_a_terminal_are_no_part_of_an_address():
    assert read_hccn_tool("hccn_tool -i 2 -ip -g\n\x1b[1mipaddr:10.0.0.1\x1b[0m\n", "t.txt") == {2: "10.0.0.1"}


def test_many_answers_are_read_in_a_moment():
    text = "".join(f"ipaddr:10.0.{at >> 8}.{at & 255}\n" for at in range(20000))
    started = time.process_time()
    assert len(read_hccn_ports(text, "t.txt")) == 20000
    assert time.process_time() - started < 5  # not quadratic in the answers
