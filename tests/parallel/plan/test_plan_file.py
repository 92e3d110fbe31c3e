"""plan.json: what is written is read back, to the byte; what does not belong in it is refused by name."""

import json
from dataclasses import replace

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import plan_file
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.planner import make_plan
from mindspeed_ms.parallel.plan.settings import Job
from mindspeed_ms.parallel.topology.load import load_cluster

KEYS = "format version model job settings predicted binds reasons alternatives sensitivity cluster order groups".split()


@pytest.fixture(scope="module")
def made():
    return make_plan(read_model("llama2-7b"), load_cluster("a3-pod", 4), Job(4096, 64), Limits(pipeline=2, keep=3))


@pytest.fixture
def content(made):
    return json.loads(plan_file.to_text(made.plan))


def parse(content):
    return plan_file.from_text(json.dumps(content))


def test_a_plan_is_read_back_as_it_was_written_to_the_byte(made, tmp_path):
    path = tmp_path / "plan.json"
    plan_file.write(made.plan, path)
    back = plan_file.read(path)
    assert plan_file.to_text(back).encode() == path.read_bytes()
    assert back.settings == made.plan.settings and back.cluster == made.plan.cluster and back.model == made.plan.model
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_key_of_the_top_level_is_a_line_in_a_fixed_order(made):
    lines = plan_file.to_text(made.plan).split("\n")
    assert lines[0] == "{" and lines[-2:] == ["}", ""]
    assert [line.split('"')[1] for line in lines[1:-2]] == KEYS
    for line in lines[1:-2]:
        json.loads("{" + line.rstrip(",") + "}")


def test_equal_servers_are_written_once(content):
    assert len(content["cluster"]["shapes"]) == 1 and len(content["cluster"]["servers"]) == 4


def test_the_parts_of_a_step_add_up_and_so_do_those_of_memory(made):
    predicted = made.plan.predicted
    assert sum(predicted.parts.values()) == pytest.approx(predicted.step_seconds)
    for stage in predicted.memory:
        assert (
            sum(value for name, value in stage.items() if name != "total") == stage["total"] <= predicted.memory_limit
        )


@pytest.mark.parametrize("key", KEYS[2:])
def test_every_key_has_to_be_there(content, key):
    del content[key]
    with pytest.raises(ConfigError, match=rf"the key '{key}' is missing"):
        parse(content)


def test_unknown_keys_are_refused_at_every_depth(content):
    for place in (content, content["model"], content["settings"], content["cluster"]["servers"][0]):
        place["tensro"] = 1
        with pytest.raises(ConfigError, match="unknown key .*tensro"):
            parse(content)
        del place["tensro"]
    parse(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="another"), "no plan: expected a JSON object with format"),
        (lambda c: c.update(version=2), "version is 2, this program reads 1"),
        (lambda c: c["order"].pop(), "order has to name 64 different slots"),
        (lambda c: c["order"].__setitem__(0, c["order"][1]), "order has to name 64 different slots"),
        (lambda c: c["order"].__setitem__(0, 64), "order names slot 64; the cluster has 64"),
        (lambda c: c["groups"].pop("data"), "groups has .*; expected tensor, context"),
        (lambda c: c["groups"]["pipeline"][0].reverse(), "groups.pipeline is not what the settings' degrees give"),
        (lambda c: c["settings"].update(data=1), "order has to name"),
        (lambda c: c["cluster"]["servers"][1].update(shape=1), "cluster.servers.1.shape is 1; of 1 shapes"),
        (lambda c: c["cluster"]["servers"][1]["devices"].pop(), "cluster.servers.1 has 15 devices"),
        (lambda c: c["settings"].update(zero="many"), "settings.zero"),
    ],
)
def test_what_contradicts_itself_is_refused(content, change, message):
    change(content)
    with pytest.raises(ConfigError, match=message):
        parse(content)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1, "format": 2}', '{"format": NaN}', "null", "[" * 5000])
def test_what_is_no_plan_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^plan.json: (not valid JSON|no plan)"):
        plan_file.from_text(text)


def test_a_number_that_json_cannot_hold_is_never_written(made):
    broken = replace(made.plan, predicted=replace(made.plan.predicted, step_seconds=float("nan")))
    with pytest.raises(ValueError, match="not JSON compliant"):
        plan_file.to_text(broken)


def test_a_missing_file_and_a_place_that_cannot_be_written_are_told(made, tmp_path):
    with pytest.raises(ConfigError, match="no such file; `mindspeed-ms plan` writes"):
        plan_file.read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        (tmp_path / "file").write_text("")
        plan_file.write(made.plan, tmp_path / "file" / "plan.json")
