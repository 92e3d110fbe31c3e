"""The script of a node whose ranks msrun would number otherwise: each is started by itself, as a rank table places it.

MindSpore's start by a rank table (tutorials/source_en/parallel/rank_table.md): RANK_TABLE_FILE, RANK_SIZE, and for each
process RANK_ID and DEVICE_ID.
"""

from __future__ import annotations

import shlex

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.launch import Launch, exports


def ranks_script(launch: Launch, node: int) -> str:
    """The Bash script that starts the ranks of one node, and ends all when one fails. Raises ConfigError."""
    if not launch.placed:
        counts = ", ".join(map(str, launch.devices))
        raise ConfigError(f"launch: nodes run {counts} ranks, and msrun takes equally many; say which rank is where")
    if not launch.rank_table:
        raise ConfigError(
            "launch: msrun numbers ranks by nodes and devices, and here they have another order; give a rank table"
        )
    placed = sorted(launch.placed[node])
    ranks, devices = (" ".join(str(pair[n]) for pair in placed) for n in (0, 1))
    cores = launch.cores[node] if launch.cores else {}
    bind = all(device in cores for _, device in placed)
    log = shlex.quote(launch.log_dir)
    lines = [
        "#!/usr/bin/env bash",
        f"# Node {node} of {len(launch.nodes)} ({launch.nodes[node]}): {len(placed)} of {launch.ranks} ranks.",
        "# msrun numbers ranks by nodes and devices; these have the order of the rank table, so each is started here.",
        "set -euo pipefail",
        "",
        *exports(launch, {"RANK_TABLE_FILE": launch.rank_table, "RANK_SIZE": str(launch.ranks)}),
        f"log={log}",
        f"ranks=({ranks})",
        f"devices=({devices})",
    ]
    if bind:
        lines.append(f"cores=({' '.join(shlex.quote(cores[device]) for _, device in placed)})")
    command = " ".join(shlex.quote(part) for part in _command(launch))
    lines += [
        "",
        'mkdir -p "$log"',
        "pids=()",
        "trap 'kill \"${pids[@]}\" 2> /dev/null || true' EXIT",
        'for number in "${!ranks[@]}"; do',
        '    RANK_ID="${ranks[number]}" DEVICE_ID="${devices[number]}" \\',
        *(['        taskset -c "${cores[number]}" \\'] if bind else []),
        f"        {command} \\",
        '        > "$log/worker_${ranks[number]}.log" 2>&1 &',
        '    pids+=("$!")',
        "done",
        'for _ in "${pids[@]}"; do',
        '    wait -n || { echo "a rank failed; see $log" >&2; exit 1; }',
        "done",
    ]
    return "\n".join(lines) + "\n"


def _command(launch: Launch) -> tuple[str, ...]:
    # As msrun does: whatever is no interpreter is a script for one.
    named = launch.command[0] in ("python", "python3", "pytest")
    return launch.command if named else ("python", *launch.command)
