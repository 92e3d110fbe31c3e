"""Scripts that start a training job with msrun: one for each node, and the forms of Slurm and Kubernetes.

`write_launch` takes plain values, so that a plan, a test or a person can fill them in. The scripts are Bash, with every
value quoted; flags are those of msrun 2.10 (`msrun --help`). msrun gives process n of node m the rank m · devices + n
and the device n, whatever a rank table says: ranks in another order are started by `launch_ranks`.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.hccl_env import check_all
from mindspeed_ms.paths import write_whole

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
_NAMES = ("start_all.sh", "job.sbatch", "job.yaml", "volcano.yaml")


@dataclass(frozen=True)
class Launch:
    """What a launch needs: nodes in the order of their ranks, devices of each, and the command of every rank."""

    nodes: tuple[str, ...]  # addresses or host names; the first is the scheduler's
    devices: tuple[int, ...]  # how many ranks each node runs
    command: tuple[str, ...]  # the script and its arguments
    name: str = "mindspeed-ms"  # of the job: small letters, digits and '-'
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 8118
    rank_table: str = ""  # path of the rank table on every node, msrun sets RANK_TABLE_FILE to it; empty: none
    log_dir: str = "msrun_log"
    cluster_timeout: int = 600  # seconds that nodes wait for each other
    # For each node: device to cores, as `taskset -c` takes them (topology.pinning); empty: msrun binds by itself.
    cores: tuple[Mapping[int, str], ...] = ()
    # For each node: rank and device of each of its processes; empty: as msrun numbers them.
    placed: tuple[tuple[tuple[int, int], ...], ...] = ()
    image: str = "mindspeed-ms:latest"  # of the containers of Kubernetes
    resource: str = "huawei.com/Ascend910"  # what the device plugin calls a device
    time_limit: str = ""  # of Slurm, such as 24:00:00; empty: the partition's
    partition: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return sum(self.devices)

    @property
    def as_msrun(self) -> bool:
        """Whether msrun itself gives each rank its device, from those that a node's processes see."""
        even = len(set(self.devices)) == 1
        return even and all(
            [rank for rank, _ in placed] == list(range(node * len(placed), (node + 1) * len(placed)))
            and all(before < after for (_, before), (_, after) in itertools.pairwise(placed))
            for node, placed in enumerate(self.placed)
        )

    def visible(self, node: int) -> str:
        """The devices that a node's processes see, with commas; empty: the first so many, as msrun counts."""
        devices = [device for _, device in self.placed[node]] if self.placed else []
        return "" if devices == list(range(len(devices))) else ",".join(map(str, devices))


def check_launch(launch: Launch) -> None:
    """Raises ConfigError for what cannot be launched, or could be read by a shell as something else."""
    check_all(launch.environment)
    if not launch.nodes or len(launch.nodes) != len(launch.devices):
        raise ConfigError(
            f"launch: {len(launch.nodes)} nodes and {len(launch.devices)} counts of devices; give one each"
        )
    if len(set(launch.nodes)) < len(launch.nodes):
        raise ConfigError(f"launch: a node is named twice in {', '.join(launch.nodes)}")
    for node, count in zip(launch.nodes, launch.devices, strict=True):
        if not _HOST.fullmatch(node):
            raise ConfigError(f"launch: node {node!r}: expected an address or a host name")
        if count < 1:
            raise ConfigError(f"launch: node {node} runs {count} ranks; expected at least 1")
    if not launch.command or not launch.command[0] or launch.command[0].startswith("-"):
        first = f"{launch.command[0]!r} is no script" if launch.command else "no command"
        raise ConfigError(f"launch: {first}; give the script that each rank runs, and then its arguments")
    if not 1024 <= launch.port <= 65535:
        raise ConfigError(f"launch: port {launch.port}; msrun takes 1024 to 65535")
    if not _NAME.fullmatch(launch.name):
        raise ConfigError(f"launch: name {launch.name!r}; expected at most 52 small letters, digits and '-'")
    if launch.cores and len(launch.cores) != len(launch.nodes):
        raise ConfigError(
            f"launch: cores of {len(launch.cores)} nodes for {len(launch.nodes)}; give each node's or none"
        )
    if launch.placed:
        _check_placed(launch)
    for name, value in launch.environment.items():
        if not _VARIABLE.fullmatch(name) or "\n" in value or "\0" in value:
            raise ConfigError(f"launch: variable {name!r}: expected a name of letters, and a value of one line")


def _check_placed(launch: Launch) -> None:
    if tuple(map(len, launch.placed)) != launch.devices:
        raise ConfigError("launch: placed has another number of ranks than devices; give each rank of each node")
    if sorted(rank for placed in launch.placed for rank, _ in placed) != list(range(launch.ranks)):
        raise ConfigError(f"launch: placed: expected each rank from 0 to {launch.ranks - 1} once")
    for node, placed in zip(launch.nodes, launch.placed, strict=True):
        if len({device for _, device in placed}) < len(placed):
            raise ConfigError(f"launch: placed: node {node} has two ranks on one device")


def node_script(launch: Launch, node: int) -> str:
    """The Bash script that starts the ranks of one node. Raises ConfigError."""
    from mindspeed_ms.parallel.plan.launch_ranks import ranks_script

    check_launch(launch)
    if not launch.as_msrun:
        return ranks_script(launch, node)
    visible = launch.visible(node)
    lines = [
        "#!/usr/bin/env bash",
        f"# Node {node} of {len(launch.nodes)} ({launch.nodes[node]}): ranks {_ranks(launch, node)} of {launch.ranks}.",
        "set -euo pipefail",
        "",
        *exports(launch, {"ASCEND_RT_VISIBLE_DEVICES": visible} if visible else {}),
        *msrun(launch, str(launch.devices[node]), launch.nodes[0], str(node), _bind(launch, node)),
    ]
    return "\n".join(lines) + "\n"


def exports(launch: Launch, more: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Lines that set the job's environment."""
    values = sorted({**launch.environment, **more}.items())
    return [f"export {name}={shlex.quote(value)}" for name, value in values] + [""] * bool(values)


def msrun(launch: Launch, local: str, master: str, node_rank: str, bind: str = "") -> list[str]:
    """The msrun command, an option a line; `local`, `master` and `node_rank` are shell words."""
    options = [
        f"--worker_num={launch.ranks}",
        f"--local_worker_num={local}",
        f"--master_addr={master}",
        f"--master_port={launch.port}",
        f"--node_rank={node_rank}",
        f"--log_dir={shlex.quote(launch.log_dir)}",
        "--join=True",
        f"--cluster_time_out={launch.cluster_timeout}",
    ]
    if launch.rank_table:
        options.append(f"--rank_table_file={shlex.quote(launch.rank_table)}")
    options.append(f"--bind_core={bind or 'True'}")
    command = " ".join(shlex.quote(part) for part in launch.command)
    return ["exec msrun \\", *(f"    {option} \\" for option in options), f"    {command}"]


def _bind(launch: Launch, node: int) -> str:
    if not launch.cores:
        return ""
    cores = launch.cores[node]
    # msrun takes entry n for process n, and binds nothing where its device is another.
    used = [device for _, device in launch.placed[node]] if launch.placed else list(cores)
    held = {f"device{device}": cores[device].split(",") for device in used if device in cores}
    return shlex.quote(json.dumps(held)) if len(held) == len(used) else ""


def _ranks(launch: Launch, node: int) -> str:
    first = sum(launch.devices[:node])
    return f"{first} to {first + launch.devices[node] - 1}"


def write_launch(folder: Path, launch: Launch, forms: Sequence[str] = ("msrun", "slurm", "kubernetes")) -> list[Path]:
    """Write the scripts of each form into a folder; returns their paths. Raises ConfigError.

    msrun: `node0.sh`, `node1.sh`, …, and `start_all.sh`, which starts each by ssh. slurm: `job.sbatch`. kubernetes:
    `job.yaml` (Indexed Job) and `volcano.yaml`. Slurm and Kubernetes choose nodes and devices themselves, so they take
    equally many devices a node, and ranks as msrun numbers them (`forms_of`).
    """
    from mindspeed_ms.parallel.plan.launch_kubernetes import job_yaml, volcano_yaml
    from mindspeed_ms.parallel.plan.launch_slurm import sbatch

    check_launch(launch)
    texts: dict[str, str] = {}
    for form in forms:
        if form == "msrun":
            texts |= {f"node{node}.sh": node_script(launch, node) for node in range(len(launch.nodes))}
            texts["start_all.sh"] = start_all(launch)
        elif form == "slurm":
            texts["job.sbatch"] = sbatch(launch)
        elif form == "kubernetes":
            texts |= {"job.yaml": job_yaml(launch), "volcano.yaml": volcano_yaml(launch)}
        else:
            raise ConfigError(f"launch form {form!r}: expected msrun, slurm or kubernetes")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("node*.sh"), *(folder / name for name in _NAMES)):
            # What an earlier plan has left would be started with this one's.
            if old.name not in texts:
                old.unlink(missing_ok=True)
        return [_write(folder / name, text) for name, text in texts.items()]
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); give another folder") from None


def forms_of(launch: Launch) -> tuple[str, ...]:
    """The forms that a launch can be written in."""
    if not launch.as_msrun:
        return ("msrun",)
    same = len({launch.visible(node) for node in range(len(launch.nodes))}) == 1
    return ("msrun", "slurm", "kubernetes") if same else ("msrun", "kubernetes")


def start_all(launch: Launch) -> str:
    """A Bash script that starts every node's script by ssh from a folder that all nodes share, and waits."""
    lines = [
        "#!/usr/bin/env bash",
        "# Starts the script of every node by ssh. This folder has to be at the same path on each of them.",
        "set -euo pipefail",
        'folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        f"nodes=({' '.join(shlex.quote(node) for node in launch.nodes)})",
        "pids=()",
        'for number in "${!nodes[@]}"; do',
        "    # shellcheck disable=SC2029  # both paths are meant to be those of this machine",
        '    ssh "${nodes[number]}" "cd $(printf %q "$PWD") && bash $(printf %q "$folder/node$number.sh")" &',
        '    pids+=("$!")',
        "done",
        "failed=0",
        'for number in "${!pids[@]}"; do',
        '    wait "${pids[number]}" || { echo "node $number (${nodes[number]}) failed" >&2; failed=1; }',
        "done",
        'exit "$failed"',
    ]
    return "\n".join(lines) + "\n"


def same_devices(launch: Launch, form: str) -> int:
    """Devices of each node where a form needs them equal, and ranks as msrun has them. Raises ConfigError."""
    if len(set(launch.devices)) > 1:
        counts = ", ".join(map(str, launch.devices))
        raise ConfigError(f"{form}: nodes run {counts} ranks; it needs equally many, use the scripts of each node")
    if not launch.as_msrun:
        raise ConfigError(f"{form}: ranks are not in the order of nodes and devices; use the scripts of each node")
    return launch.devices[0]


def _write(path: Path, text: str) -> Path:
    return write_whole(path, text.encode(), None if path.suffix == ".yaml" else 0o755)
