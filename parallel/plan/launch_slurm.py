"""The sbatch file of a job: Slurm picks the nodes, and each runs msrun once for its devices."""

from __future__ import annotations

import dataclasses

from mindspeed_ms.parallel.plan.launch import Launch, exports, msrun, same_devices


def sbatch(launch: Launch) -> str:
    """A batch script; the first node that Slurm gives is the scheduler's. Raises ConfigError.

    A rank table is left out: it names nodes in its order, and Slurm gives those it has, in an order of its own.

    Devices are asked for as `--gpus-per-node` is not known for NPUs at every site: the nodes are taken whole
    (`--exclusive`), which also keeps other jobs off their links.
    """
    devices = same_devices(launch, "slurm")
    head = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={launch.name}",
        f"#SBATCH --nodes={len(launch.nodes)}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.log",
    ]
    if launch.time_limit:
        head.append(f"#SBATCH --time={launch.time_limit}")
    if launch.partition:
        head.append(f"#SBATCH --partition={launch.partition}")
    launch = dataclasses.replace(launch, rank_table="", cores=())
    visible = launch.visible(0)
    start = msrun(launch, str(devices), '"$MASTER_ADDR"', '"$SLURM_NODEID"')
    lines = [
        *head,
        "set -euo pipefail",
        "",
        *exports(launch, {"ASCEND_RT_VISIBLE_DEVICES": visible} if visible else {}),
        # Not piped to head: what is closed before it is read would end a script with pipefail.
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        'export MASTER_ADDR="${hosts[0]}"',
        "",
        "# What one node runs; $SLURM_NODEID and $MASTER_ADDR have their values there.",
        "node() {",
        *(f"    {line}" for line in start),
        "}",
        "export -f node",
        "srun --kill-on-bad-exit=1 bash -c node",
    ]
    return "\n".join(lines) + "\n"
