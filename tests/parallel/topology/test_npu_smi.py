"""What `npu-smi info -t topo` prints, in every form in which it is met."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Server
from mindspeed_ms.parallel.topology.links import KINDS
from mindspeed_ms.parallel.topology.npu_smi import read_topology

LEGEND = """
Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.
  HCCS = Connection traversing HCCS.
  NA   = Unknown relationship.
"""


def printed(ids, kinds, affinity=None, label="NPU", header=True, legend=LEGEND):
    """As npu-smi prints it: names padded to 11 characters, the header behind a tab and three blanks."""
    lines = []
    if header:
        lines.append("\t   " + "".join(f"{label}{i}".ljust(11) for i in ids) + ("CPU Affinity" if affinity else ""))
    for at, i in enumerate(ids):
        row = f"{label}{i}".ljust(11) + "".join(kind.ljust(11) for kind in kinds[at])
        lines.append(row + (affinity[at] if affinity else ""))
    return "\n".join([*lines, legend])


def two_by_two(near="HCCS", far="SYS"):
    return [
        ["X", near, far, far],
        [near, "X", far, far],
        [far, far, "X", near],
        [far, far, near, "X"],
    ]


def read(text):
    return read_topology(text, "topo.txt")


def refused(text):
    with pytest.raises(ConfigError) as error:
        read(text)
    message = str(error.value)
    assert message.startswith("topo.txt: ") and "\n" not in message
    return message


PAIRS = printed([0, 1, 2, 3], two_by_two(), ["0-23", "0-23", "24-47", "24-47"])


def test_devices_links_and_cores_are_read():
    server = read(PAIRS)
    assert server.devices == (0, 1, 2, 3)
    assert server.kinds == tuple(map(tuple, two_by_two()))
    assert server.affinity == (tuple(range(24)),) * 2 + (tuple(range(24, 48)),) * 2


def test_ids_may_have_gaps():
    server = read(printed([1, 3, 8, 11], two_by_two("PIX", "PHB"), ["0-23"] * 4))
    assert server.devices == (1, 3, 8, 11)
    assert server.kinds[2] == ("PHB", "PHB", "X", "PIX")


def test_a_header_that_lost_its_indent_is_no_row():
    text = PAIRS.replace("\t   NPU0", "NPU0", 1)
    assert read(text) == read(PAIRS)


def test_a_cell_of_cores_may_hold_commas_and_blanks_at_the_end():
    text = printed([0, 1], [["X", "SYS"], ["SYS", "X"]], ["0-1,8,10-11         ", "2-3, 12"])
    assert read(text).affinity == ((0, 1, 8, 10, 11), (2, 3, 12))


def test_a_header_without_indent_above_cells_with_commas_and_no_fast_link():
    kinds = [["X" if a == b else "SYS" for b in range(4)] for a in range(4)]
    text = printed(range(4), kinds, ["0-1,8-9"] * 2 + ["2-3,10-11     "] * 2).lstrip()
    assert text.startswith("NPU0")
    server = read(text)
    assert server.kinds == tuple(map(tuple, kinds))
    assert server.affinity == ((0, 1, 8, 9),) * 2 + ((2, 3, 10, 11),) * 2


def test_rows_of_an_a3_are_named_by_physical_id_and_have_no_cores():
    server = read(printed([12, 13], [["X", "SIO"], ["SIO", "X"]], label="Phy-ID"))
    assert server.devices == (12, 13)
    assert server.kinds == (("X", "SIO"), ("SIO", "X"))
    assert server.affinity == ()


def test_rows_by_physical_id_fit_columns_by_npu_number():
    text = PAIRS.replace("\nNPU", "\nPhy-ID")
    assert read(text) == read(PAIRS)


def test_without_a_header_columns_are_in_the_order_of_the_rows():
    text = printed([0, 1, 2, 3], two_by_two(), ["0-23", "0-23", "24-47", "24-47"], header=False)
    assert read(text) == read(PAIRS)


def with_cards(text):
    """Rows and columns of network cards, as npu-smi prints them."""
    lines = []
    for line in text.splitlines():
        if line.startswith("\t"):
            line = line.replace("CPU Affinity", "NIC0        NIC1        CPU Affinity")
        elif line.startswith("NPU"):
            line = line[:55] + "PIX        SYS        " + line[55:]
        lines.append(line)
        if line.startswith("NPU3"):
            lines += [f"NIC{n}       " + "PIX        SYS        " * 2 + "X          NA         " for n in (0, 1)]
            lines += ["", "NIC0: mlx5_0", "NIC1: mlx5_1"]
    return "\n".join(lines)


def test_network_cards_are_left_out():
    text = with_cards(PAIRS)
    assert "NIC1: mlx5_1" in text
    assert read(text) == read(PAIRS)


@pytest.mark.parametrize("name", ["mlx5_bond_0", "hns_0", "eth2", "bond0", "enp189s0f0"])
def test_network_cards_may_have_any_name(name):
    text = with_cards(PAIRS).replace("NIC0 ", f"{name} ").replace("NIC1 ", "mlx5_7 ")
    assert read(text) == read(PAIRS)


def test_network_cards_without_a_header_are_counted_by_their_rows():
    assert read("\n".join(with_cards(PAIRS).splitlines()[1:])) == read(PAIRS)


@pytest.mark.parametrize("missing", ["", "NA", "N/A", "-"])
def test_cores_may_be_missing_for_some_devices(missing):
    text = printed([0, 1, 2, 3], two_by_two(), ["0-23", missing, "24-47", "24-47"])
    assert read(text).affinity[1] == ()
    assert read(text).affinity[2] == tuple(range(24, 48))


def test_a_column_of_numa_nodes_after_the_cores_is_left_alone():
    text = printed([0, 1, 2, 3], two_by_two(), ["0-23  0", "0-23  0", "24-47  1", "24-47  1"])
    assert read(text.replace("CPU Affinity", "CPU Affinity  NUMA Affinity")) == read(PAIRS)
    assert "stands after the CPU affinity" in refused(text)


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"[root@node-7 ~]# npu-smi info -t topo\n{text}\n[root@node-7 ~]# ",
        lambda text: text.replace("NPU", "npu").replace("HCCS", "hccs"),
        lambda text: "\n".join(f"2026-01-01 10:00:00 host | {line}" for line in text.splitlines()),
        lambda text: "\n".join("> " + line for line in text.splitlines()),
        lambda text: text.replace("NPU", "NPU "),
        lambda text: text.replace("Legend", "Legend").split("\nLegend")[0],
        lambda text: "".join(f"node-01: {line}\n" for line in text.splitlines()),
        lambda text: "\x1b[0m" + text.replace("HCCS ", "\x1b[1;32mHCCS\x1b[0m "),
        lambda text: text.replace(" ", "\u3000"),
        lambda text: text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
        lambda text: text.replace("NPU0", "\u200bNPU0"),
        lambda text: text.replace("NPU", "│NPU"),
        lambda text: "".join(f'    "{line}",\n' for line in text.splitlines()),
        lambda text: text.replace("NPU0", "**NPU0**").replace(" X ", " `X` "),
    ],
    ids=["crlf", "prompts", "capitals", "log", "quoted", "blank in names", "no legend", "pdsh"]
    + ["colours", "wide blanks", "wide letters", "invisible", "frames", "program", "markdown"],
)
def test_what_stands_around_it_does_not_matter(dress):
    assert read(dress(PAIRS)) == read(PAIRS)


def wrapped(text, width):
    """As a terminal of that width shows it, and as it is copied from there: without blanks at the ends."""
    pieces = []
    for line in text.expandtabs().splitlines():
        pieces += [line[at : at + width].rstrip() for at in range(0, max(1, len(line)), width)]
    return "\n".join(pieces)


@pytest.mark.parametrize("width", [24, 37, 40, 49, 52, 55, 57, 58, 60])
def test_lines_that_a_terminal_wrapped_are_put_together(width):
    # 55 and 57 cut before and within the cores, which must not be taken for fewer of them.
    assert read(wrapped(PAIRS, width)) == read(PAIRS)


@pytest.mark.parametrize("width", [80, 90, 100, 120, 123, 160])
def test_a_wrapped_matrix_of_an_a3_is_put_together(width):
    kinds = [["X" if a == b else "SIO" if a // 2 == b // 2 else "HCCS_SW" for b in range(16)] for a in range(16)]
    text = printed(range(16), kinds, label="Phy-ID")
    assert read(wrapped(text, width)) == read(text)


def test_what_follows_the_last_row_is_no_part_of_it():
    for after in ("Legend:", "EOF", "$ ls", "[root@node-7 ~]#", "NIC0: mlx5_0", "(END)"):
        assert read("\n".join([*PAIRS.splitlines()[:5], after])) == read(PAIRS)


def test_one_device_without_cores_has_a_header_of_one_word():
    assert read("           NPU0\nNPU0       X\n").kinds == (("X",),)


@pytest.mark.parametrize("name", ["NPU999999999", "Phy-ID12345678"])
def test_a_device_with_too_large_a_number_is_not_left_out(name):
    assert f"{name} is no device" in refused(PAIRS.replace("NPU3", name))


@pytest.mark.parametrize(
    "text",
    [
        "NPU0 X HCCS " * 10**5,
        "NPU0 X\n" * 10**5,
        " ".join(f"NPU{at}" for at in range(10**5)) + "\nNPU0 X\n",
        "NPU0 X 0-23" + ",0-8000" * 10**5,
        "x" * (1 << 24) + "x",
    ],
    ids=["cells", "rows", "header", "cores", "letters"],
)
def test_far_too_much_is_refused_at_once(text):
    assert "characters" in refused(text)


def test_cores_listed_over_and_over_are_refused():
    assert "more than 8192 cores" in refused(printed([0], [["X"]], ["0-8000" + ",0-8000" * 5000]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_link_word_is_known(kind):
    assert read(printed([0, 1], [["X", kind], [kind, "X"]])).kinds[0] == ("X", kind)


def test_one_device_is_a_server_too():
    server = read(printed([5], [["X"]], ["0-23"]))
    assert (server.devices, server.kinds) == ((5,), (("X",),))


@pytest.mark.parametrize(
    "text",
    [
        "This device does not support querying topo.",
        "This device dose not support querying hccs topo.\n",
    ],
)
def test_not_supported_is_no_topology(text):
    assert "which is no topology" in refused(text)


@pytest.mark.parametrize("text", ["", "\n\n", "dcmi module initialize failed. ret is -8005", LEGEND])
def test_a_text_without_a_matrix_is_refused(text):
    assert "found no row of a device" in refused(text)


def without_line(text, start):
    return "\n".join(line for line in text.splitlines() if not line.startswith(start))


def change(text, row, old, new):
    lines = [line.replace(old, new, 1) if line.startswith(row) else line for line in text.splitlines()]
    return "\n".join(lines)


def test_a_missing_row_is_named():
    assert "the row of NPU2 is missing" in refused(without_line(PAIRS, "NPU2"))


def test_a_row_cut_off_is_named():
    at = PAIRS.index("NPU3 ", 80)
    assert "row of NPU3 has 2 links before 'the end of the line', expected 4" in refused(PAIRS[: at + 11 + 15])


def test_a_row_without_a_column_is_named():
    assert "NPU3 has a row but no column" in refused(PAIRS.replace("NPU3       CPU", "CPU", 1))


def test_links_that_differ_by_direction_are_named():
    message = refused(change(PAIRS, "NPU1", "HCCS", "PIX "))
    assert "row of NPU0 has HCCS to NPU1, but row of NPU1 has PIX to NPU0" in message


def test_an_unknown_word_is_named():
    assert "row of NPU1: 'NV12' is no link that is known" in refused(change(PAIRS, "NPU1", "HCCS", "NV12"))


def test_a_device_is_itself_in_its_own_column_alone():
    assert "expected X in its own alone" in refused(change(PAIRS, "NPU1", "HCCS", "X   "))
    assert "expected X in its own alone" in refused(change(PAIRS, "NPU1", "X   ", "HCCS"))


def test_outputs_of_two_servers_are_not_mixed():
    assert "more than one row" in refused(PAIRS + PAIRS)
    assert "two headers" in refused(PAIRS + printed([4, 5], [["X", "SYS"], ["SYS", "X"]]))


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ("23-0", "run backwards"),
        ("0-99999999999999999999", "there is no core 99999999999999999999"),
        ("all", "is no CPU affinity"),
        ("0-23,", "is no CPU affinity"),
    ],
)
def test_cores_that_cannot_be_are_named(cores, message):
    text = printed([0, 1], [["X", "SYS"], ["SYS", "X"]], ["0-23", cores])
    assert "row of NPU1" in refused(text) and message in refused(text)


WORDS = st.sampled_from([*KINDS, "X", "NPU0", "NPU1", "NPU7", "NIC0", "CPU", "Affinity", "0-23", "0,2", "Phy-ID1", "|"])


def server_or_refusal(text):
    try:
        server = read(text)
    except ConfigError:
        return
    assert isinstance(server, Server)
    count = len(server.devices)
    assert count == len(set(server.devices)) > 0
    for a in range(count):
        for b in range(count):
            assert server.kinds[a][b] == server.kinds[b][a]
            assert (server.kinds[a][b] == "X") == (a == b)


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(st.lists(WORDS, max_size=6), max_size=6)))
def test_any_text_is_a_server_or_refused(text):
    if not isinstance(text, str):
        text = "\n".join(" ".join(line) for line in text)
    server_or_refusal(text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(PAIRS) - 1), st.characters(max_codepoint=0x2FF)), max_size=4), st.data())
def test_a_damaged_matrix_is_a_server_or_refused(changes, data):
    text = list(PAIRS)
    for at, character in changes:
        text[at] = character
    cut = data.draw(st.integers(0, len(text)))
    server_or_refusal("".join(text))
    server_or_refusal("".join(text[:cut]))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_npu_smi_prints_of_any_server_is_read_back(data):
    ids = sorted(data.draw(st.sets(st.integers(0, 63), min_size=1, max_size=9)))
    count = len(ids)
    kinds = [["X"] * count for _ in ids]
    for a in range(count):
        for b in range(a):
            kinds[a][b] = kinds[b][a] = data.draw(st.sampled_from(KINDS))
    header, label = data.draw(st.booleans()), data.draw(st.sampled_from(["NPU", "Phy-ID"]))
    server = read(printed(ids, kinds, ["0-23"] * count, label, header))
    assert server.devices == tuple(ids)
    assert server.kinds == tuple(map(tuple, kinds))
