"""mindspeed-ms topo, as a user runs it."""

import json

import pytest
from typer.testing import CliRunner

from mindspeed_ms.cli.topo import app
from mindspeed_ms.errors import ConfigError

MATRIX = """[root@node ~]# npu-smi info -t topo
\t   NPU0       NPU2       NPU5       NPU7       CPU Affinity
NPU0       X          HCCS       SYS        SYS        0-23
NPU2       HCCS       X          SYS        SYS        0-23
NPU5       SYS        SYS        X          HCCS       24-47
NPU7       SYS        SYS        HCCS       X          24-47
"""


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "node.txt"
    path.write_text(MATRIX)
    return str(path)


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_show_prints_links_rings_and_cores(matrix):
    lines = run("show", matrix, "--servers", 2).splitlines()
    assert ["devices", "8"] in [line.split() for line in lines]
    assert any(line.split()[:3] == ["HCCS", "4", "no"] for line in lines)
    assert any(line.split()[:3] == ["ROCE", "0", "yes"] for line in lines)
    assert any(line.split()[:4] == ["0-1", "5,", "7", "HCCS"] for line in lines)
    assert any(line.split() == ["24-47", "5,", "7"] for line in lines)


def test_show_as_json_is_one_document(matrix):
    found = json.loads(run("show", matrix, "--json", "--link", "HCCS=56GB/s", "--accelerator", "910B2"))
    assert (found["devices"], found["accelerator"], found["memory_gib"]) == (4, "910B2", 64)
    hccs = next(link for link in found["links"] if link["link"] == "HCCS")
    assert (hccs["gb_s"], hccs["source"], hccs["pairs"]) == (56, "given by the user", 2)
    assert [ring["ring"] for ring in found["rings"]] == [[0, 2], [5, 7]]


def test_measured_times_take_the_place_of_a_default(matrix, tmp_path):
    rows = "".join(
        f"{n} | {2 * 4e-6 * 1e6 + n / 30e9 * 1e6:.4f} | 1.0 | success\n" for n in (1 << 14, 1 << 20, 1 << 26)
    )
    result = tmp_path / "r.txt"
    result.write_text(f"$ mpirun -n 2 ./bin/all_reduce_test -p 2\ndata_size | aveg_time(us) | x | check_result\n{rows}")
    links = json.loads(run("show", matrix, "--json", "--measured", f"HCCS={result}"))["links"]
    assert links[0]["link"] == "HCCS" and links[0]["gb_s"] == pytest.approx(30, rel=0.01)
    with pytest.raises(ConfigError, match="KIND=FILE"):
        run("show", matrix, "--measured", "HCCS")


def test_rings_says_how_long_a_ring_should_be():
    assert "rings of 4: an all_reduce of 64 MB" in run("rings", "910a")
    assert json.loads(run("rings", "910b", "--json"))["ring_size"] == 8


def test_check_names_the_groups_and_writes_the_order_that_mends_them(matrix, tmp_path):
    order, mended = tmp_path / "order.json", tmp_path / "mended.json"
    order.write_text("[0, 2, 1, 3]")
    with pytest.raises(
        ConfigError, match=r"2 groups cross slow links; first, tensor group 0 crosses SYS .*mended.json"
    ):
        run("check", matrix, "--tensor", 2, "--order", order, "--out", mended)
    assert json.loads(mended.read_text()) == [0, 1, 2, 3]
    assert "no group crosses a slow link" in run("check", matrix, "--tensor", 2, "--order", mended)


def test_check_of_what_cannot_be_mended_is_no_error(matrix):
    assert "lower the degree" in run("check", matrix, "--tensor", 4)


def test_check_reads_the_order_of_a_rank_table(matrix, tmp_path):
    devices = [
        {"device_id": str(i), "device_ip": f"10.0.0.{i}", "rank_id": str(r)}
        for i, r in ((0, 0), (2, 2), (5, 1), (7, 3))
    ]
    table = {"status": "completed", "version": "1.0", "server_count": "1"}
    table["server_list"] = [{"server_id": "10.0.0.1", "device": devices}]
    path = tmp_path / "hccl.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="tensor group 0 crosses SYS"):
        run("check", matrix, "--tensor", 2, "--order", path)
    with pytest.raises(ConfigError, match="tensor group 0 crosses SYS"):
        run("check", path, "--tensor", 2, "--like", matrix)


def test_degrees_that_do_not_fit_are_refused(matrix):
    with pytest.raises(ConfigError, match="4 devices do not divide into replicas of tensor · pipeline · context = 3"):
        run("check", matrix, "--tensor", 3)
    with pytest.raises(ConfigError, match="4 too few"):
        run("check", matrix, "--tensor", 2, "--data", 4)


@pytest.mark.parametrize("text", ["[0, 1", "[0, true]", '["a"]', "[" * 5000])
def test_an_order_that_is_none_is_refused(matrix, tmp_path, text):
    path = tmp_path / "order.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"order\.json: expected a rank table, or a JSON list"):
        run("check", matrix, "--order", path)


def test_plot_writes_a_picture_or_dot_text(matrix, tmp_path):
    run("plot", matrix, "--out", tmp_path / "t.dot", "--tensor", 2)
    assert (tmp_path / "t.dot").read_text().startswith('graph "node" {')
    run("plot", matrix, "--out", tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_pin_prints_what_to_put_before_a_command(matrix):
    rows = json.loads(run("pin", matrix, "--json"))["pins"]
    assert [row["taskset"] for row in rows] == [f"taskset -c {r}" for r in ("0-11", "12-23", "24-35", "36-47")]
