"""checkpoint ls, verify, diff and prune, as a user runs them."""

import json

import pytest
from checkpoint_runs import command, refused, succeed

from mindspeed_ms.checkpoint.store import CheckpointStore


def steps(run):
    return CheckpointStore(run / "checkpoints", write=False).steps()


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def bin_of(run, step):
    return next((run / "checkpoints").glob(f"step-{step:08}.*.bin"))


def test_ls_names_each_step_with_its_size_and_why_it_stays(runs):
    out = succeed("ls", runs / "run").splitlines()
    assert out[0].split()[:4] == ["step", "kind", "bytes", "raw"]
    assert [line.split()[:2] for line in out[1:]] == [["5", "base"], ["10", "delta"], ["12", "delta"]]
    assert all("newest" in line for line in out[1:])


def test_ls_is_one_json_document_and_takes_the_folder_of_checkpoints_too(runs):
    found = json.loads(succeed("ls", runs / "run" / "checkpoints", "--json"))
    assert [row["step"] for row in found["checkpoints"]] == [5, 10, 12]
    assert found["checkpoints"][0]["raw_bytes"] >= 3 * 4 * 40_800


def test_ls_works_while_another_process_writes(run):
    tensors = CheckpointStore(run / "checkpoints", write=False).load(12)
    with CheckpointStore(run / "checkpoints", keep=0) as store:
        store.save(13, {name: tensors.tensors[name] for name in tensors.tensors}, {}, wait=True)
        assert len(json.loads(succeed("ls", run, "--json"))["checkpoints"]) == 4


def test_verify_reads_all(runs):
    assert succeed("verify", runs / "run").startswith("3 checkpoints, ")
    assert json.loads(succeed("verify", runs / "run", "--step", "10", "--json"))["newest_good"] == 10


def test_verify_names_the_damage_and_the_newest_good_one(run):
    flip(bin_of(run, 12), 100)
    done = command("verify", run)
    assert done.returncode == 2 and done.stderr.startswith("step 12: ")
    assert done.stderr.splitlines()[-1] == ("error: 1 of 3 checkpoints damaged; the newest good one is that of step 10")


def test_verify_of_damage_as_json(run):
    (run / "checkpoints" / "step-00000012.json").write_text("{}")
    done = command("verify", run, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 2 and found["newest_good"] == 10 and found["problems"][0]["step"] == 12
    assert "damaged" in succeed("ls", run)


def test_diff_tells_what_changed(runs):
    out = succeed("diff", runs / "run", "10", "12")
    assert "model.model.embed_tokens.weight" in out and "changed" in out and "step.step" in out
    found = json.loads(succeed("diff", runs / "run", "10", "12", "--json"))
    assert all(item["what"] == "changed" and item["largest_difference"] > 0 for item in found["tensors"])
    assert {"key": "step.step", "before": 10, "after": 12} in found["state"]
    assert succeed("diff", runs / "run", "12", "12") == "no difference\n"


def test_prune_tells_before_it_removes(run):
    would = json.loads(succeed("prune", run, "--keep", "1", "--keep-every", "5", "--dry-run", "--json"))
    assert would == {"would_remove": [], "kept": [5, 10, 12]}
    would = json.loads(succeed("prune", run, "--keep", "1", "--dry-run", "--json"))
    assert would == {"would_remove": [5, 10], "kept": [12]} and steps(run) == [5, 10, 12]
    assert json.loads(succeed("prune", run, "--keep", "1", "--json"))["removed"] == [5, 10]
    assert steps(run) == [12] and succeed("verify", run).startswith("1 checkpoint,")


def test_prune_refuses_while_another_process_writes(run):
    tensors = CheckpointStore(run / "checkpoints", write=False).load(12)
    with CheckpointStore(run / "checkpoints", keep=0) as store:
        store.save(13, {name: tensors.tensors[name] for name in tensors.tensors}, {}, wait=True)
        assert str(run) in refused("prune", run, "--keep", "1")


@pytest.mark.parametrize("name", ["ls", "verify", "prune", "diff", "export"])
def test_a_folder_without_checkpoints_is_one_clear_line(tmp_path, name):
    more = {"diff": ["1", "2"], "export": ["--to", tmp_path / "out"]}.get(name, [])
    (tmp_path / "empty").mkdir()
    assert refused(name, "", *more) == "error: FOLDER is empty; give the folder of a run, or of its checkpoints"
    assert "no such folder" in refused(name, tmp_path / "absent", *more)
    assert "holds no checkpoints" in refused(name, tmp_path / "empty", *more)


def test_a_step_that_is_not_there_is_one_clear_line(runs):
    for arguments in (["diff", runs / "run", "10", "11"], ["export", runs / "run", "--step", "11", "--to", "x"]):
        assert "the newest steps are: 5, 10, 12" in refused(*arguments)
