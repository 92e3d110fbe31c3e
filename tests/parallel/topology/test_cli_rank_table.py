"""mindspeed-ms topo rank-table."""

import json
import os

import pytest
import typer
from typer.testing import CliRunner

from mindspeed_ms.cli.topo_rank_table import rank_table
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.rank_table import read_rank_table

app = typer.Typer()
app.command()(rank_table)


def _run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.output, result.exception


@pytest.fixture
def written(tmp_path):
    arguments = []
    for node in range(2):
        conf = tmp_path / f"node{node}.conf"
        conf.write_text("".join(f"address_{device}=10.{node}.0.{device + 1}\n" for device in range(8)))
        arguments += ["--ips", f"node{node}={conf}"]
    path = tmp_path / "job" / "rank_table.json"
    _, error = _run("--cluster", "910b", "--servers", 2, *arguments, "-o", path)
    assert error is None
    return path


def test_what_is_written_is_accepted(written):
    table = read_rank_table(written)
    assert [server.server_id for server in table.servers] == ["node0", "node1"]
    assert table.order == tuple(range(16))
    output, error = _run(written, "--json")
    assert error is None
    assert json.loads(output) == {
        "file": str(written),
        "accepted": True,
        "version": "1.0",
        "servers": 2,
        "ranks": 16,
        "problems": [],
    }


def test_a_refusal_names_file_line_field_and_rule(written):
    text = written.read_text().replace("10.1.0.3", "10.1.*.3")
    written.write_text(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "10.1.*.3" in line)
    output, error = _run(written)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{written}:{line}: server_list[1].device[2].device_ip: '10.1.*.3': must be an IP")
    assert "accepted  no" in output


def test_the_process_that_asks_is_taken_into_account(written):
    assert _run(written, "--rank", "9", "--local-device", 1)[1] is None
    assert "HCCL_E_UNAVAIL" in str(_run(written, "--rank", "9", "--local-device", 0)[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a FILE"),
        (("--cluster", "910b", "--servers", 2, "--ips", "a"), "expected NAME=FILE"),
        (("--cluster", "910b", "--order", "0,1,1"), "each of the 8 slots"),
        (("--cluster", "910b", "--order", "0,x"), "x"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message):
    error = _run(*arguments)[1]
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_a_table_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("")
    error = _run("--cluster", "910b", "-o", tmp_path / "file" / "rank_table.json")[1]
    assert isinstance(error, ConfigError)
    assert "cannot be written" in str(error)
    assert _run("--cluster", "910b", "-o", tmp_path / "rank_table.json")[1] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "rank_table.json"]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for arguments in ((tmp_path / "pipe",), ("--cluster", "910b", "--ips", f"a={tmp_path / 'pipe'}")):
        assert "not a plain file" in str(_run(*arguments)[1])


def test_a_table_goes_into_a_pipe_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert _run("--cluster", "910b", "-o", tmp_path / "pipe")[1] is None
    assert json.loads(os.read(reader, 1 << 16))["status"] == "completed"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
