"""Environment variables of HCCL: which exist, what they may hold, and which a job should set.

Names, ranges and defaults are those of HCCL's user guide (docs/zh/user_guide/hccl_env in the hccl repository), read on
2026-11-30. What HCCL chooses well by itself is not set: a fixed algorithm, for one, switches its adaptive choice off.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Cluster

GUIDE = "HCCL user guide, hccl_env/"
_OPERATORS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "scatter", "alltoall")
_LEVEL1 = ("ring", "H-D_R", "NHR", "NHR_V1", "NB", "AHC", "pipeline", "pairwise")
_LEVEL2 = ("ring", "H-D_R", "NHR", "NB", "pipeline")
# The names that this package's cost model has for the same algorithms.
ALGORITHMS = {"ring": "ring", "rhd": "H-D_R", "nhr": "NHR", "nb": "NB", "pipeline": "pipeline", "pairwise": "pairwise"}


@dataclass(frozen=True)
class Variable:
    """One variable to set: its value, why, and where that is written."""

    name: str
    value: str
    why: str
    source: str


def advice(
    cluster: Cluster,
    *,
    micro_batch: int,
    seq: int,
    hidden: int,
    activation_bytes: int = 2,
    groups: int = 1,
    pipeline: int = 1,
    rank_table: str = "",
    interface: str = "",
    deterministic: bool = False,
    algorithms: Mapping[str, str] | None = None,
    most_buffer: int = 0,
) -> list[Variable]:
    """The variables a training job on this cluster should set; each passes `check`.

    `seq` counts the tokens of one device (split by the context dimension), `groups` the communication groups that one
    rank is in, `most_buffer` the bytes that memory has room for in each buffer (0: any number). `algorithms` is for
    experiments: operator to algorithm, such as {"allreduce": "ring"}. Raises ConfigError for a value that HCCL has no
    place for.
    """
    found = [_buffer(micro_batch * seq * hidden * activation_bytes, groups, most_buffer)]
    if len(cluster.servers) > 1:
        seconds = 1800 if pipeline > 1 else 600
        why = "processes compile for different times before they meet; the default is 120 s. The figure is a choice"
        found.append(Variable("HCCL_CONNECT_TIMEOUT", str(seconds), why, f"{GUIDE}HCCL_CONNECT_TIMEOUT.md"))
        if interface:
            why = "servers with several network cards have to meet on one; '=' takes the name as it is"
            found.append(Variable("HCCL_SOCKET_IFNAME", f"={interface}", why, f"{GUIDE}HCCL_SOCKET_IFNAME.md"))
    if deterministic:
        why = "sums in one order in every run; slower"
        found.append(Variable("HCCL_DETERMINISTIC", "true", why, f"{GUIDE}HCCL_DETERMINISTIC.md"))
    if algorithms:
        why = "fixes the algorithm between servers, which HCCL else chooses by size: for experiments only"
        found.append(Variable("HCCL_ALGO", algorithm_setting(algorithms), why, f"{GUIDE}HCCL_ALGO.md"))
    if rank_table:
        why = "gives each rank its server and device"
        found.append(Variable("RANK_TABLE_FILE", rank_table, why, "HCCL user guide, cluster_info_config/"))
    for variable in found:
        check(variable.name, variable.value)
    return found


def _buffer(message: int, groups: int, most: int) -> Variable:
    wanted = megabytes = max(1, math.ceil(message / (1 << 20)))
    why = "one micro-batch's activation, rounded up (default 200)"
    if most and wanted > most >> 20:
        megabytes = max(1, most >> 20)
        why = f"what the plan's memory has room for; one micro-batch's activation is {wanted} MB, and goes in pieces"
    why += f"; a group holds it twice, {2 * megabytes} MB each, {2 * megabytes * groups} MB for {groups} groups"
    return Variable("HCCL_BUFFSIZE", str(megabytes), why, f"{GUIDE}HCCL_BUFFSIZE.md")


def algorithm_setting(algorithms: Mapping[str, str]) -> str:
    """HCCL_ALGO for operators by their names, in HCCL's words or those of `ALGORITHMS`. Raises ConfigError."""
    parts = []
    for operator, algorithm in algorithms.items():
        plain = operator.lower().replace("_", "")
        parts.append(f"{plain}=level0:NA;level1:{ALGORITHMS.get(algorithm, algorithm)}")
    value = "/".join(parts)
    check("HCCL_ALGO", value)
    return value


def check(name: str, value: str) -> None:
    """Raises ConfigError for a variable that HCCL has not, or a value outside its documented range."""
    if name not in KNOWN:
        raise ConfigError(f"{name}: HCCL has no such variable; it has {', '.join(sorted(KNOWN))}")
    test, expected = KNOWN[name]
    if not test(value):
        raise ConfigError(f"{name}={value}: expected {expected}")


def check_all(variables: Mapping[str, str]) -> None:
    """Check what belongs to HCCL among a job's variables. Raises ConfigError."""
    for name, value in variables.items():
        if name.startswith("HCCL_") or name == "RANK_TABLE_FILE":
            check(name, value)
    if variables.get("HCCL_INTRA_PCIE_ENABLE") == variables.get("HCCL_INTRA_ROCE_ENABLE") == "1":
        raise ConfigError("HCCL_INTRA_PCIE_ENABLE=1 and HCCL_INTRA_ROCE_ENABLE=1 exclude each other; set one")
    if variables.get("HCCL_DETERMINISTIC") == "strict" and "HCCL_ALGO" in variables:
        raise ConfigError("HCCL_DETERMINISTIC=strict chooses its algorithms itself; do not set HCCL_ALGO with it")


def _integer(low: int, high: int | None) -> tuple[Callable[[str], bool], str]:
    def test(value: str) -> bool:
        return (
            bool(re.fullmatch(r"\d+", value, re.ASCII)) and low <= int(value) and (high is None or int(value) <= high)
        )

    return test, f"a whole number from {low}" + ("" if high is None else f" to {high}")


def _one_of(*values: str) -> tuple[Callable[[str], bool], str]:
    return lambda value: value in values, f"one of {', '.join(values)}"


def _address(value: str) -> bool:
    try:
        ipaddress.ip_address(value.partition("%")[0])
    except ValueError:
        return False
    return True


def _algorithm(value: str) -> bool:
    if "=" not in value:
        return _levels(value, None)
    for part in value.split("/"):
        operator, _, levels = part.partition("=")
        if operator not in _OPERATORS or not _levels(levels, operator):
            return False
    return True


def _levels(value: str, operator: str | None) -> bool:
    seen = set()
    for part in value.split(";"):
        level, _, algorithm = part.partition(":")
        allowed = {"level0": ("NA",), "level1": _LEVEL1, "level2": _LEVEL2}.get(level, ())
        if algorithm not in allowed or level in seen:
            return False
        if algorithm == "pairwise" and operator not in (None, "alltoall"):
            return False
        seen.add(level)
    return True


def _ports(value: str) -> bool:
    if value == "auto":
        return True
    ends = []
    for part in value.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        if not match:
            return False
        ends.append((int(match[1]), int(match[2] or match[1])))
    ends.sort()
    apart = all(before[1] < after[0] for before, after in zip(ends, ends[1:], strict=False))
    return apart and all(1 <= low <= high <= 65535 for low, high in ends)


def _seconds(value: str) -> bool:
    return bool(re.fullmatch(r"\d+(\.\d{1,2})?", value, re.ASCII)) and float(value) <= 2147483647


_ANY = (lambda value: bool(value), "a value")
_PORTS = (_ports, "ports or ranges that do not overlap, such as 60000,60050-60100, or auto")
# Test of a value, and what is expected, in words.
KNOWN: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "HCCL_ALGO": (_algorithm, "level0:NA;level1:ring or allreduce=level0:NA;level1:ring/…; level0 takes NA only"),
    "HCCL_ALG_MULTIPLE_DIMENSION_SPLIT_RATIO": _ANY,
    "HCCL_BUFFSIZE": _integer(1, None),
    "HCCL_CONNECT_TIMEOUT": _integer(120, 7200),
    "HCCL_DEBUG_CONFIG": _ANY,
    "HCCL_DETERMINISTIC": _one_of("false", "true", "strict"),
    "HCCL_DFS_CONFIG": _ANY,
    "HCCL_DIAGNOSE_ENABLE": _ANY,
    "HCCL_ENTRY_LOG_ENABLE": _ANY,
    "HCCL_EXEC_TIMEOUT": (_seconds, "seconds from 0 (never, not on a 910A) to 2147483647, at most two decimals"),
    "HCCL_HOST_SOCKET_PORT_RANGE": _PORTS,
    "HCCL_IF_BASE_PORT": _integer(1024, 65520),
    "HCCL_IF_IP": (_address, "an IP address"),
    "HCCL_INTER_HCCS_DISABLE": _one_of("TRUE", "FALSE", "true", "false"),
    "HCCL_INTRA_PCIE_ENABLE": _one_of("0", "1"),
    "HCCL_INTRA_ROCE_ENABLE": _one_of("0", "1"),
    "HCCL_LOGIC_SUPERPOD_ID": _ANY,
    "HCCL_MULTI_QP_THRESHOLD": _ANY,
    "HCCL_NPU_SOCKET_PORT_RANGE": _PORTS,
    "HCCL_OP_EXPANSION_MODE": _one_of(
        "HOST", "HOST_TS", "AI_CPU", "AIV", "AICPU_TS", "AICPU_CacheDisable", "CCU_MS", "CCU_SCHED"
    ),
    "HCCL_OP_RETRY_ENABLE": _ANY,
    "HCCL_OP_RETRY_PARAMS": _ANY,
    "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT": _ANY,
    "HCCL_RDMA_QP_PORT_CONFIG_PATH": _ANY,
    "HCCL_RDMA_QPS_PER_CONNECTION": _integer(1, 32),
    "HCCL_RDMA_RETRY_CNT": _integer(1, 7),
    "HCCL_RDMA_SL": _integer(0, 7),
    "HCCL_RDMA_TC": (lambda value: _integer(0, 255)[0](value) and int(value) % 4 == 0, "a multiple of 4, 0 to 255"),
    "HCCL_RDMA_TIMEOUT": _integer(5, 24),
    "HCCL_SOCKET_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "HCCL_SOCKET_IFNAME": (lambda value: bool(re.fullmatch(r"\^?=?[\w.,@:-]+", value)), "eth, ^eth, =eth0 or ^=eth0"),
    "HCCL_UBOE_TIMEOUT": _ANY,
    "HCCL_UB_TIMEOUT": _ANY,
    "HCCL_WHITELIST_DISABLE": _one_of("0", "1"),
    "HCCL_WHITELIST_FILE": _ANY,
    "RANK_TABLE_FILE": (lambda value: value.endswith(".json"), "a path that ends in .json, HCCL reads no other"),
}
